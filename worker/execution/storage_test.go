package execution

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// quota sets the tenant's quota max_stored_mb.
func (k *takeovers) quota(mb float64) {
	k.T.Helper()
	testbed.Must(k.T, k.Store.ChangeTenant(k.T.Context(), workertest.Tenant, store.TenantChange{Quotas: map[farm.QuotaName]*float64{farm.QuotaStoredMB: &mb}}))
}

// run runs commands to their end, and checks what the tenant stores afterwards, beside the documents of its jobs.
func (k *takeovers) run(want store.Stored, commands ...string) *farm.Result {
	k.T.Helper()
	job := k.Accept(farm.KindCommand, k.box.ID, &farm.Request{Command: &farm.CommandRequest{Commands: commands, ContinueOnError: true}}, nil)
	got, err := k.work(job, &fault{at: -1})
	testbed.Must(k.T, err)
	end := finishOf(k.Job(job), got)
	testbed.Must(k.T, Commit(&end, func(f store.Finish) error {
		_, err := k.Store.Finish(k.T.Context(), f)
		return err
	}))
	got.Result = end.Result
	cleanUp(k.T.Context(), got)
	k.nothingStaged(job)
	testbed.Must(k.T, k.Blobs.List(k.T.Context(), "records/"+workertest.Tenant+"/"+job.ID+"/", func(o blob.Info) error {
		k.documents += o.Size
		return nil
	}))
	want.Kept = k.documents
	stored, err := k.Store.Stored(k.T.Context(), workertest.Tenant)
	diff := cmp.Diff(want, stored)
	testbed.Check(k.T, err == nil && diff == "", "Stored of %q: %v (-want +got):\n%s", commands, err, diff)
	testbed.Require(k.T, got.State == farm.JobCompleted, "%q ended as %s: %+v", commands, got.State, got.Err)
	return got.Result
}

func paths(artifacts []farm.Artifact) []string {
	var out []string
	for _, a := range artifacts {
		out = append(out, a.Path)
	}
	return out
}

func notes(r *farm.Result, part string) int {
	return len(slices.DeleteFunc(slices.Clone(r.Notes), func(n string) bool { return !strings.Contains(n, part) }))
}

// Files fill a tenant's storage to the last byte; what does not fit stays in the workspace, and the caller reads why.
func TestFilesBeyondTheStorageStayInTheWorkspace(t *testing.T) {
	t.Parallel()
	const mb, each = 1 << 20, farm.ObjectBytes
	const half = (mb - 3*each) / 2 // of what three files have
	k := setupTakeovers(t, 2, 2)
	k.quota(1)
	file := func(name string, size int) string { return fmt.Sprintf("head -c %d /dev/zero >%s", size, name) }
	r := k.run(store.Stored{}, file("over", mb-each+1))
	if len(r.Artifacts) != 0 || r.ArtifactsSkipped != 1 || notes(r, "max_stored_mb of your tenant allows 1 MiB in all, less than each of these files needs, so these files stayed in the workspace: over.") != 1 {
		t.Errorf("one byte too many: artifacts %v, %d skipped, notes %q", paths(r.Artifacts), r.ArtifactsSkipped, r.Notes)
	}
	r = k.run(store.Stored{Bytes: 2 * half, Artifacts: 3}, file("a", half), file("b", half+each+1), file("c", half), "touch d")
	if diff := cmp.Diff([]string{"a", "c", "d"}, paths(r.Artifacts)); diff != "" || r.ArtifactsSkipped != 1 || notes(r, "workspace: b.") != 1 {
		t.Errorf("artifacts (-want +got):\n%s\n%d skipped, notes %q", diff, r.ArtifactsSkipped, r.Notes)
	}
	many := k.run(store.Stored{Bytes: 2 * half, Artifacts: 3}, "for i in $(seq 100 125); do echo x >$i; done")
	if len(many.Artifacts) != 0 || many.ArtifactsSkipped != 26 || notes(many, "100, 101, 102, 103, 104, 105, 106, 107, 108, 109 and 16 more.") != 1 {
		t.Errorf("in full storage: artifacts %v, %d skipped, notes %q", paths(many.Artifacts), many.ArtifactsSkipped, many.Notes)
	}
	if empty := k.run(store.Stored{Bytes: 2 * half, Artifacts: 3}, "touch f"); len(empty.Artifacts) != 0 || empty.ArtifactsSkipped != 1 {
		t.Errorf("an empty file in full storage: artifacts %v, %d skipped", paths(empty.Artifacts), empty.ArtifactsSkipped)
	}
	n, err := k.Store.DeleteArtifacts(t.Context(), r.Artifacts[:1])
	testbed.Require(t, err == nil && n == 1, "DeleteArtifacts = %d, %v", n, err)
	if r = k.run(store.Stored{Bytes: 2 * half, Artifacts: 3}, file("e", half)); len(r.Artifacts) != 1 || len(r.Notes) != 0 {
		t.Errorf("after a delete: artifacts %v, notes %q", paths(r.Artifacts), r.Notes)
	}
}

// The sandbox of a run is removed with its files, so they stay nowhere.
func TestFilesOfARunBeyondTheStorageAreLost(t *testing.T) {
	t.Parallel()
	k := setupTakeovers(t, 2, 2)
	k.quota(1)
	x, _ := k.runner()
	job := &farm.Job{Tenant: workertest.Tenant}
	e := &execution{job: job, sandbox: &farm.Sandbox{OneShot: true}, collect: newCollector(job, &farm.Request{}, x.cfg.Limits, 0, room{})}
	e.collect.skipped = []agent.ChangedFile{{Path: "small", Size: 1}, {Path: "large", Size: 1 << 20}}
	x.noteSkipped(t.Context(), e)
	want := []string{
		"The storage of your tenant is full (quota max_stored_mb), so these files are lost with the sandbox of the run: small. Delete artifacts to make room.",
		"The quota max_stored_mb of your tenant allows 1 MiB in all, less than each of these files needs, so these files are lost with the sandbox of the run: large. Make them smaller, or ask the farm's operator to raise it.",
	}
	testbed.Diff(t, "notes", want, e.collect.notes)
}

// Long output that does not fit ends its upload, in the middle or before it begins; the result has head and tail, and the code runs on.
func TestOutputBeyondTheStorageIsNotKept(t *testing.T) {
	t.Parallel()
	for quota, want := range map[float64]store.Stored{0: {}, 1: {Bytes: 168_894, Artifacts: 1}, 7: {Bytes: 168_894, Artifacts: 1}, 13: {Bytes: 168_894 + 9_288_896, Artifacts: 2}} {
		k := setupTakeovers(t, 2, 2)
		k.quota(quota)
		// the first output is more than Redis keeps of events, and less than is sent of them, in whatever pieces it comes
		r := k.run(want, "printf %040000d 0", "seq 1 1300000", "seq 1 30000 >&2", "echo last")
		lost := notes(r, "max_stored_mb), so .output/")
		if lost != 2-int(want.Artifacts) || len(r.Artifacts) != int(want.Artifacts) {
			t.Errorf("quota of %g MiB: artifacts %v, notes %q", quota, paths(r.Artifacts), r.Notes)
		}
		first := r.Command.Commands[1]
		says := strings.Contains(first.Stdout, "no room for the whole output") || strings.Contains(first.Stdout, "the storage of your tenant is full")
		if says != (want.Artifacts < 2) || !first.Truncated.Stdout {
			t.Errorf("quota of %g MiB: the result says of its output %q", quota, first.Stdout[:1000])
		}
		if short := notes(r, "The result is longer than the job's record"); short > 0 != (quota == 0) || notes(r, "sent as events") != short {
			t.Errorf("quota of %g MiB: notes %q", quota, r.Notes)
		}
		if data, err := json.Marshal(r); err != nil || quota == 0 && len(data) > store.InlineBytes || first.ExitCode != 0 {
			t.Errorf("quota of %g MiB: a result of %d bytes, exit code %d, %v", quota, len(data), first.ExitCode, err)
		}
		if !strings.HasSuffix(first.Stdout, "1300000\n") || r.Command.Commands[3].Stdout != "last\n" {
			t.Errorf("quota of %g MiB: the code did not run to its end", quota)
		}
	}
}

// evict stops code of ended jobs, also their installs, but not code of the current job and of jobs that have not ended.
func TestEvictEndsCodeOfEndedJobs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, n := b.runner()
	box := b.Ready()
	a := b.Agent(box, n)
	ended, open, own := b.Command(box, "true"), b.Command(box, "true"), b.Command(box, "true")
	_, err := b.Store.Force(t.Context(), ended, farm.JobLost, nil)
	testbed.Must(t, err)
	spec := agent.Spec{Kind: farm.KindCommand, Commands: []string{"sleep 60"}, Timeout: time.Minute, Background: true}
	for _, id := range []string{ended.ID, ended.ID + requestedSuffix, ended.ID + importsSuffix, open.ID, open.ID + importsSuffix, own.ID, own.ID + requestedSuffix} {
		testbed.Must(t, a.Start(t.Context(), id, spec))
	}
	testbed.Must(t, x.evict(t.Context(), b.Sandbox(box), own.ID))
	list, err := a.Executions(t.Context())
	testbed.Must(t, err)
	var left []string
	for _, e := range list {
		left = append(left, e.ID)
	}
	slices.Sort(left)
	want := []string{open.ID, open.ID + importsSuffix, own.ID, own.ID + requestedSuffix}
	slices.Sort(want)
	testbed.Check(t, slices.Equal(left, want), "executions left %v, want %v", left, want)
}

// Code of an ended job is interrupted before it is killed: a kernel keeps its variables, and a program can save what it has.
func TestEvictInterruptsFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, n := b.runner()
	box := b.Ready()
	a := b.Agent(box, n)
	ended := b.Command(box, "true")
	_, err := b.Store.Force(t.Context(), ended, farm.JobLost, nil)
	testbed.Must(t, err)
	testbed.Must(t, a.Start(t.Context(), ended.ID, agent.Spec{
		Kind: farm.KindCommand, Timeout: 2 * time.Minute, Commands: []string{"trap 'echo saved > saved; exit 1' TERM; echo begun > begun; while :; do sleep 0.05; done"},
	}))
	for end := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
		if _, err := a.Stat(t.Context(), "begun"); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatalf("the command does not begin: %v", err)
		}
	}
	testbed.Must(t, x.evict(t.Context(), b.Sandbox(box), "job_other"))
	if _, err := a.Stat(t.Context(), "saved"); err != nil {
		t.Errorf("the program was killed before it could save what it has: %v", err)
	}
	list, err := a.Executions(t.Context())
	testbed.Check(t, err == nil && len(list) == 0, "executions left: %v, %v", list, err)
}

// While the object store is away, a full log holds the code back; when it is back, the code goes on and no output is missing.
func TestCodeGoesOnWhenTheObjectStoreIsBack(t *testing.T) {
	t.Parallel()
	k := setupTakeovers(t, 1_600_000, 90_000) // 11.7 MB: twice what the agent's log takes
	k.cfg.UploadRetry = 1
	var away atomic.Bool
	var refused atomic.Int64
	blobs := k.BlobsBehind(func(s3 http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if away.Load() {
				refused.Add(1)
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			s3.ServeHTTP(w, r)
		})
	})
	k.Register("wrk_a")
	n := k.NewNode()
	testbed.Must(t, n.UseConnection(t.Context(), k.box.ID, func() *client.Client { return agenttest.Connect(t, k.a.Server) }))
	job := k.accept()
	claim := k.Claim(job, "wrk_a")
	x := k.runnerOn(n, k.Store, blobs)
	away.Store(true)
	type ended struct {
		got Outcome
		err error
	}
	done := make(chan ended, 1)
	go func() {
		got, err := x.Run(t.Context(), Task{Claim: claim}, claim.Sandbox, nil)
		done <- ended{got, err}
	}()
	testbed.Until(t, "the worker has tried several times", func() bool { return refused.Load() >= 10 })
	testbed.Require(t, len(done) == 0, "the job ended without its output")
	away.Store(false)
	end := <-done
	testbed.Must(t, end.err)
	testbed.Require(t, end.got.State == farm.JobCompleted && end.got.Err == nil, "outcome %+v, error %+v", end.got, end.got.Err)
	k.check("the object store is back", job, end.got)
}

// A worker that was held up in the middle of an upload goes on when its job has ended, and a later job has changed the file. The artifact
// stays what the job made.
func TestLateUploadReplacesNoArtifact(t *testing.T) {
	t.Parallel()
	k := setupTakeovers(t, 2, 2)
	const size = 12 << 20
	job := k.Accept(farm.KindCommand, k.box.ID, &farm.Request{Command: &farm.CommandRequest{Commands: []string{fmt.Sprintf("yes a | head -c %d >big", size)}}}, nil)
	reached, hold, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		// Held when it begins the upload: it has read little of the file.
		_, err := k.work(job, &fault{at: -1, on: "POST /farm/artifacts/", hold: hold, end: func() { close(reached) }})
		done <- err
	}()
	<-reached
	got, err := k.work(job, &fault{at: -1})
	testbed.Must(t, err)
	_, err = k.Store.Finish(t.Context(), finishOf(k.Job(job), got))
	testbed.Must(t, err)
	got.Cleanup(t.Context())

	later := k.Accept(farm.KindCommand, k.box.ID, &farm.Request{Command: &farm.CommandRequest{Commands: []string{fmt.Sprintf("yes b | head -c %d | dd of=big conv=notrunc status=none", size)}}}, nil)
	_, err = k.work(later, &fault{at: -1})
	testbed.Must(t, err)
	close(hold)
	err = <-done
	testbed.Check(t, errors.Is(err, store.ErrFenced), "the late worker ended with %v, want ErrFenced", err)
	artifacts := k.Job(job).Result.Artifacts
	testbed.Require(t, len(artifacts) == 1, "artifacts %+v", artifacts)
	a := artifacts[0]
	content := k.content(a.Key)
	if sum := sha256.Sum256(content); a.Size != size || len(content) != size || a.SHA256 != hex.EncodeToString(sum[:]) || bytes.ContainsRune(content, 'b') {
		t.Errorf("the artifact has %d bytes, its record says %d; or another job's bytes: %q…", len(content), a.Size, content[:4])
	}
}

// A container does not run, and its engine, which stops, does not answer the question why: it is asked again, so that the job is lost with the
// sandbox and does not fail with the engine's words.
func TestReattachToWhatDoesNotRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.Ready()
	b.Fake.Put(box.ID, false)
	x, _ := b.runner()
	asked := 0
	err := x.reattach(t.Context(), b.Sandbox(box), "job_x", func() (bool, error) {
		b.Fake.Drop("containers/test-"+box.ID+"/json", []int{1000, 0}[asked])
		asked++
		return false, farm.Conflictf("the container is not running")
	})
	testbed.Check(t, errors.Is(err, node.ErrGone) && asked == 2, "%v after %d looks", err, asked)
}

// silentNode is a node whose engine does not answer before a time.
type silentNode struct{ until time.Time }

func (silentNode) Connect(context.Context, *farm.Sandbox) (*client.Client, error) {
	return nil, errUnreachable
}
func (silentNode) Gone(context.Context, *farm.Sandbox) (error, bool) { return nil, false } //nolint:revive // as Node
func (n silentNode) Answers(context.Context) bool                    { return !time.Now().Before(n.until) }
func (silentNode) Connected(string) bool                             { return false }

var errUnreachable = farm.Errorf(farm.CodeUnavailable, "no way to the sandbox")

// A job waits for its sandbox as long as the engine is silent, up to EngineTimeout, and for attachFor while the engine answers. It used to fail after
// attachFor, while the sandbox ran on behind an API server that was being updated.
func TestReattachWhileTheEngineIsSilent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		silent, unreachable, gaveUp time.Duration // gaveUp 0: it did not
	}{
		"EngineComesBack":   {9 * time.Minute, 9*time.Minute + 30*time.Second, 0},
		"EngineAnswers":     {0, time.Hour, attachFor},
		"SandboxStaysAway":  {5 * time.Minute, time.Hour, 5*time.Minute + attachFor},
		"EngineStaysSilent": {time.Hour, time.Hour, 10*time.Minute + attachFor},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				x := &Runner{cfg: Config{EngineTimeout: 10 * time.Minute}, node: silentNode{began.Add(c.silent)}, log: slog.New(slog.DiscardHandler)}
				err := x.reattach(t.Context(), &farm.Sandbox{}, "job_x", func() (bool, error) {
					if time.Since(began) < c.unreachable {
						return false, errUnreachable
					}
					return true, nil
				})
				took := time.Since(began)
				if (err != nil) != (c.gaveUp > 0) || c.gaveUp > 0 && (took < c.gaveUp || took > c.gaveUp+redialMost) {
					t.Errorf("%v after %s, want an end after %s", err, took, c.gaveUp)
				}
			})
		})
	}
}

// Connections that break at once are dialled less and less often, though something came over each; one that has lasted is dialled soon.
func TestBrokenConnectionsAreDialledLessAndLess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := &Runner{cfg: Config{EngineTimeout: 10 * time.Minute}, node: silentNode{time.Now()}, log: slog.New(slog.DiscardHandler)}
		var pauses []time.Duration
		ended := time.Now()
		err := x.reattach(t.Context(), &farm.Sandbox{}, "job_x", func() (bool, error) {
			pauses = append(pauses, time.Since(ended))
			defer func() { ended = time.Now() }()
			switch len(pauses) {
			case 7:
				time.Sleep(steady)
			case 8:
				time.Sleep(steady + 1)
			case 9:
				return true, nil
			}
			return true, errUnreachable
		})
		testbed.Must(t, err)
		const ms = time.Millisecond
		testbed.Diff(t, "pauses", []time.Duration{0, 300 * ms, 600 * ms, 1200 * ms, 2400 * ms, 4800 * ms, 5000 * ms, 5000 * ms, 300 * ms}, pauses)
	})
}

// The list of a job's artifacts was charged to no budget: that of 10,000 files took 200 MB. It is charged from the outcome until the job is committed,
// and waits for others.
func TestTheListOfArtifactsIsCharged(t *testing.T) {
	t.Parallel()
	k := setupTakeovers(t, 2, 2)
	memory := budget.New(16 << 20)
	ctx, hold := memory.With(t.Context(), workertest.Tenant, 0)
	worker := farm.NewID("wrk_")
	k.Register(worker)
	const files = 200
	job := k.Accept(farm.KindCommand, k.box.ID, &farm.Request{Command: &farm.CommandRequest{Commands: []string{fmt.Sprintf("for i in $(seq 1001 %d); do >$i; done", 1000+files)}}}, nil)
	n := k.NewNode()
	defer n.Close()
	testbed.Must(t, n.UseConnection(t.Context(), k.box.ID, func() *client.Client { return agenttest.Connect(t, k.a.Server) }))
	const want = files * (artifactBytes + pathWeight*4)
	var uploads, uncharged atomic.Int64
	x := k.runnerOn(n, k.Store, k.BlobsBehind(func(s3 http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				uploads.Add(1)
				if hold.Bytes() != want {
					uncharged.Add(1)
				}
			}
			s3.ServeHTTP(w, r)
		})
	}))
	claim := k.Claim(job, worker)
	got, err := x.Run(ctx, Task{Claim: claim}, claim.Sandbox, nil)
	testbed.Must(t, err)
	testbed.Check(t, len(got.Result.Artifacts) == files && hold.Bytes() == want, "%d artifacts, and %d bytes are charged, want %d", len(got.Result.Artifacts), hold.Bytes(), want)
	testbed.Check(t, uploads.Load() >= files && uncharged.Load() == 0, "of %d uploads %d found the list uncharged", uploads.Load(), uncharged.Load())
	hold.Release()
	empty(t, memory)
}

// A short list, and one that is charged, are charged once, with the result.
func TestArtifactsAndResultAreChargedOnce(t *testing.T) {
	t.Parallel()
	const each = artifactBytes + pathWeight*4
	for files, want := range map[int]int64{0: 0, budget.SmallBytes / each: 0, budget.SmallBytes/each + 1: (budget.SmallBytes/each + 1) * each} {
		memory := budget.New(16 << 20)
		ctx, hold := memory.With(t.Context(), "acme", 0)
		e := &execution{job: &farm.Job{Tenant: "acme"}, request: &farm.Request{}, collect: collectorOf(code(), 0)}
		e.collect.outcome = &agent.Outcome{}
		for i := range files {
			e.collect.outcome.Files = append(e.collect.outcome.Files, agent.ChangedFile{Path: fmt.Sprint(1000 + i)})
		}
		x := &Runner{}
		testbed.Must(t, x.chargeArtifacts(ctx, e))
		testbed.Check(t, hold.Bytes() == want, "%d files: %d bytes are charged, want %d", files, hold.Bytes(), want)
		testbed.Must(t, x.chargeResult(ctx, e))
		testbed.Check(t, hold.Bytes() == want, "%d files: with the result %d bytes are charged, want %d", files, hold.Bytes(), want)
		hold.Release()
	}
}

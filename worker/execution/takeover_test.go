package execution

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/agent/server"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// fault ends a worker, or holds it up, at one of its requests to the object store or commands to Redis, before or after it took effect.
type fault struct {
	at    int    // the number of the step, from 0; negative: none
	on    string // or the first step whose name has this; empty: none
	after bool
	end   func() // called once, at the step
	hold  <-chan struct{}

	mu     sync.Mutex
	steps  []string
	struck bool
	ended  bool
}

// step does a step of the worker. It reports whether the worker lives to see its result.
func (f *fault) step(name string, do func()) bool {
	f.mu.Lock()
	if f.ended {
		f.mu.Unlock()
		return false
	}
	mine := len(f.steps) == f.at || f.on != "" && !f.struck && strings.Contains(name, f.on)
	if mine {
		f.at = len(f.steps)
	}
	f.steps = append(f.steps, name)
	f.mu.Unlock()
	if !mine || f.after {
		do()
	}
	if !mine {
		return true
	}
	f.mu.Lock()
	f.struck = true
	f.ended = f.hold == nil
	f.mu.Unlock()
	f.end()
	if f.hold == nil {
		return false
	}
	<-f.hold
	if !f.after {
		do()
	}
	return true
}

// disarm makes all further steps succeed.
func (f *fault) disarm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = -1
}

// seen reports whether the fault struck, and at what step.
func (f *fault) seen() (bool, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.struck {
		return false, fmt.Sprintf("none of %d steps", len(f.steps))
	}
	return true, fmt.Sprintf("step %d, %s, after: %v", f.at, f.steps[f.at], f.after)
}

func (f *fault) wrap(s3 http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := httptest.NewRecorder()
		if !f.step(r.Method+" "+r.URL.Path+"?"+r.URL.RawQuery, func() { s3.ServeHTTP(answer, r) }) {
			panic(http.ErrAbortHandler)
		}
		for k, v := range answer.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	})
}

func (f *fault) hook(cmds []redis.Cmder, next func(...redis.Cmder) error) (err error) {
	name := cmds[0].Name()
	switch {
	case name == "hello" || name == "client": // of a new connection
		return next(cmds...)
	case len(cmds) > 1:
		name = "pipeline"
	}
	if !f.step(name, func() { err = next(cmds...) }) {
		return workertest.ErrTest
	}
	return err
}

// printing is a job whose first command prints numbers on both streams, alternating, and whose second one prints little.
func printing(stdout, stderr int) *farm.CommandRequest {
	return &farm.CommandRequest{ContinueOnError: true, Commands: []string{
		fmt.Sprintf("seq 1 %d; seq 1 %d >&2; seq %d %d; seq %d %d >&2; exit 3", stdout/2, stderr/2, stdout/2+1, stdout, stderr/2+1, stderr),
		"echo second; seq 1 30000 >&2",
	}}
}

// numbers is what seq prints.
func numbers(to int) string {
	var b strings.Builder
	for i := 1; i <= to; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

// takeovers runs jobs that several workers work at, one after the other.
type takeovers struct {
	documents int64 // bytes of the documents of jobs that run has run
	*bundle
	request *farm.CommandRequest
	want    map[string]string
	box     farm.Ref
	a       *agenttest.Agent
}

func setupTakeovers(t *testing.T, stdout, stderr int) *takeovers {
	t.Helper()
	b := setup(t)
	b.cfg.Limits.MaxStreamEvents, b.cfg.Limits.MaxStreamInline = 64<<10, 64<<10
	box := b.Ready()
	b.Fake.Put(box.ID, true)
	// A log that a takeover cannot fill any more unless it acknowledges what the snapshot has.
	a := agenttest.Start(t, "/usr/bin:/bin", func(c *server.Config) { c.LogBytes = 6 << 20 })
	return &takeovers{bundle: b, request: printing(stdout, stderr), box: box, a: a, want: map[string]string{
		".output/1-stdout.txt": numbers(stdout), ".output/1-stderr.txt": numbers(stderr), ".output/2-stderr.txt": numbers(30000),
	}}
}

// work lets the next worker claim the job and work at it, through a fault. The worker is dead afterwards.
func (k *takeovers) work(job farm.Ref, f *fault) (Outcome, error) {
	k.T.Helper()
	worker := farm.NewID("wrk_")
	k.Register(worker)
	n := k.NewNode()
	testbed.Must(k.T, n.UseConnection(k.T.Context(), k.box.ID, func() *client.Client { return agenttest.Connect(k.T, k.a.Server) }))
	claim := k.Claim(job, worker)
	ctx, cancel := context.WithCancelCause(k.T.Context())
	defer cancel(nil)
	if f.end == nil {
		f.end = func() { cancel(node.ErrStopping) }
	}
	x := k.runnerOn(n, k.StoreBehind(testbed.Hook(f.hook)), k.BlobsBehind(f.wrap))
	testbed.Must(k.T, k.Store.RemoveWorker(k.T.Context(), worker))
	got, err := x.Run(ctx, Task{Claim: claim}, claim.Sandbox, nil)
	n.Close()
	if err == nil {
		f.disarm()
	}
	return got, err
}

func (k *takeovers) accept() farm.Ref {
	return k.Accept(farm.KindCommand, k.box.ID, &farm.Request{Command: k.request}, nil)
}

// check checks result, artifacts and events of a job, and ends it.
func (k *takeovers) check(when string, job farm.Ref, got Outcome) {
	k.T.Helper()
	testbed.Require(k.T, got.State == farm.JobCompleted && got.Result != nil && len(got.Result.Command.Commands) == 2, "%s: outcome %+v", when, got)
	texts := map[string]string{}
	for i, c := range got.Result.Command.Commands {
		texts[fmt.Sprintf(".output/%d-stdout.txt", i+1)], texts[fmt.Sprintf(".output/%d-stderr.txt", i+1)] = c.Stdout, c.Stderr
	}
	if c := got.Result.Command.Commands; c[0].ExitCode != 3 || c[1].ExitCode != 0 || c[1].Stdout != "second\n" {
		k.T.Errorf("%s: commands %d and %d, %q", when, c[0].ExitCode, c[1].ExitCode, c[1].Stdout)
	}
	k.checkArtifacts(when, got.Result.Artifacts)
	for path, whole := range k.want {
		s := newStream(k.cfg.Limits.MaxStreamInline)
		s.write([]byte(whole))
		testbed.Check(k.T, texts[path] == s.text("the whole output is the artifact "+path), "%s: the result has another text of %s", when, path)
	}
	// The first command uses up what all commands together may send.
	if events := k.Stdout(job); !strings.HasPrefix(k.want[".output/1-stdout.txt"], events) || events == "" {
		k.T.Errorf("%s: %d bytes of events are not the beginning of the output", when, len(events))
	}
	_, err := k.Store.Finish(k.T.Context(), finishOf(k.Job(job), got))
	testbed.Must(k.T, err)
	cleanUp(k.T.Context(), got)
	k.nothingStaged(job)
	stored, err := k.Store.Stored(k.T.Context(), workertest.Tenant)
	testbed.Check(k.T, err == nil && stored.Reserved == 0, "%s: after the end of the job %+v is stored, %v", when, stored, err)
}

func (k *takeovers) checkArtifacts(when string, artifacts []farm.Artifact) {
	k.T.Helper()
	paths := map[string]bool{}
	for _, a := range artifacts {
		paths[a.Path] = true
		content := k.content(a.Key)
		sum := sha256.Sum256(content)
		if !bytes.Equal(content, []byte(k.want[a.Path])) || a.Size != int64(len(content)) || a.SHA256 != hex.EncodeToString(sum[:]) {
			k.T.Errorf("%s: %s has %d bytes, its record says %d; want %d", when, a.Path, len(content), a.Size, len(k.want[a.Path]))
		}
	}
	testbed.Check(k.T, len(paths) == len(k.want) && len(artifacts) == len(k.want), "%s: artifacts %v", when, paths)
}

// A worker that dies at any step leaves a job whose result is the same as if it had lived, whatever of the step took effect.
func TestWorkerKilledAtAnyStepLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("after=%v", after), func(t *testing.T) {
			t.Parallel()
			k := setupTakeovers(t, 900_000, 100_000) // 6.2 MB: a part and a rest
			for at, struck := 0, true; struck; at++ {
				job := k.accept()
				f := &fault{at: at, after: after}
				got, err := k.work(job, f)
				var step string
				if struck, step = f.seen(); struck {
					testbed.Require(t, err != nil, "%s: the killed worker ended its job", step)
					got, err = k.work(job, &fault{at: -1})
				}
				testbed.Require(t, err == nil, "%s: %v", step, err)
				k.check(step, job, got)
			}
		})
	}
}

// So does a row of workers that die.
func TestWorkersKilledOneAfterTheOther(t *testing.T) {
	t.Parallel()
	k := setupTakeovers(t, 1_600_000, 90_000) // 11.7 MB: two parts and a rest
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 12))
		job, when := k.accept(), fmt.Sprintf("seed %d", seed)
		for range 3 {
			f := &fault{at: rng.IntN(25), after: rng.IntN(2) == 0}
			if _, err := k.work(job, f); err == nil { // it was done before
				break
			}
			_, step := f.seen()
			when += "; " + step
		}
		got, err := k.work(job, &fault{at: -1})
		testbed.Require(t, err == nil, "%s: %v", when, err)
		k.check(when, job, got)
	}
}

// A worker that was held up while another one took its job over and ended it changes nothing when it goes on.
func TestWorkerThatWakesUpLateChangesNothing(t *testing.T) {
	t.Parallel()
	k := setupTakeovers(t, 1_600_000, 90_000) // 11.7 MB: two parts and a rest
	for at, struck := 0, true; struck; at += 3 {
		job := k.accept()
		reached, hold, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		f := &fault{at: at, after: at%2 == 0, hold: hold, end: func() { close(reached) }}
		var late Outcome
		go func() {
			var err error
			late, err = k.work(job, f)
			done <- err
		}()
		select {
		case <-reached:
		case err := <-done:
			testbed.Must(t, err)
			struck = false
			k.check("no fault", job, late)
			continue
		}
		got, err := k.work(job, &fault{at: -1})
		_, step := f.seen()
		testbed.Require(t, err == nil, "%s: %v", step, err)
		artifacts := got.Result.Artifacts
		k.check(step, job, got)
		close(hold)
		err = <-done
		k.checkArtifacts(step+", afterwards", artifacts)
		if events := k.Stdout(job); !strings.HasPrefix(k.want[".output/1-stdout.txt"], events) || events == "" {
			t.Errorf("%s, afterwards: the events are not the beginning of the output", step)
		}
		if err == nil {
			_, err := k.Store.Finish(t.Context(), finishOf(&farm.Job{ID: job.ID, Tenant: job.Tenant, Attempt: 1}, late))
			testbed.Require(t, err != nil, "%s: the late worker committed", step)
		}
	}
}

// A result of a job that printed little costs no request to the object store, and a long one stores its output once.
func TestOutputIsStoredOnce(t *testing.T) {
	t.Parallel()
	k := setupTakeovers(t, 1_600_000, 90_000) // 11.7 MB: two parts and a rest
	job := k.Accept(farm.KindCommand, k.box.ID, &farm.Request{Command: &farm.CommandRequest{Commands: []string{"seq 1 1000"}}}, nil)
	f := &fault{at: -1}
	got, err := k.work(job, f)
	testbed.Must(t, err)
	_, err = k.Store.Finish(t.Context(), finishOf(k.Job(job), got))
	testbed.Must(t, err)
	for _, step := range f.steps {
		testbed.Check(t, !strings.Contains(step, "/farm/"), "a short output costs %s", step)
	}
	f = &fault{at: -1}
	got, err = k.work(k.accept(), f)
	testbed.Must(t, err)
	var parts, others []string
	for _, step := range f.steps {
		switch {
		case strings.Contains(step, "partNumber="):
			parts = append(parts, step)
		case strings.HasPrefix(step, "GET /farm/artifacts/") && !strings.Contains(step, "uploadId="):
			others = append(others, step)
		}
	}
	testbed.Check(t, len(parts) == 3 && len(others) == 0, "parts %q, and reads of artifacts %q", parts, others)
	testbed.Check(t, len(got.Result.Artifacts) == 3, "artifacts %+v", got.Result.Artifacts)
	testbed.Diff(t, "notes", []string(nil), got.Result.Notes)
}

// The run time of a job that was taken over includes what an earlier worker followed.
func TestRunTimeIncludesEarlierWorkers(t *testing.T) {
	t.Parallel()
	start := time.Unix(1700000000, 0)
	attached, now := start.Add(47*time.Second), start.Add(time.Minute)
	for name, c := range map[string]struct {
		attempt int
		ms      float64
		want    time.Duration
	}{
		"TakenOver":            {2, 59_500, 59500 * time.Millisecond},
		"TakenOverNotMeasured": {2, 0, time.Minute},
		"TakenOverNotBelieved": {2, 1e9, time.Minute},
		"FirstWorker":          {1, 12_000, 12 * time.Second},
		"FirstNotBelieved":     {1, 59_500, 13 * time.Second},
	} {
		if got := runTime(&farm.Job{Attempt: c.attempt, StartedAt: start}, c.ms, attached, now); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

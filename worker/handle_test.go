package worker

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/execution"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

func TestCommandFromTaskToRecord(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	b.agent(box, w)
	job := b.Command(box, `echo out; echo err >&2; echo kept > made.txt; exit 3`)
	testbed.Must(t, w.handle(t.Context(), workertest.Task(job)))
	got := b.Job(job)
	testbed.Require(t, got.State == farm.JobCompleted && got.Result != nil && got.Result.Command != nil, "job %+v, error %+v", got, got.Error)
	o := got.Result.Command.Commands[0]
	testbed.Require(t, o.Stdout == "out\n" && o.Stderr == "err\n" && o.ExitCode == 3, "outcome %+v", o)
	if a := got.Result.Artifacts; len(a) != 1 || a[0].Path != "made.txt" || a[0].Size != 5 || a[0].ContentType != "text/plain; charset=utf-8" {
		t.Fatalf("artifacts %+v", a)
	}
	body, _, err := b.Blobs.Get(t.Context(), got.Result.Artifacts[0].Key, 0, 0)
	testbed.Must(t, err)
	kept, err := io.ReadAll(body)
	err = errors.Join(err, body.Close())
	testbed.Require(t, err == nil && string(kept) == "kept\n", "artifact holds %q: %v", kept, err)
	testbed.Require(t, b.Stdout(job) == "out\n", "events say %q", b.Stdout(job))
	b.SandboxIs(box, farm.SandboxReady)
}

// A worker that stops leaves its job running, and the next worker adds the rest of the output: every line appears once.
func TestTakeoverKeepsEveryLineOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second, box := b.worker(), b.worker(), b.Ready()
	a := b.agent(box, first, second)
	job := b.Command(box, `i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); while [ $i = 20 ] && [ ! -e go ]; do sleep 0.02; done; done; echo x >> runs; rm go`)
	handled := b.begin(first, job)
	testbed.Until(t, "some lines are events", func() bool { return strings.Contains(b.Stdout(job), "line 5\n") })
	first.stop(node.ErrStopping)
	testbed.Must(t, <-handled)
	if got := b.Job(job); got.State != farm.JobRunning || got.Attempt != 1 || got.GracefulRequeues != 1 || got.Worker == first.id {
		t.Fatalf("the job of a stopped worker is %s, attempt %d, spared %d, of worker %s", got.State, got.Attempt, got.GracefulRequeues, got.Worker)
	}
	first.Stop()
	testbed.Must(t, b.Store.RemoveWorker(t.Context(), first.id))
	_, err := a.Write(t.Context(), "go", strings.NewReader("now"))
	testbed.Must(t, err)
	testbed.Must(t, second.handle(t.Context(), workertest.Task(job)))

	var want strings.Builder
	for i := range 40 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	got := b.Job(job)
	testbed.Require(t, got.State == farm.JobCompleted && got.Attempt == 2, "job is %s, attempt %d, error %+v", got.State, got.Attempt, got.Error)
	text := got.Result.Command.Commands[0].Stdout
	testbed.Require(t, text == want.String(), "the result's output is %q", text)
	text = b.Stdout(job)
	testbed.Require(t, text == want.String(), "the events' output is %q", text)
	if a := got.Result.Artifacts; len(a) != 1 || a[0].Size != 2 {
		t.Fatalf("the code ran more than once, or left nothing: %+v", a)
	}
}

// A task that is delivered again while its job is active must not run the job twice.
func TestTaskDeliveredTwiceRunsOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	b.agent(box, w)
	job := b.Command(box, `echo began; while [ ! -e go ]; do sleep 0.02; done`)
	handled := b.begin(w, job)
	testbed.Until(t, "the command has begun", func() bool { return b.Stdout(job) == "began\n" })
	got := b.done(w, job, farm.JobRunning)
	testbed.Require(t, got.Attempt == 1, "the second task made the job %s, attempt %d", got.State, got.Attempt)
	c, err := w.node.Connect(t.Context(), b.Sandbox(box))
	testbed.Must(t, err)
	_, err = c.Write(t.Context(), "go", strings.NewReader("now"))
	testbed.Must(t, err)
	testbed.Must(t, <-handled)
	b.JobIs(job, farm.JobCompleted)
	jobs, _ := w.jobs.count()
	testbed.Require(t, jobs == 0 && w.jobs.reserve(job) != nil, "the job is still active")
}

func TestCancelEndsRunningCommandAndKeepsItsOutput(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	b.agent(box, w)
	b.watchCancels(w)
	job := b.Command(box, `echo before; exec sleep 60`)
	handled := b.begin(w, job)
	testbed.Until(t, "the command has begun", func() bool { return b.Stdout(job) == "before\n" })
	_, err := w.dispatch.Cancel(t.Context(), job)
	testbed.Must(t, err)
	testbed.Must(t, <-handled)
	if got := b.Job(job); got.State != farm.JobCanceled || got.Result.Command.Commands[0].Stdout != "before\n" || got.Error != nil {
		t.Fatalf("job %s, result %+v, error %+v", got.State, got.Result, got.Error)
	}
}

// A panic of a handler ends the job.
func TestPanicFailsTheJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	b.agent(box, w)
	job := b.Accept(farm.KindFile, box.ID, &farm.Request{}, nil) // no File: the handler dereferences nil
	testbed.Must(t, w.handle(t.Context(), workertest.Task(job)))
	got := b.Job(job)
	if got.State != farm.JobFailed || got.Error == nil || got.Error.Code != farm.CodeInternal || strings.Contains(got.Error.Message, "panic") {
		t.Fatalf("job %s, error %+v", got.State, got.Error)
	}
}

func TestGoneContainerLosesJobAndSandbox(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	b.agent(box, w)
	job, waiting := b.Command(box, `echo began; exec sleep 60`), b.Command(box, `echo never`)
	handled := b.begin(w, job)
	testbed.Until(t, "the command has begun", func() bool { return b.Stdout(job) == "began\n" })
	b.Fake.Put(box.ID, false)
	c, err := w.node.Connect(t.Context(), b.Sandbox(box))
	testbed.Must(t, err)
	testbed.Must(t, c.Close())
	testbed.Must(t, <-handled)
	got := b.Job(job)
	testbed.Require(t, got.State == farm.JobLost && strings.Contains(got.Error.Message, "memory limit"), "job %s, error %+v", got.State, got.Error)
	s := b.Sandbox(box)
	testbed.Require(t, s.State == farm.SandboxLost && !b.Fake.Has(box.ID), "sandbox is %s, container there: %v", s.State, b.Fake.Has(box.ID))
	b.JobIs(waiting, farm.JobLost)
}

// Sizes come from an untrusted agent. A negative size used to crash the process.
func TestFileOfNegativeSizeLosesTheSandbox(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	b.Fake.Put(box.ID, true)
	c := workertest.Hostile(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Entry", `{"path":"a","size":-5,"type":"file"}`)
	}))
	join(t, w, box, func() *client.Client { return c })
	job := b.Accept(farm.KindFile, box.ID, &farm.Request{File: &farm.FileRequest{Op: farm.FileRead, Path: "a"}}, func(a *store.Accept) { a.Job.Inline = true })
	if got := b.done(w, job, farm.JobLost); b.Sandbox(box).State != farm.SandboxLost {
		t.Fatalf("job %s, sandbox %s", got.State, b.Sandbox(box).State)
	}
}

func TestCloseCancelsRunningAndWaitingJobs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	b.agent(box, w)
	b.watchCancels(w)
	background := b.Accept(farm.KindCommand, box.ID, &farm.Request{Command: &farm.CommandRequest{Commands: []string{"echo began; exec sleep 60"}, Background: true}}, nil)
	handled := b.begin(w, background)
	testbed.Until(t, "the command has begun", func() bool { return b.Stdout(background) == "began\n" })
	waiting := b.Command(box, "echo never")
	closing := b.CloseJob(box)
	testbed.Must(t, w.handle(t.Context(), workertest.Task(closing)))
	testbed.Must(t, <-handled)
	if got := b.Job(background); got.State != farm.JobCanceled || got.Result == nil || got.Result.Command.Commands[0].Stdout != "began\n" {
		t.Errorf("the running job is %s, result %+v", got.State, got.Result)
	}
	b.JobIs(waiting, farm.JobCanceled)
	for _, job := range []farm.Ref{background, waiting} {
		if got := b.Job(job); got.Error == nil || got.Error.Code != farm.CodeConflict || got.Error.Message != execution.ClosedMessage {
			t.Errorf("the caller of a job whose sandbox was closed gets %+v", got.Error)
		}
	}
	b.JobIs(closing, farm.JobCompleted)
	s := b.Sandbox(box)
	testbed.Check(t, s.State == farm.SandboxClosed && !b.Fake.Has(box.ID), "sandbox is %s, container exists: %v", s.State, b.Fake.Has(box.ID))
}

// A create job that fails during a close must not end the close job: the sandbox used to stay closing.
func TestFailedCreateLeavesTheCloseJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	job, box := b.Creation(farm.KindCreate)
	claim := b.Claim(job, w.id)
	b.Move(box, farm.SandboxStarting)
	b.Fake.Put(box.ID, true)
	closing := b.CloseJob(box)
	r := claimedJob(claim)
	if err := w.abandon(t.Context(), r, workertest.ErrTest); !errors.Is(err, execution.ErrCanceled) {
		t.Errorf("abandoning gave %v", err)
	}
	testbed.Check(t, !b.Fake.Has(box.ID), "the container still exists")
	b.JobIs(closing, farm.JobQueued)
	_, err := w.finish(t.Context(), r, execution.Outcome{State: farm.JobCanceled})
	testbed.Must(t, err)
	if got, s := b.done(w, closing, farm.JobCompleted), b.Sandbox(box); s.State != farm.SandboxClosed {
		t.Errorf("close job %s, sandbox %s", got.State, s.State)
	}
}

func TestFailedCreateEndsWaitingJobsWithAReason(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	job, box := b.Creation(farm.KindCreate)
	waiting := b.Command(box, "true")
	got := b.done(w, job, farm.JobFailed)
	testbed.Require(t, got.Error != nil, "job %s, error %+v", got.State, got.Error)
	s := b.Sandbox(box)
	testbed.Check(t, s.State == farm.SandboxFailed && s.Reason != "", "sandbox %s, reason %q", s.State, s.Reason)
	if got := b.Job(waiting); got.State != farm.JobCanceled || !strings.Contains(got.Error.Message, "did not become ready") {
		t.Errorf("the waiting job is %s: %+v", got.State, got.Error)
	}
}

func TestStoppingWorkerEndsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	job, box := b.Creation(farm.KindCreate)
	w.stop(node.ErrStopping)
	got, s := b.done(w, job, farm.JobRunning), b.Sandbox(box)
	testbed.Check(t, got.GracefulRequeues == 1 && !s.State.Final(), "spared %d, sandbox %s", got.GracefulRequeues, s.State)
}

// A job that another process ends, as one whose sandbox is closed and that does not stop in time, leaves nothing that its worker had staged for a
// takeover: it is charged for minutes only.
func TestJobThatWasEndedLeavesNothingStaged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	a := b.agent(box, w)
	job := b.Command(box, `head -c 12000000 /dev/zero | tr '\0' x; while [ ! -e go ]; do sleep 0.02; done`)
	handled := b.begin(w, job)
	staged := func() (n int) {
		testbed.Must(t, b.Blobs.List(t.Context(), farm.SnapshotsOf(job), func(blob.Info) error {
			n++
			return nil
		}))
		return n
	}
	testbed.Until(t, "output is staged", func() bool { return staged() > 0 })
	testbed.Must(t, w.dispatch.Force(t.Context(), job, farm.JobCanceled, &farm.JobError{Code: farm.CodeConflict, Message: execution.ClosedMessage}))
	_, err := a.Write(t.Context(), "go", strings.NewReader("now"))
	testbed.Must(t, err)
	<-handled
	w.executions.Wait()
	n, err := b.Blobs.AbortUploads(t.Context(), farm.ArtifactsOf(box.ID, job), time.Now().Add(time.Hour))
	testbed.Check(t, staged() == 0 && n == 0 && err == nil, "%d snapshots and %d uploads are left, %v", staged(), n, err)
}

// If the container of a closing sandbox is removed while jobs run in it, they are cancelled, not lost.
func TestJobOfAClosingSandboxIsNotLost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	job := b.Command(box, "true")
	claim := b.Claim(job, w.id)
	closing := b.CloseJob(box)
	v := w.failure(t.Context(), claimedJob(claim), node.ErrGone)
	testbed.Check(t, v.State == farm.JobCanceled && v.Err.Message == execution.ClosedMessage, "execution.Outcome %+v", v)
	got, s := b.Job(closing), b.Sandbox(box)
	testbed.Check(t, got.State == farm.JobQueued && s.State == farm.SandboxClosing, "close job %s, sandbox %s", got.State, s.State)
}

func TestOneShotSandboxIsClosedAfterItsJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	job, box := b.Creation(farm.KindRun)
	b.Move(box, farm.SandboxStarting, farm.SandboxReady) // as an earlier attempt left it
	b.agent(box, w)
	got := b.done(w, job, farm.JobCompleted)
	testbed.Require(t, got.Result.Command.Commands[0].Stdout == "one shot\n", "job %s, result %+v, error %+v", got.State, got.Result, got.Error)
	testbed.Until(t, "the sandbox is closed", func() bool { return b.Sandbox(box).State == farm.SandboxClosed })
	testbed.Check(t, !b.Fake.Has(box.ID), "the container still exists")
	asked, err := b.Store.CancelRequested(t.Context(), job)
	testbed.Check(t, err == nil && !asked, "the finished job was cancelled: %v %v", asked, err)
}

// A fenced worker must not close the sandbox that another worker uses.
func TestOneShotOfAnotherWorkerStaysOpen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.worker(), b.worker()
	job, box := b.Creation(farm.KindRun)
	b.Move(box, farm.SandboxStarting, farm.SandboxReady)
	a := b.agent(box, first)
	claim := b.Claim(job, first.id)
	r := claimedJob(claim)
	v, err := first.perform(t.Context(), r)
	testbed.Must(t, err)
	testbed.Must(t, b.Store.RemoveWorker(t.Context(), first.id))
	taken := b.Claim(job, second.id)
	if committed, err := first.finish(t.Context(), r, v); committed || err != nil {
		t.Fatalf("a fenced worker committed: %v %v", committed, err)
	}
	s := b.Sandbox(box)
	testbed.Require(t, s.State == farm.SandboxClosing && b.Fake.Has(box.ID), "sandbox %s, container exists: %v", s.State, b.Fake.Has(box.ID))
	testbed.Must(t, second.reconciler.Run(t.Context())) // its job has not ended
	testbed.Require(t, b.Fake.Has(box.ID), "the reconciler removed the container of a running job")
	testbed.Must(t, second.node.UseConnection(t.Context(), box.ID, func() *client.Client { return a.Client }))
	v, err = second.perform(t.Context(), claimedJob(taken))
	testbed.Must(t, err)
	testbed.Require(t, v.State == farm.JobCompleted && v.Result.Command.Commands[0].Stdout == "one shot\n", "execution.Outcome %+v", v)
}

// Input files are not written again once the code has started, since it may have changed them.
func TestTakeoverOfOneShotKeepsItsFiles(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	job, box := b.Creation(farm.KindRun)
	b.Move(box, farm.SandboxStarting, farm.SandboxReady)
	a := b.agent(box, w)
	claim := b.Claim(job, w.id)
	claim.Request.Files = []farm.InputFile{{Path: "in.txt", Content: []byte("input"), Size: 5}}
	r := claimedJob(claim)
	content := func() string {
		body, _, err := a.Open(t.Context(), "in.txt", 0, 0)
		testbed.Must(t, err)
		defer func() { _ = body.Close() }()
		var text [100]byte
		n, _ := body.Read(text[:])
		return string(text[:n])
	}
	testbed.Must(t, w.executions.WriteInputs(t.Context(), r.task(), claim.Sandbox))
	if content() != "input" {
		t.Fatalf("the file holds %q", content())
	}
	claim.Job.Attempt = 2
	_, err := a.Write(t.Context(), "in.txt", strings.NewReader("changed"))
	testbed.Must(t, err)
	testbed.Must(t, w.executions.WriteInputs(t.Context(), r.task(), claim.Sandbox)) // the code had not started
	if content() != "input" {
		t.Fatalf("the file holds %q", content())
	}
	testbed.Must(t, a.Start(t.Context(), job.ID, agent.Spec{Kind: farm.KindCommand, Commands: claim.Request.Command.Commands, Timeout: time.Minute}))
	_, err = a.Write(t.Context(), "in.txt", strings.NewReader("changed"))
	testbed.Must(t, err)
	testbed.Must(t, w.executions.WriteInputs(t.Context(), r.task(), claim.Sandbox))
	if content() != "changed" {
		t.Fatalf("the file holds %q", content())
	}
}

func TestJobOfASandboxWithoutRecordIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	job := b.Command(box, "true")
	b.Redis.Del("sf:{" + workertest.Tenant + "}:sbx:" + box.ID)
	got := b.done(w, job, farm.JobFailed)
	testbed.Require(t, got.Error.Code == farm.CodeConflict, "job %s, error %+v", got.State, got.Error)
}

// The list that a job has made is charged while it is stored, which the object store may delay, and given back then.
func TestAListIsChargedWhileItIsStored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deps.Memory = budget.New(64 << 20)
	charged := make(chan int64, 10) // a write may be repeated
	b.Blobs = b.BlobsBehind(func(s3 http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/result-") && r.Method == http.MethodPut {
				charged <- b.deps.Memory.Stats().Used
			}
			s3.ServeHTTP(w, r)
		})
	})
	b.deps.Store = b.StoreBehind(testbed.Hook(func(cmds []redis.Cmder, next func(...redis.Cmder) error) error { return next(cmds...) }))
	rdb := redis.NewClient(&redis.Options{Addr: b.Redis.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	b.deps.Dispatch = dispatch.New(b.deps.Store, queue.NewClient(rdb, b.Log), farm.DefaultLimits(), b.Log)
	w, box := b.worker(), b.Ready()
	b.Fake.Put(box.ID, true)
	list := `{"entries":[` + strings.Repeat(`{"path":"a","size":1,"mode":"0644","type":"file"},`, 9999) + `{"path":"b","size":1,"mode":"0644","type":"file"}]}`
	c := workertest.Hostile(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, list) }))
	join(t, w, box, func() *client.Client { return c })
	got := b.done(w, b.Accept(farm.KindFile, box.ID, &farm.Request{File: &farm.FileRequest{Op: farm.FileList}}, func(a *store.Accept) { a.Job.Inline = true }), farm.JobCompleted)
	testbed.Check(t, len(got.Result.File.Entries) == 10_000, "%d entries", len(got.Result.File.Entries))
	least := 3 * int64(10_000*client.EntryBytes)
	held := <-charged
	testbed.Check(t, held >= least, "%d bytes were charged while it was stored, want %d", held, least)
	testbed.Check(t, b.deps.Memory.Stats().Used == 0, "afterwards %+v is held", b.deps.Memory.Stats())
}

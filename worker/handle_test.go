package worker

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

func TestCommandFromTaskToRecord(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	b.agent(box, w)
	job := b.Command(box, `echo out; echo err >&2; echo kept > made.txt; exit 3`)
	workertest.Must(t, w.handle(t.Context(), workertest.Task(job)))
	got := b.Job(job)
	testbed.Require(t, got.State == farm.JobCompleted && got.Result != nil && got.Result.Command != nil, "job %+v, error %+v", got, got.Error)
	o := got.Result.Command.Commands[0]
	testbed.Require(t, o.Stdout == "out\n" && o.Stderr == "err\n" && o.ExitCode == 3, "outcome %+v", o)
	if a := got.Result.Artifacts; len(a) != 1 || a[0].Path != "made.txt" || a[0].Size != 5 || a[0].ContentType != "text/plain; charset=utf-8" {
		t.Fatalf("artifacts %+v", a)
	}
	body, _, err := b.Blobs.Get(t.Context(), got.Result.Artifacts[0].Key, 0, 0)
	workertest.Must(t, err)
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
	workertest.Must(t, b.Store.RemoveWorker(t.Context(), first.id))
	_, err := a.Write(t.Context(), "go", strings.NewReader("now"))
	workertest.Must(t, err)
	workertest.Must(t, second.handle(t.Context(), workertest.Task(job)))

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
	workertest.Must(t, err)
	_, err = c.Write(t.Context(), "go", strings.NewReader("now"))
	workertest.Must(t, err)
	workertest.Must(t, <-handled)
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
	workertest.Must(t, err)
	workertest.Must(t, <-handled)
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
	workertest.Must(t, w.handle(t.Context(), workertest.Task(job)))
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
	workertest.Must(t, err)
	workertest.Must(t, c.Close())
	workertest.Must(t, <-handled)
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

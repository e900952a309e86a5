package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

func TestCommandFromTaskToRecord(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.ready()
	b.agent(box, w)
	job := b.command(box, `echo out; echo err >&2; echo kept > made.txt; exit 3`)
	must(t, w.handle(t.Context(), task(job)))
	got := b.job(job)
	if got.State != farm.JobCompleted || got.Result == nil || got.Result.Command == nil {
		t.Fatalf("job %+v, error %+v", got, got.Error)
	}
	o := got.Result.Command.Commands[0]
	if o.Stdout != "out\n" || o.Stderr != "err\n" || o.ExitCode != 3 {
		t.Fatalf("outcome %+v", o)
	}
	if a := got.Result.Artifacts; len(a) != 1 || a[0].Path != "made.txt" || a[0].Size != 5 || a[0].ContentType != "text/plain; charset=utf-8" {
		t.Fatalf("artifacts %+v", a)
	}
	body, _, err := w.blobs.Get(t.Context(), got.Result.Artifacts[0].Key, 0, 0)
	must(t, err)
	kept, err := io.ReadAll(body)
	if err := errors.Join(err, body.Close()); err != nil || string(kept) != "kept\n" {
		t.Fatalf("artifact holds %q: %v", kept, err)
	}
	if b.stdout(job) != "out\n" {
		t.Fatalf("events say %q", b.stdout(job))
	}
	if s := b.sandbox(box); s.State != farm.SandboxReady {
		t.Fatalf("sandbox is %s behind the job", s.State)
	}
}

// A worker that stops in the middle leaves the job running, and the next one gives every line once.
func TestTakeoverGivesEveryLineOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second, box := b.worker(), b.worker(), b.ready()
	b.agent(box, first, second)
	job := b.command(box, `i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); sleep 0.02; done; echo x >> runs`)
	handled := make(chan error, 1)
	go func() { handled <- first.handle(t.Context(), task(job)) }()
	until(t, "some lines are events", func() bool { return strings.Contains(b.stdout(job), "line 5\n") })
	first.stop(errStopping)
	if err := <-handled; err != nil {
		t.Fatalf("a stopping worker gave %v", err)
	}
	if got := b.job(job); got.State != farm.JobRunning || got.Attempt != 1 || got.Uncounted != 1 || got.Worker == first.id {
		t.Fatalf("the job of a stopped worker is %s, attempt %d, spared %d, of worker %s", got.State, got.Attempt, got.Uncounted, got.Worker)
	}
	first.Stop()
	must(t, b.store.RemoveWorker(t.Context(), first.id))
	must(t, second.handle(t.Context(), task(job)))

	var want strings.Builder
	for i := range 40 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	got := b.job(job)
	if got.State != farm.JobCompleted || got.Attempt != 2 {
		t.Fatalf("job is %s, attempt %d, error %+v", got.State, got.Attempt, got.Error)
	}
	if text := got.Result.Command.Commands[0].Stdout; text != want.String() {
		t.Fatalf("the result's output is %q", text)
	}
	if text := b.stdout(job); text != want.String() {
		t.Fatalf("the events' output is %q", text)
	}
	if a := got.Result.Artifacts; len(a) != 1 || a[0].Size != 2 {
		t.Fatalf("the code ran more than once, or left nothing: %+v", a)
	}
}

// A task that comes again while its job is in hand must not run beside itself.
func TestTaskThatComesTwiceRunsOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.ready()
	b.agent(box, w)
	job := b.command(box, `echo began; while [ ! -e go ]; do sleep 0.02; done`)
	handled := make(chan error, 1)
	go func() { handled <- w.handle(t.Context(), task(job)) }()
	until(t, "the command has begun", func() bool { return b.stdout(job) == "began\n" })
	must(t, w.handle(t.Context(), task(job)))
	if got := b.job(job); got.State != farm.JobRunning || got.Attempt != 1 {
		t.Fatalf("the second task made the job %s, attempt %d", got.State, got.Attempt)
	}
	c, err := w.link(t.Context(), b.sandbox(box))
	must(t, err)
	_, err = c.Write(t.Context(), "go", strings.NewReader("now"))
	must(t, err)
	must(t, <-handled)
	if got := b.job(job); got.State != farm.JobCompleted {
		t.Fatalf("the job is %s", got.State)
	}
	if jobs, _ := w.runs.count(); jobs != 0 || !w.runs.reserve(job.ID) {
		t.Fatal("the job is still in hand")
	}
}

func TestCancelEndsRunningCommandAndKeepsItsOutput(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.ready()
	b.agent(box, w)
	cancels, err := b.store.Cancels(t.Context())
	must(t, err)
	w.background.Go(func() { w.watchCancels(cancels) })
	job := b.command(box, `echo before; exec sleep 60`)
	handled := make(chan error, 1)
	go func() { handled <- w.handle(t.Context(), task(job)) }()
	until(t, "the command has begun", func() bool { return b.stdout(job) == "before\n" })
	_, err = w.dispatch.Cancel(t.Context(), job)
	must(t, err)
	must(t, <-handled)
	if got := b.job(job); got.State != farm.JobCanceled || got.Result.Command.Commands[0].Stdout != "before\n" || got.Error != nil {
		t.Fatalf("job %s, result %+v, error %+v", got.State, got.Result, got.Error)
	}
}

// A fault of ours ends the job; nobody else would.
func TestPanicFailsTheJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.ready()
	b.agent(box, w)
	job := b.accept(farm.KindFile, box.ID, &farm.Request{}, nil) // no File: the handler steps on nil
	must(t, w.handle(t.Context(), task(job)))
	got := b.job(job)
	if got.State != farm.JobFailed || got.Error == nil || got.Error.Code != farm.CodeInternal || strings.Contains(got.Error.Message, "panic") {
		t.Fatalf("job %s, error %+v", got.State, got.Error)
	}
}

func TestContainerThatIsGoneLosesJobAndSandbox(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.ready()
	b.agent(box, w)
	job, waiting := b.command(box, `echo began; exec sleep 60`), b.command(box, `echo never`)
	handled := make(chan error, 1)
	go func() { handled <- w.handle(t.Context(), task(job)) }()
	until(t, "the command has begun", func() bool { return b.stdout(job) == "began\n" })
	b.eng.put(box.ID, false)
	c, err := w.link(t.Context(), b.sandbox(box))
	must(t, err)
	must(t, c.Close())
	must(t, <-handled)
	got := b.job(job)
	if got.State != farm.JobLost || !strings.Contains(got.Error.Message, "memory limit") {
		t.Fatalf("job %s, error %+v", got.State, got.Error)
	}
	if s := b.sandbox(box); s.State != farm.SandboxLost || b.eng.has(box.ID) {
		t.Fatalf("sandbox is %s, container there: %v", s.State, b.eng.has(box.ID))
	}
	if got := b.job(waiting); got.State != farm.JobLost {
		t.Fatalf("the job behind it is %s", got.State)
	}
}

// Sizes come from hostile ground. One below zero ended the process.
func TestFileOfNegativeSizeIsHostile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.ready()
	b.eng.put(box.ID, true)
	c := hostile(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Entry", `{"path":"a","size":-5,"type":"file"}`)
	}))
	join(t, w, box, func() *client.Client { return c })
	e := &execution{job: &farm.Job{ID: "job_x", Tenant: tenant}, sandbox: b.sandbox(box)}
	if _, err := w.copyFile(t.Context(), c, e, "a"); !errors.Is(err, errHostile) {
		t.Fatalf("copying gave %v", err)
	}
	job := b.accept(farm.KindFile, box.ID, &farm.Request{File: &farm.FileRequest{Op: farm.FileRead, Path: "a"}}, func(a *store.Accept) { a.Job.Inline = true })
	must(t, w.handle(t.Context(), task(job)))
	if got := b.job(job); got.State != farm.JobLost || b.sandbox(box).State != farm.SandboxLost {
		t.Fatalf("job %s, sandbox %s", got.State, b.sandbox(box).State)
	}
}

func TestEventsOutliveAnOutageOfRedis(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.UploadRetry = 1 // one try
	w, box := b.worker(), b.ready()
	job := b.command(box, "true")
	claim, err := b.store.Claim(t.Context(), job, w.id)
	must(t, err)
	e := &execution{job: claim.Job, request: claim.Request, sandbox: claim.Sandbox, collect: newCollector(claim.Job, claim.Request, w.cfg.Limits, 0)}
	must(t, e.collect.add(start(1, 0)))
	must(t, e.collect.add(out(2, "kept")))
	b.redis.SetError("LOADING")
	if err := w.publish(t.Context(), e); err == nil {
		t.Fatal("the events were taken by a Redis that is down")
	}
	b.redis.SetError("")
	must(t, e.collect.add(out(3, " too")))
	must(t, w.publish(t.Context(), e))
	if got := b.stdout(job); got != "kept too" {
		t.Fatalf("events say %q", got)
	}
}

func TestCallbackTasksNeedNoRecord(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	call := task(farm.Ref{Tenant: tenant, ID: "job_x"})
	call.Type = "callback"
	must(t, w.handle(t.Context(), call))
	w.deps.Callback = func(context.Context, farm.Ref) error { return errTest }
	if err := w.handle(t.Context(), call); !errors.Is(err, errTest) {
		t.Fatalf("callback gave %v", err)
	}
	must(t, w.handle(t.Context(), task(call.Ref))) // a job that nobody knows is done
}

package worker

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestCloseCancelsWhatRunsAndWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.ready()
	b.agent(box, w)
	cancels, err := b.store.Cancels(t.Context())
	must(t, err)
	w.background.Go(func() { w.watchCancels(cancels) })
	background := b.accept(farm.KindCommand, box.ID, &farm.Request{Command: &farm.CommandRequest{Commands: []string{"echo began; exec sleep 60"}, Background: true}}, nil)
	handled := make(chan error, 1)
	go func() { handled <- w.handle(t.Context(), task(background)) }()
	until(t, "the command has begun", func() bool { return b.stdout(background) == "began\n" })
	waiting := b.command(box, "echo never")
	closing := b.closeJob(box)
	must(t, w.handle(t.Context(), task(closing)))
	must(t, <-handled)
	if got := b.job(background); got.State != farm.JobCanceled || got.Result == nil || got.Result.Command.Commands[0].Stdout != "began\n" {
		t.Errorf("the running job is %s, result %+v", got.State, got.Result)
	}
	if got := b.job(waiting); got.State != farm.JobCanceled {
		t.Errorf("the waiting job is %s", got.State)
	}
	for _, job := range []farm.Ref{background, waiting} {
		if got := b.job(job); got.Error == nil || got.Error.Code != farm.CodeConflict || got.Error.Message != closedUnder {
			t.Errorf("the caller of a job that went with its sandbox is told %+v", got.Error)
		}
	}
	if got := b.job(closing); got.State != farm.JobCompleted {
		t.Errorf("the close job is %s: %+v", got.State, got.Error)
	}
	if s := b.sandbox(box); s.State != farm.SandboxClosed || b.eng.has(box.ID) {
		t.Errorf("sandbox is %s, container there: %v", s.State, b.eng.has(box.ID))
	}
}

// A create job that fails under a close must leave the close job alone: it ended it, and the sandbox stayed closing.
func TestAbandonedCreationLeavesTheCloseJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	job, box := b.creation(farm.KindCreate)
	claim, err := b.store.Claim(t.Context(), job, w.id)
	must(t, err)
	b.move(box, farm.SandboxStarting)
	b.eng.put(box.ID, true)
	closing := b.closeJob(box)
	r := &run{Claim: claim, cancel: make(chan struct{})}
	if err := w.abandon(t.Context(), r, errTest); !errors.Is(err, errCanceled) {
		t.Errorf("abandoning gave %v", err)
	}
	if b.eng.has(box.ID) {
		t.Error("the container is still there")
	}
	if got := b.job(closing); got.State != farm.JobQueued {
		t.Fatalf("the close job is %s", got.State)
	}
	_, err = w.finish(t.Context(), r, verdict{state: farm.JobCanceled})
	must(t, err)
	must(t, w.handle(t.Context(), task(closing)))
	if got, s := b.job(closing), b.sandbox(box); got.State != farm.JobCompleted || s.State != farm.SandboxClosed {
		t.Errorf("close job %s, sandbox %s", got.State, s.State)
	}
}

func TestFailedCreationEndsWhatWaitsAndTellsWhy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	job, box := b.creation(farm.KindCreate)
	waiting := b.command(box, "true")
	must(t, w.handle(t.Context(), task(job))) // the fake engine has no images
	if got := b.job(job); got.State != farm.JobFailed || got.Error == nil {
		t.Fatalf("job %s, error %+v", got.State, got.Error)
	}
	if s := b.sandbox(box); s.State != farm.SandboxFailed || s.Reason == "" {
		t.Errorf("sandbox %s, reason %q", s.State, s.Reason)
	}
	if got := b.job(waiting); got.State != farm.JobCanceled || !strings.Contains(got.Error.Message, "did not become ready") {
		t.Errorf("the waiting job is %s: %+v", got.State, got.Error)
	}
}

func TestStoppingWorkerAbandonsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	job, box := b.creation(farm.KindCreate)
	w.stop(errStopping)
	must(t, w.handle(t.Context(), task(job)))
	if got, s := b.job(job), b.sandbox(box); got.State != farm.JobRunning || got.Uncounted != 1 || s.State.Final() {
		t.Fatalf("job %s, spared %d, sandbox %s", got.State, got.Uncounted, s.State)
	}
}

// The container of a sandbox that is being closed goes under what runs in it: that is no loss.
func TestGoneUnderACloseIsNotLost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.ready()
	job := b.command(box, "true")
	claim, err := b.store.Claim(t.Context(), job, w.id)
	must(t, err)
	closing := b.closeJob(box)
	v := w.failure(t.Context(), &run{Claim: claim}, errGone)
	if v.state != farm.JobCanceled || v.err.Message != closedUnder {
		t.Errorf("verdict %+v", v)
	}
	if got, s := b.job(closing), b.sandbox(box); got.State != farm.JobQueued || s.State != farm.SandboxClosing {
		t.Errorf("close job %s, sandbox %s", got.State, s.State)
	}
}

func TestOneShotIsClosedBehindItsEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	job, box := b.creation(farm.KindRun)
	b.move(box, farm.SandboxStarting, farm.SandboxReady) // as if a worker before had come this far
	b.agent(box, w)
	must(t, w.handle(t.Context(), task(job)))
	if got := b.job(job); got.State != farm.JobCompleted || got.Result.Command.Commands[0].Stdout != "one shot\n" {
		t.Fatalf("job %s, result %+v, error %+v", got.State, got.Result, got.Error)
	}
	until(t, "the sandbox is closed", func() bool { return b.sandbox(box).State == farm.SandboxClosed })
	if b.eng.has(box.ID) {
		t.Error("the container is still there")
	}
	if asked, err := b.store.CancelRequested(t.Context(), job); err != nil || asked {
		t.Errorf("the finished job was cancelled: %v %v", asked, err)
	}
}

// A worker whose fence is old must not close the sandbox that another one uses.
func TestOneShotOfAnotherWorkerStaysOpen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.worker(), b.worker()
	job, box := b.creation(farm.KindRun)
	b.move(box, farm.SandboxStarting, farm.SandboxReady)
	a := b.agent(box, first)
	claim, err := b.store.Claim(t.Context(), job, first.id)
	must(t, err)
	r := &run{Claim: claim, cancel: make(chan struct{})}
	v, err := first.perform(t.Context(), r)
	must(t, err)
	must(t, b.store.RemoveWorker(t.Context(), first.id))
	taken, err := b.store.Claim(t.Context(), job, second.id)
	must(t, err)
	if committed, err := first.finish(t.Context(), r, v); committed || err != nil {
		t.Fatalf("a fenced worker committed: %v %v", committed, err)
	}
	if s := b.sandbox(box); s.State != farm.SandboxClosing || !b.eng.has(box.ID) {
		t.Fatalf("sandbox %s, container there: %v", s.State, b.eng.has(box.ID))
	}
	must(t, second.reconcile(t.Context())) // its job has not ended
	if !b.eng.has(box.ID) {
		t.Fatal("the reconciler took the container from under the job")
	}
	joinAgent(b, second, box, a.Client)
	v, err = second.perform(t.Context(), &run{Claim: taken, cancel: make(chan struct{})})
	must(t, err)
	if v.state != farm.JobCompleted || v.result.Command.Commands[0].Stdout != "one shot\n" {
		t.Fatalf("verdict %+v", v)
	}
}

// Files that came with a request are not written again under code that may have changed them.
func TestTakeoverOfOneShotKeepsItsFiles(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	job, box := b.creation(farm.KindRun)
	b.move(box, farm.SandboxStarting, farm.SandboxReady)
	a := b.agent(box, w)
	claim, err := b.store.Claim(t.Context(), job, w.id)
	must(t, err)
	claim.Request.Files = []farm.InputFile{{Path: "in.txt", Content: []byte("input"), Size: 5}}
	r := &run{Claim: claim}
	content := func() string {
		body, _, err := a.Open(t.Context(), "in.txt", 0, 0)
		must(t, err)
		defer func() { _ = body.Close() }()
		var text [100]byte
		n, _ := body.Read(text[:])
		return string(text[:n])
	}
	must(t, w.putInputs(t.Context(), r, claim.Sandbox))
	if content() != "input" {
		t.Fatalf("the file holds %q", content())
	}
	claim.Job.Attempt = 2
	_, err = a.Write(t.Context(), "in.txt", strings.NewReader("changed"))
	must(t, err)
	must(t, w.putInputs(t.Context(), r, claim.Sandbox)) // the code had not begun
	if content() != "input" {
		t.Fatalf("the file holds %q", content())
	}
	must(t, a.Start(t.Context(), job.ID, w.spec(&execution{job: claim.Job, request: claim.Request})))
	_, err = a.Write(t.Context(), "in.txt", strings.NewReader("changed"))
	must(t, err)
	must(t, w.putInputs(t.Context(), r, claim.Sandbox))
	if content() != "changed" {
		t.Fatalf("the file holds %q", content())
	}
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	kept, gone, ended := b.ready(), b.ready(), b.ready()
	b.eng.put(kept.ID, true)
	b.eng.put(ended.ID, false)
	b.eng.put("sbx_nobody", true)

	failed, held := b.ready(), b.ready() // closing: one has no close job any more
	for _, box := range []farm.Ref{failed, held} {
		b.eng.put(box.ID, true)
	}
	closed := b.closeJob(failed)
	b.closeJob(held)
	must(t, w.dispatch.Force(t.Context(), closed, farm.JobFailed, &farm.JobError{Code: farm.CodeInternal, Message: "the engine was busy"}))

	must(t, w.reconcile(t.Context()))
	for box, want := range map[farm.Ref]farm.SandboxState{
		kept: farm.SandboxReady, gone: farm.SandboxLost, ended: farm.SandboxLost, failed: farm.SandboxClosed, held: farm.SandboxClosing,
	} {
		if got := b.sandbox(box).State; got != want {
			t.Errorf("a sandbox is %s, want %s", got, want)
		}
	}
	for id, want := range map[string]bool{kept.ID: true, ended.ID: false, failed.ID: false, held.ID: true, "sbx_nobody": false} {
		if b.eng.has(id) != want {
			t.Errorf("container of %s is there: %v", id, !want)
		}
	}
}

// A container that cannot be removed keeps the reconciler neither from the others nor from the records.
func TestReconcileGoesOnAfterAnError(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	gone := b.ready()
	b.eng.put("sbx_nobody", true)
	b.eng.breakRemovals(true)
	if err := w.reconcile(t.Context()); err == nil {
		t.Error("the error is not told")
	}
	if got := b.sandbox(gone).State; got != farm.SandboxLost {
		t.Errorf("a sandbox without a container is %s", got)
	}
	b.eng.breakRemovals(false)
	must(t, w.reconcile(t.Context()))
	if b.eng.has("sbx_nobody") {
		t.Error("the container is still there")
	}
}

// A close job that the engine refuses leaves its sandbox to the reconciler.
func TestCloseThatFailsIsFinishedLater(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.ready()
	b.eng.put(box.ID, true)
	b.eng.breakRemovals(true)
	closing := b.closeJob(box)
	must(t, w.handle(t.Context(), task(closing)))
	if got := b.job(closing); got.State != farm.JobFailed {
		t.Fatalf("the close job is %s", got.State)
	}
	b.eng.breakRemovals(false)
	must(t, w.reconcile(t.Context()))
	if s := b.sandbox(box); s.State != farm.SandboxClosed || b.eng.has(box.ID) {
		t.Fatalf("sandbox %s, container there: %v", s.State, b.eng.has(box.ID))
	}
}

func joinAgent(b *bundle, w *Worker, box farm.Ref, c *client.Client) {
	b.t.Helper()
	join(b.t, w, box, func() *client.Client { return c })
}

func TestLinksAreSharedAndDialledAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.ready()
	a := b.agent(box)
	dials, release := make(chan struct{}, 10), make(chan struct{})
	dial := func(ctx context.Context) (*client.Client, error) {
		dials <- struct{}{}
		select {
		case <-release:
			return a.Client, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	base := t.Context()
	one, err := w.links.get(base, box.ID, dial)
	must(t, err)
	two, err := w.links.get(base, box.ID, dial)
	must(t, err)
	if one != two {
		t.Fatal("two callers have two links")
	}
	<-dials
	w.links.drop(box.ID) // ends the dial at once
	<-one.ready
	if !errors.Is(one.err, context.Canceled) {
		t.Fatalf("a dropped dial gave %v", one.err)
	}
	close(release)
	three, err := w.links.get(base, box.ID, dial)
	must(t, err)
	<-three.ready
	if three.err != nil || three.over() {
		t.Fatalf("the next dial gave %v", three.err)
	}
	must(t, a.Client.Close()) // breaks: the link is forgotten without another use
	until(t, "the link is forgotten", func() bool {
		w.links.mu.Lock()
		defer w.links.mu.Unlock()
		return len(w.links.open) == 0
	})
	w.links.closeAll()
	if _, err := w.links.get(base, box.ID, dial); !errors.Is(err, errStopping) {
		t.Fatalf("a stopped worker dials: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.worker().link(ended, &farm.Sandbox{ID: "sbx_x", Tenant: tenant}); !errors.Is(err, context.Canceled) && farm.CodeOf(err) != farm.CodeNotFound {
		t.Fatalf("a caller that is gone got %v", err)
	}
}

func TestJobOfASandboxWithoutRecordIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.ready()
	job := b.command(box, "true")
	b.redis.Del("sf:{" + tenant + "}:sbx:" + box.ID)
	must(t, w.handle(t.Context(), task(job)))
	if got := b.job(job); got.State != farm.JobFailed || got.Error.Code != farm.CodeConflict {
		t.Fatalf("job %s, error %+v", got.State, got.Error)
	}
}

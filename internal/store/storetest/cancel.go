package storetest

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func leaveFIFO(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	used := b.sandbox(t, box).LastUsedAt
	background := store.Accept{
		Job:     &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: Tenant, Kind: farm.KindCommand, SandboxID: box.ID},
		Request: &farm.Request{Command: &farm.CommandRequest{Commands: []string{"sleep 100"}, Background: true}},
	}
	b.clock.forward(time.Minute)
	ref := b.accept(t, background).Job.Ref()
	b.claim(t, ref, "w")
	second := b.accept(t, Read(box.ID)).Job // inline: not in the FIFO
	err := b.LeaveFIFO(t.Context(), ref, 2)
	testbed.Check(t, errors.Is(err, store.ErrFenced), "LeaveFIFO of another attempt = %v, want ErrFenced", err)
	b.forgetEnqueued(t)
	if err := b.LeaveFIFO(t.Context(), ref, 1); err != nil {
		t.Errorf("LeaveFIFO = %v", err)
	}
	b.enqueued(t, "leaving a FIFO with no other job")
	if got := b.sandbox(t, box); got.State != farm.SandboxReady || !got.LastUsedAt.Equal(used) {
		t.Errorf("sandbox is %s, last used %v; want ready, %v: a background command does not count as use", got.State, got.LastUsedAt, used)
	}
	c := b.claim(t, ref, "w") // taken over
	got := b.sandbox(t, box)
	testbed.Check(t, got.State == farm.SandboxReady, "the takeover of a background command made the sandbox %s", got.State)
	out := b.accept(t, Execute(box.ID))
	b.enqueued(t, "a job after a background command", out.Job)
	b.claim(t, out.Job.Ref(), "w")
	b.finish(t, c.Job, farm.JobCompleted)
	got = b.sandbox(t, box)
	testbed.Check(t, got.State == farm.SandboxBusy, "the end of the background command made the sandbox %s under a running job", got.State)
	head, err := b.FIFOHead(t.Context(), box)
	testbed.Check(t, err == nil && head == out.Job.ID, "head = %q, %v; want %s", head, err, out.Job.ID)
	b.claim(t, second.Ref(), "w")
}

func cancelQueued(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	first, second, third := b.accept(t, Execute(box.ID)).Job, b.accept(t, Execute(box.ID)).Job, b.accept(t, Execute(box.ID)).Job
	b.forgetEnqueued(t)
	job, _, err := b.Cancel(t.Context(), second.Ref(), nil)
	testbed.Check(t, err == nil && job.State == farm.JobCanceled && !job.FinishedAt.IsZero(), "Cancel in the middle = %+v, %v", job, err)
	b.enqueued(t, "a cancel in the middle")
	if _, err := b.Claim(t.Context(), second.Ref(), "w"); !errors.Is(err, store.ErrNotClaimable) {
		t.Errorf("claim of a canceled job = %v", err)
	}
	if _, _, err = b.Cancel(t.Context(), first.Ref(), nil); err != nil {
		t.Errorf("Cancel of the head: %v", err)
	}
	b.enqueued(t, "a cancel of the head", third)
	again, _, err := b.Cancel(t.Context(), first.Ref(), nil)
	testbed.Check(t, err == nil && again.State == farm.JobCanceled, "second Cancel = %+v, %v", again, err)
	b.enqueued(t, "a second cancel")
	events := b.events(t, second.Ref(), "")
	testbed.Check(t, len(events) == 2 && events[1].State == farm.JobCanceled, "events = %+v", events)
}

// A create that is cancelled before it begins may have a member of the pool, which counts until its node has removed it.
func cancelQueuedCreate(t *testing.T, factory Factory) {
	b := setup(t, factory)
	for pooled, want := range map[bool]farm.SandboxState{false: farm.SandboxClosed, true: farm.SandboxClosing} {
		a := Create()
		if pooled {
			a.Job.Queue, a.Sandbox.Node, a.Sandbox.Pooled = farm.NodeQueue("n1"), "n1", true
		}
		job, box := b.accept(t, a).Job, farm.Ref{Tenant: Tenant, ID: a.Sandbox.ID}
		waiting := b.accept(t, Execute(box.ID)).Job
		_, end, err := b.Cancel(t.Context(), job.Ref(), nil)
		testbed.Must(t, err)
		testbed.Check(t, end.Sandbox != nil && *end.Sandbox == box, "with a member: %v: %s waits for %v", pooled, waiting.ID, end.Sandbox)
		got, used := b.sandbox(t, box), b.used(t, farm.QuotaSandboxes)
		testbed.Check(t, got.State == want && (used == 1) == pooled, "with a member: %v: the sandbox is %s, %v are used", pooled, got.State, used)
		if pooled {
			b.onNode(t, "cancelled", "n1", box)
			b.move(t, store.Move{Ref: box, To: farm.SandboxClosed, Removed: true})
			b.onNode(t, "removed", "n1")
		}
		used = b.used(t, farm.QuotaSandboxes)
		testbed.Check(t, used == 0, "with a member: %v: in the end %v are used", pooled, used)
		b.noDrift(t)
	}
}

// A worker may have the task of a queued job, and wait with it. A job that waits in its FIFO has no task.
func endOfAQueuedJobIsPublished(t *testing.T, factory Factory) {
	b := setup(t, factory)
	cancels, err := b.Cancels(t.Context())
	testbed.Must(t, err)
	defer cancels.Close()
	box := b.box(t, farm.SandboxReady)
	head, behind := b.accept(t, Execute(box.ID)).Job.Ref(), b.accept(t, Execute(box.ID)).Job.Ref()
	for _, ref := range []farm.Ref{behind, head} {
		_, _, err := b.Cancel(t.Context(), ref, nil)
		testbed.Must(t, err)
	}
	select {
	case got := <-cancels.C():
		testbed.Check(t, got == head, "received %+v, want %+v", got, head)
	case <-time.After(timeout):
		t.Error("nothing was received")
	}
}

func cancelRunning(t *testing.T, factory Factory) {
	b := setup(t, factory)
	cancels, err := b.Cancels(t.Context())
	testbed.Must(t, err)
	defer cancels.Close()
	box := b.box(t, farm.SandboxReady)
	ref := b.accept(t, Execute(box.ID)).Job.Ref()
	c := b.claim(t, ref, "w")
	if asked, err := b.CancelRequested(t.Context(), ref); err != nil || asked {
		t.Errorf("CancelRequested before = %v, %v", asked, err)
	}
	job, _, err := b.Cancel(t.Context(), ref, nil)
	testbed.Check(t, err == nil && job.State == farm.JobRunning, "Cancel = %+v, %v", job, err)
	select {
	case got := <-cancels.C():
		testbed.Check(t, got == ref, "received %+v, want %+v", got, ref)
	case <-time.After(timeout):
		t.Error("no cancel was received")
	}
	asked, err := b.CancelRequested(t.Context(), ref)
	testbed.Check(t, err == nil && asked, "CancelRequested = %v, %v", asked, err)
	again := b.claim(t, ref, "w")
	testbed.Check(t, again.Cancel && again.Job.Attempt == c.Job.Attempt+1, "a takeover does not see the cancel: %+v", again)
}

// cancelRacesWithClaim runs a cancel and a claim concurrently, many times: either the job never starts, or its worker gets the cancel.
func cancelRacesWithClaim(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	for range 50 {
		ref := b.accept(t, Execute(box.ID)).Job.Ref()
		var wg sync.WaitGroup
		var claimed *store.Claim
		wg.Go(func() {
			c, err := b.Claim(t.Context(), ref, "w")
			testbed.Check(t, err == nil || errors.Is(err, store.ErrNotClaimable), "Claim = %v", err)
			claimed = c
		})
		wg.Go(func() {
			_, _, err := b.Cancel(t.Context(), ref, nil)
			testbed.Check(t, err == nil, "Cancel = %v", err)
		})
		wg.Wait()
		job := b.job(t, ref)
		asked, err := b.CancelRequested(t.Context(), ref)
		switch {
		case err != nil:
			t.Fatal(err)
		case claimed == nil && job.State != farm.JobCanceled:
			t.Fatalf("not claimed, and %s", job.State)
		case claimed != nil && (job.State != farm.JobRunning || !asked):
			t.Fatalf("claimed, and %s, asked %v", job.State, asked)
		case claimed != nil:
			b.finish(t, claimed.Job, farm.JobCanceled)
		}
	}
}

func canceledCreateEndsSandbox(t *testing.T, factory Factory) {
	b := setup(t, factory)
	a := Create()
	b.accept(t, a)
	waiting := b.accept(t, Execute(a.Sandbox.ID)).Job
	_, end, err := b.Cancel(t.Context(), a.Job.Ref(), nil)
	box := farm.Ref{Tenant: Tenant, ID: a.Sandbox.ID}
	testbed.Check(t, err == nil && end.Sandbox != nil && *end.Sandbox == box, "Cancel = %+v, %v", end, err)
	got := b.sandbox(t, box)
	testbed.Check(t, got.State == farm.SandboxClosed && got.Reason != "", "sandbox is %s, reason %q", got.State, got.Reason)
	left, err := b.UnfinishedJobs(t.Context(), box)
	diff := cmp.Diff([]farm.Ref{waiting.Ref()}, left)
	testbed.Check(t, err == nil && diff == "", "Drain = %v, %v", left, err)

	lost := Create()
	b.accept(t, lost)
	b.claim(t, lost.Job.Ref(), "w")
	lostBox := farm.Ref{Tenant: Tenant, ID: lost.Sandbox.ID}
	_, err = b.MoveSandbox(t.Context(), store.Move{Ref: lostBox, To: farm.SandboxStarting})
	testbed.Must(t, err)
	_, err = b.Force(t.Context(), lost.Job.Ref(), farm.JobLost, &farm.JobError{Code: farm.CodeUnavailable, Message: "worker gone"})
	testbed.Must(t, err)
	if got := b.sandbox(t, lostBox); got.State != farm.SandboxLost || got.Reason != "worker gone" {
		t.Errorf("sandbox of a lost creation is %s, reason %q", got.State, got.Reason)
	}
}

func checkpoints(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	ref := b.accept(t, Execute(box.ID)).Job.Ref()
	c := b.claim(t, ref, "w")
	data, err := b.LoadCheckpoint(t.Context(), ref)
	testbed.Check(t, err == nil && data == nil, "checkpoint before any = %q, %v", data, err)
	want := []byte("offset\x00\xff")
	testbed.Must(t, b.Checkpoint(t.Context(), ref, 1, want))
	err = b.Checkpoint(t.Context(), ref, 2, []byte("x"))
	testbed.Check(t, errors.Is(err, store.ErrFenced), "checkpoint of another attempt = %v", err)
	data, err = b.LoadCheckpoint(t.Context(), ref)
	diff := cmp.Diff(want, data)
	testbed.Check(t, err == nil && diff == "", "checkpoint = %q, %v", data, err)
	b.finish(t, c.Job, farm.JobCompleted)
	data, err = b.LoadCheckpoint(t.Context(), ref)
	testbed.Check(t, err == nil && data == nil, "checkpoint of a finished job = %q, %v", data, err)
}

func unfinishedJobsInOrder(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	want := []farm.Ref{
		b.accept(t, Execute(box.ID)).Job.Ref(), b.accept(t, Read(box.ID)).Job.Ref(), b.accept(t, Execute(box.ID)).Job.Ref(),
	}
	b.claim(t, want[0], "w")
	got, err := b.UnfinishedJobs(t.Context(), box)
	diff := cmp.Diff(want, got)
	testbed.Check(t, err == nil && diff == "", "Drain (-want +got), %v:\n%s", err, diff)
	for _, ref := range got {
		_, err := b.Force(t.Context(), ref, farm.JobCanceled, nil)
		testbed.Check(t, err == nil, "Force(%s) = %v", ref.ID, err)
	}
	got, err = b.UnfinishedJobs(t.Context(), box)
	testbed.Check(t, err == nil && len(got) == 0, "Drain after that = %v, %v", got, err)
	_, err = b.Finish(t.Context(), store.Finish{Ref: want[0], Attempt: 1, State: farm.JobCompleted})
	testbed.Check(t, errors.Is(err, store.ErrFenced), "Finish of a forced job = %v, want ErrFenced", err)
}

func requeueKeepsTheFIFOPosition(t *testing.T, factory Factory) {
	b := setup(t, factory)
	a := Create()
	job := b.accept(t, a).Job
	behind := b.accept(t, Execute(a.Sandbox.ID)).Job
	first := b.claim(t, job.Ref(), "w1")
	err := b.Requeue(t.Context(), job.Ref(), store.Requeue{Attempt: 2})
	testbed.Check(t, errors.Is(err, store.ErrFenced), "Requeue by another attempt = %v, want ErrFenced", err)
	for range 2 { // the second call imitates a retry after a lost answer
		testbed.Must(t, b.Requeue(t.Context(), job.Ref(), store.Requeue{Attempt: first.Job.Attempt}))
	}
	got := b.job(t, job.Ref())
	if got.State != farm.JobQueued || got.Worker != "" || !got.StartedAt.IsZero() || got.Timings != (farm.Timings{}) {
		t.Errorf("requeued job = %+v", got)
	}
	r, err := b.Route(t.Context(), job.Ref())
	testbed.Check(t, err == nil && r.Attempt == 1 && r.GracefulRequeues == 1 && r.Head && r.State == farm.JobQueued, "Route = %+v, %v", r, err)
	_, err = b.Claim(t.Context(), behind.Ref(), "w2")
	testbed.Check(t, errors.Is(err, store.ErrNotClaimable), "claim of the job behind = %v, want ErrNotClaimable", err)
	second := b.claim(t, job.Ref(), "w2")
	testbed.Check(t, second.Job.Attempt == 2 && second.Job.Worker == "w2" && !second.Job.StartedAt.IsZero(), "claimed again = %+v", second.Job)
	// The first worker's call comes late.
	err = b.Requeue(t.Context(), job.Ref(), store.Requeue{Attempt: first.Job.Attempt})
	testbed.Check(t, errors.Is(err, store.ErrFenced), "late Requeue = %v, want ErrFenced", err)
	var states []farm.JobState
	for _, e := range b.events(t, job.Ref(), "") {
		states = append(states, e.State)
	}
	want := []farm.JobState{farm.JobQueued, farm.JobRunning, farm.JobQueued, farm.JobRunning}
	testbed.Diff(t, "events", want, states)
	b.finish(t, second.Job, farm.JobCompleted)
	wantCode(t, "Requeue of an unknown job", b.Requeue(t.Context(), farm.Ref{Tenant: Tenant, ID: "job_none"}, store.Requeue{Attempt: 1}), farm.CodeNotFound)
}

func requeueOfACanceledJob(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	job := b.accept(t, Execute(box.ID)).Job
	c := b.claim(t, job.Ref(), "w")
	if _, _, err := b.Cancel(t.Context(), job.Ref(), nil); err != nil {
		t.Fatal(err)
	}
	err := b.Requeue(t.Context(), job.Ref(), store.Requeue{Attempt: c.Job.Attempt})
	testbed.Check(t, errors.Is(err, store.ErrCanceled), "Requeue = %v, want ErrCanceled", err)
	got := b.job(t, job.Ref())
	testbed.Check(t, got.State == farm.JobRunning, "the job is %s, want running: its worker ends it", got.State)
	b.finish(t, c.Job, farm.JobCanceled)
	again := b.accept(t, Execute(box.ID)).Job
	c = b.claim(t, again.Ref(), "w")
	testbed.Must(t, b.Requeue(t.Context(), again.Ref(), store.Requeue{Attempt: c.Job.Attempt}))
	if got := b.sandbox(t, box); got.State != farm.SandboxReady {
		t.Errorf("the sandbox is %s, want ready: nothing runs in it", got.State)
	}
	got, _, err = b.Cancel(t.Context(), again.Ref(), nil)
	testbed.Check(t, err == nil && got.State == farm.JobCanceled, "Cancel of a requeued job = %+v, %v", got, err)
}

// A create that leaves its node goes to the queue of all nodes, and begins anew as the next generation of its sandbox.
func requeueElsewhere(t *testing.T, factory Factory) {
	b := setup(t, factory)
	a := Create()
	a.Job.Queue, a.Sandbox.Node, a.Sandbox.Pooled = farm.NodeQueue("n1"), "n1", true
	job := b.accept(t, a).Job
	sandbox := farm.Ref{Tenant: Tenant, ID: a.Sandbox.ID}
	box := b.sandbox(t, sandbox)
	testbed.Require(t, box.Node == "n1" && box.Pooled && box.Generation == 1, "sandbox = %+v", box)
	leave := func(attempt int) error {
		return b.Requeue(t.Context(), job.Ref(), store.Requeue{Attempt: attempt, Elsewhere: true})
	}
	err := leave(1)
	testbed.Check(t, errors.Is(err, store.ErrFenced), "requeue of a queued job with another attempt = %v", err)
	err = b.Requeue(t.Context(), job.Ref(), store.Requeue{Begun: true})
	testbed.Check(t, errors.Is(err, store.ErrFenced), "requeue of a queued job as begun = %v", err)
	check := func(generation int) {
		t.Helper()
		r, err := b.Route(t.Context(), job.Ref())
		if err != nil || r.State != farm.JobQueued || r.Queue != farm.QueueCPU || r.Node != "" || r.Parked || !r.Head {
			t.Errorf("route = %+v, %v; want a queued head of all nodes", r, err)
		}
		got := b.job(t, job.Ref())
		testbed.Check(t, got.Queue == farm.QueueCPU, "the job's queue is %s", got.Queue)
		if box := b.sandbox(t, sandbox); box.State != farm.SandboxQueued || box.Node != "" || box.Container != "" || box.Generation != generation {
			t.Errorf("the sandbox is %s on %q in %q, generation %d; want %d", box.State, box.Node, box.Container, box.Generation, generation)
		}
	}
	for range 2 { // here and below the second call imitates a retry after a lost answer
		testbed.Must(t, leave(0))
		check(2)
	}
	c := b.claim(t, job.Ref(), "w")
	err = leave(0)
	testbed.Check(t, errors.Is(err, store.ErrFenced), "requeue of a running job without its attempt = %v", err)
	start := func(c *store.Claim) error {
		_, err := b.MoveSandbox(t.Context(), store.Move{
			Ref: sandbox, To: farm.SandboxStarting, Node: "n1", Container: "c1", Generation: c.Sandbox.Generation, Job: c.Job.ID, Attempt: c.Job.Attempt,
		})
		return err
	}
	testbed.Must(t, start(c))
	for range 2 {
		testbed.Must(t, leave(c.Job.Attempt))
		check(3)
	}
	r, err := b.Route(t.Context(), job.Ref())
	testbed.Check(t, err == nil && r.GracefulRequeues == 1, "route = %+v, %v; want one attempt that does not count", r, err)
	err = start(c)
	testbed.Check(t, errors.Is(err, store.ErrFenced), "a step of the attempt that left = %v", err)
	next := b.claim(t, job.Ref(), "w2")
	err = start(c)
	testbed.Check(t, errors.Is(err, store.ErrFenced), "a step of an earlier attempt = %v", err)
	_, err = b.MoveSandbox(t.Context(), store.Move{Ref: sandbox, To: farm.SandboxLost, Generation: c.Sandbox.Generation})
	testbed.Check(t, errors.Is(err, store.ErrFenced), "an earlier generation marks the sandbox as lost: %v", err)
	if err := start(next); err != nil {
		t.Errorf("a step of the next attempt = %v", err)
	}
	testbed.Must(t, b.Requeue(t.Context(), job.Ref(), store.Requeue{Attempt: next.Job.Attempt, Elsewhere: true, Crashed: true}))
	r, err = b.Route(t.Context(), job.Ref())
	testbed.Check(t, err == nil && r.GracefulRequeues == 1, "route = %+v, %v; want the crash to count", r, err)
	last := b.claim(t, job.Ref(), "w3")
	for _, to := range []farm.SandboxState{farm.SandboxStarting, farm.SandboxReady} {
		_, err := b.MoveSandbox(t.Context(), store.Move{Ref: sandbox, To: to, Node: "n1", Generation: 4})
		testbed.Must(t, err)
	}
	err = leave(last.Job.Attempt)
	testbed.Check(t, errors.Is(err, store.ErrMove), "requeue elsewhere of a sandbox that is ready = %v", err)
}

// A create that leaves its node while a cancel is requested stays with its caller, which ends it; its sandbox ends with it.
func requeueElsewhereOfACanceledCreate(t *testing.T, factory Factory) {
	b := setup(t, factory)
	a := Create()
	job := b.accept(t, a).Job
	sandbox := farm.Ref{Tenant: Tenant, ID: a.Sandbox.ID}
	c := b.claim(t, job.Ref(), "w")
	_, err := b.MoveSandbox(t.Context(), store.Move{Ref: sandbox, To: farm.SandboxStarting, Node: "n1"})
	testbed.Must(t, err)
	_, _, err = b.Cancel(t.Context(), job.Ref(), nil)
	testbed.Must(t, err)
	for range 2 {
		err := b.Requeue(t.Context(), job.Ref(), store.Requeue{Attempt: 1, Elsewhere: true})
		testbed.Check(t, errors.Is(err, store.ErrCanceled), "requeue = %v, want ErrCanceled", err)
		box := b.sandbox(t, sandbox)
		testbed.Check(t, box.State == farm.SandboxQueued && box.Node == "" && box.Generation == 2, "sandbox = %+v", box)
	}
	b.finish(t, c.Job, farm.JobCanceled)
	got := b.sandbox(t, sandbox)
	testbed.Check(t, got.State == farm.SandboxClosed, "the sandbox is %s", got.State)
}

// A job whose execution continues stays running, and any worker may claim it.
func requeueOfABegunJob(t *testing.T, factory Factory) {
	b := setup(t, factory)
	testbed.Must(t, b.Heartbeat(t.Context(), farm.Worker{ID: "w1", Node: "n1"}))
	box := b.box(t, farm.SandboxReady)
	job := b.accept(t, Execute(box.ID)).Job
	c := b.claim(t, job.Ref(), "w1")
	_, err := b.Claim(t.Context(), job.Ref(), "w2")
	testbed.Check(t, errors.Is(err, store.ErrNotClaimable), "claim of a job whose worker is alive = %v", err)
	if _, _, err := b.Cancel(t.Context(), job.Ref(), nil); err != nil { // the next worker ends the execution
		t.Fatal(err)
	}
	for range 2 {
		testbed.Must(t, b.Requeue(t.Context(), job.Ref(), store.Requeue{Attempt: c.Job.Attempt, Begun: true}))
	}
	r, err := b.Route(t.Context(), job.Ref())
	testbed.Check(t, err == nil && r.State == farm.JobRunning && r.Attempt == 1 && r.GracefulRequeues == 1, "route = %+v, %v", r, err)
	got := b.sandbox(t, box)
	testbed.Check(t, got.State == farm.SandboxBusy && got.Generation == 1, "sandbox = %+v", got)
	next := b.claim(t, job.Ref(), "w2")
	testbed.Check(t, next.Job.Attempt == 2 && next.Cancel, "claim = %+v", next)
	err = b.Requeue(t.Context(), job.Ref(), store.Requeue{Attempt: c.Job.Attempt, Begun: true})
	testbed.Check(t, errors.Is(err, store.ErrFenced), "late requeue = %v", err)
}

// A create that leaves its node passes its slot in the node's queue on to the next job.
func requeueElsewherePassesItsSlotOn(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.QueueShare = 1 })
	var jobs [2]*farm.Job
	for i := range jobs {
		b.clock.forward(time.Millisecond)
		a := Create()
		a.Job.Queue, a.Sandbox.Node, a.Sandbox.Pooled = farm.NodeQueue("n1"), "n1", true
		jobs[i] = b.accept(t, a).Job
	}
	for _, parked := range []bool{true, false} {
		r, err := b.Route(t.Context(), jobs[1].Ref())
		testbed.Check(t, err == nil && r.Parked == parked, "the second job: %+v, %v; want it parked: %v", r, err, parked)
		testbed.Must(t, b.Requeue(t.Context(), jobs[0].Ref(), store.Requeue{Elsewhere: true})) // the second time as after a lost answer
	}
}

// claimRequeuedBackground: a background command has left the FIFO of its sandbox when it is requeued, so it never becomes the first of it.
func claimRequeuedBackground(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	job := b.accept(t, store.Accept{
		Job:     &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: Tenant, Kind: farm.KindCommand, SandboxID: box.ID},
		Request: &farm.Request{Command: &farm.CommandRequest{Commands: []string{"sleep 100"}, Background: true}},
	}).Job
	b.accept(t, Execute(box.ID)) // is the first of the FIFO then
	b.claim(t, job.Ref(), "w1")
	testbed.Must(t, b.LeaveFIFO(t.Context(), job.Ref(), 1))
	testbed.Must(t, b.Requeue(t.Context(), job.Ref(), store.Requeue{Attempt: 1}))
	if c := b.claim(t, job.Ref(), "w2"); c.Job.Attempt != 2 || c.Job.State != farm.JobRunning {
		t.Errorf("the command is %s under attempt %d, want running under 2", c.Job.State, c.Job.Attempt)
	}
}

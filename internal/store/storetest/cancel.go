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

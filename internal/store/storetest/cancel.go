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
	if err := b.LeaveFIFO(t.Context(), ref, 2); !errors.Is(err, store.ErrFenced) {
		t.Errorf("LeaveFIFO of another attempt = %v, want ErrFenced", err)
	}
	b.forgetEnqueued(t)
	if err := b.LeaveFIFO(t.Context(), ref, 1); err != nil {
		t.Errorf("LeaveFIFO = %v", err)
	}
	b.enqueued(t, "leaving a FIFO with no other job")
	if got := b.sandbox(t, box); got.State != farm.SandboxReady || !got.LastUsedAt.Equal(used) {
		t.Errorf("sandbox is %s, last used %v; want ready, %v: a background command does not count as use", got.State, got.LastUsedAt, used)
	}
	c := b.claim(t, ref, "w") // taken over
	if got := b.sandbox(t, box); got.State != farm.SandboxReady {
		t.Errorf("the takeover of a background command made the sandbox %s", got.State)
	}
	out := b.accept(t, Execute(box.ID))
	b.enqueued(t, "a job after a background command", out.Job)
	b.claim(t, out.Job.Ref(), "w")
	b.finish(t, c.Job, farm.JobCompleted)
	if got := b.sandbox(t, box); got.State != farm.SandboxBusy {
		t.Errorf("the end of the background command made the sandbox %s under a running job", got.State)
	}
	if head, err := b.FIFOHead(t.Context(), box); err != nil || head != out.Job.ID {
		t.Errorf("head = %q, %v; want %s", head, err, out.Job.ID)
	}
	b.claim(t, second.Ref(), "w")
}

func cancelQueued(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	first, second, third := b.accept(t, Execute(box.ID)).Job, b.accept(t, Execute(box.ID)).Job, b.accept(t, Execute(box.ID)).Job
	b.forgetEnqueued(t)
	job, _, err := b.Cancel(t.Context(), second.Ref(), nil)
	if err != nil || job.State != farm.JobCanceled || job.FinishedAt.IsZero() {
		t.Errorf("Cancel in the middle = %+v, %v", job, err)
	}
	b.enqueued(t, "a cancel in the middle")
	if _, err := b.Claim(t.Context(), second.Ref(), "w"); !errors.Is(err, store.ErrNotClaimable) {
		t.Errorf("claim of a canceled job = %v", err)
	}
	if _, _, err = b.Cancel(t.Context(), first.Ref(), nil); err != nil {
		t.Errorf("Cancel of the head: %v", err)
	}
	b.enqueued(t, "a cancel of the head", third)
	if again, _, err := b.Cancel(t.Context(), first.Ref(), nil); err != nil || again.State != farm.JobCanceled {
		t.Errorf("second Cancel = %+v, %v", again, err)
	}
	b.enqueued(t, "a second cancel")
	if events := b.events(t, second.Ref(), ""); len(events) != 2 || events[1].State != farm.JobCanceled {
		t.Errorf("events = %+v", events)
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
		if _, _, err := b.Cancel(t.Context(), ref, nil); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case got := <-cancels.C():
		if got != head {
			t.Errorf("received %+v, want %+v", got, head)
		}
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
	if err != nil || job.State != farm.JobRunning {
		t.Errorf("Cancel = %+v, %v", job, err)
	}
	select {
	case got := <-cancels.C():
		if got != ref {
			t.Errorf("received %+v, want %+v", got, ref)
		}
	case <-time.After(timeout):
		t.Error("no cancel was received")
	}
	if asked, err := b.CancelRequested(t.Context(), ref); err != nil || !asked {
		t.Errorf("CancelRequested = %v, %v", asked, err)
	}
	if again := b.claim(t, ref, "w"); !again.Cancel || again.Job.Attempt != c.Job.Attempt+1 {
		t.Errorf("a takeover does not see the cancel: %+v", again)
	}
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
			if err != nil && !errors.Is(err, store.ErrNotClaimable) {
				t.Errorf("Claim = %v", err)
			}
			claimed = c
		})
		wg.Go(func() {
			if _, _, err := b.Cancel(t.Context(), ref, nil); err != nil {
				t.Errorf("Cancel = %v", err)
			}
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
	if err != nil || end.Sandbox == nil || *end.Sandbox != box {
		t.Errorf("Cancel = %+v, %v", end, err)
	}
	if got := b.sandbox(t, box); got.State != farm.SandboxClosed || got.Reason == "" {
		t.Errorf("sandbox is %s, reason %q", got.State, got.Reason)
	}
	left, err := b.UnfinishedJobs(t.Context(), box)
	if diff := cmp.Diff([]farm.Ref{waiting.Ref()}, left); err != nil || diff != "" {
		t.Errorf("Drain = %v, %v", left, err)
	}

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
	if data, err := b.LoadCheckpoint(t.Context(), ref); err != nil || data != nil {
		t.Errorf("checkpoint before any = %q, %v", data, err)
	}
	want := []byte("offset\x00\xff")
	testbed.Must(t, b.Checkpoint(t.Context(), ref, 1, want))
	if err := b.Checkpoint(t.Context(), ref, 2, []byte("x")); !errors.Is(err, store.ErrFenced) {
		t.Errorf("checkpoint of another attempt = %v", err)
	}
	data, err := b.LoadCheckpoint(t.Context(), ref)
	if diff := cmp.Diff(want, data); err != nil || diff != "" {
		t.Errorf("checkpoint = %q, %v", data, err)
	}
	b.finish(t, c.Job, farm.JobCompleted)
	if data, err := b.LoadCheckpoint(t.Context(), ref); err != nil || data != nil {
		t.Errorf("checkpoint of a finished job = %q, %v", data, err)
	}
}

func unfinishedJobsInOrder(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	want := []farm.Ref{
		b.accept(t, Execute(box.ID)).Job.Ref(), b.accept(t, Read(box.ID)).Job.Ref(), b.accept(t, Execute(box.ID)).Job.Ref(),
	}
	b.claim(t, want[0], "w")
	got, err := b.UnfinishedJobs(t.Context(), box)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Drain (-want +got), %v:\n%s", err, diff)
	}
	for _, ref := range got {
		if _, err := b.Force(t.Context(), ref, farm.JobCanceled, nil); err != nil {
			t.Errorf("Force(%s) = %v", ref.ID, err)
		}
	}
	if got, err := b.UnfinishedJobs(t.Context(), box); err != nil || len(got) != 0 {
		t.Errorf("Drain after that = %v, %v", got, err)
	}
	if _, err := b.Finish(t.Context(), store.Finish{Ref: want[0], Attempt: 1, State: farm.JobCompleted}); !errors.Is(err, store.ErrFenced) {
		t.Errorf("Finish of a forced job = %v, want ErrFenced", err)
	}
}

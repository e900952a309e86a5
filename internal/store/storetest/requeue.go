package storetest

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

func requeueKeepsTheFIFOPosition(t *testing.T, factory Factory) {
	b := setup(t, factory)
	a := Create()
	job := b.accept(t, a).Job
	behind := b.accept(t, Execute(a.Sandbox.ID)).Job
	first := b.claim(t, job.Ref(), "w1")
	if err := b.Requeue(t.Context(), job.Ref(), 2); !errors.Is(err, store.ErrFenced) {
		t.Errorf("Requeue by another attempt = %v, want ErrFenced", err)
	}
	for range 2 { // the second call imitates a retry after a lost answer
		if err := b.Requeue(t.Context(), job.Ref(), first.Job.Attempt); err != nil {
			t.Fatalf("Requeue = %v", err)
		}
	}
	got := b.job(t, job.Ref())
	if got.State != farm.JobQueued || got.Worker != "" || !got.StartedAt.IsZero() || got.Timings != (farm.Timings{}) {
		t.Errorf("requeued job = %+v", got)
	}
	r, err := b.Route(t.Context(), job.Ref())
	if err != nil || r.Attempt != 1 || r.Uncounted != 1 || !r.Head || r.State != farm.JobQueued {
		t.Errorf("Route = %+v, %v", r, err)
	}
	if _, err := b.Claim(t.Context(), behind.Ref(), "w2"); !errors.Is(err, store.ErrNotClaimable) {
		t.Errorf("claim of the job behind = %v, want ErrNotClaimable", err)
	}
	second := b.claim(t, job.Ref(), "w2")
	if second.Job.Attempt != 2 || second.Job.Worker != "w2" || second.Job.StartedAt.IsZero() {
		t.Errorf("claimed again = %+v", second.Job)
	}
	// The first worker's call comes late.
	if err := b.Requeue(t.Context(), job.Ref(), first.Job.Attempt); !errors.Is(err, store.ErrFenced) {
		t.Errorf("late Requeue = %v, want ErrFenced", err)
	}
	var states []farm.JobState
	for _, e := range b.events(t, job.Ref(), "") {
		states = append(states, e.State)
	}
	want := []farm.JobState{farm.JobQueued, farm.JobRunning, farm.JobQueued, farm.JobRunning}
	if diff := cmp.Diff(want, states); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	b.finish(t, second.Job, farm.JobCompleted)
	wantCode(t, "Requeue of an unknown job", b.Requeue(t.Context(), farm.Ref{Tenant: Tenant, ID: "job_none"}, 1), farm.CodeNotFound)
}

func requeueOfACanceledJob(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	job := b.accept(t, Execute(box.ID)).Job
	c := b.claim(t, job.Ref(), "w")
	if _, _, err := b.Cancel(t.Context(), job.Ref()); err != nil {
		t.Fatal(err)
	}
	if err := b.Requeue(t.Context(), job.Ref(), c.Job.Attempt); !errors.Is(err, store.ErrCanceled) {
		t.Errorf("Requeue = %v, want ErrCanceled", err)
	}
	if got := b.job(t, job.Ref()); got.State != farm.JobRunning {
		t.Errorf("the job is %s, want running: its worker ends it", got.State)
	}
	b.finish(t, c.Job, farm.JobCanceled)
	again := b.accept(t, Execute(box.ID)).Job
	c = b.claim(t, again.Ref(), "w")
	if err := b.Requeue(t.Context(), again.Ref(), c.Job.Attempt); err != nil {
		t.Fatal(err)
	}
	if got := b.sandbox(t, box); got.State != farm.SandboxReady {
		t.Errorf("the sandbox is %s, want ready: nothing runs in it", got.State)
	}
	if got, _, err := b.Cancel(t.Context(), again.Ref()); err != nil || got.State != farm.JobCanceled {
		t.Errorf("Cancel of a requeued job = %+v, %v", got, err)
	}
}

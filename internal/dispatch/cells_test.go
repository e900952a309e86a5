package dispatch_test

import (
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
)

// Only cells that wait are canceled, of one session or of all, and never other jobs.
func TestAbortCells(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.box(t)
	cell := func(session string) *farm.Job {
		a := storetest.Execute(box)
		if session != "" {
			a.Request.Execute.Cell = &farm.Cell{Session: session, Message: "m"}
		}
		a.Job.Shown = a.Request
		return b.submit(t, a)
	}
	running, mine, plain, other := cell("mine"), cell("mine"), cell(""), cell("other")
	if _, err := b.store.Claim(t.Context(), running.Ref(), "w"); err != nil {
		t.Fatal(err)
	}
	sandbox := farm.Ref{Tenant: storetest.Tenant, ID: box}
	states := func(want ...farm.JobState) {
		t.Helper()
		for i, job := range []*farm.Job{running, mine, plain, other} {
			b.state(t, job.Ref(), want[i])
		}
	}
	if err := b.AbortCells(t.Context(), sandbox, "mine"); err != nil {
		t.Fatal(err)
	}
	states(farm.JobRunning, farm.JobCanceled, farm.JobQueued, farm.JobQueued)
	if err := b.AbortCells(t.Context(), sandbox, ""); err != nil {
		t.Fatal(err)
	}
	states(farm.JobRunning, farm.JobCanceled, farm.JobQueued, farm.JobCanceled)
	if _, err := b.store.Finish(t.Context(), store.Finish{Ref: running.Ref(), Attempt: 1, State: farm.JobCompleted}); err != nil {
		t.Fatal(err)
	}
	b.enqueued(t, "node-n1", plain.ID, true)
}

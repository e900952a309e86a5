package dispatch_test

import (
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
)

// The depth of a queue counts its tasks and its parked jobs; its age is that of the oldest of both.
func TestDepthsCountParkedJobs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	share := farm.DefaultLimits().QueueShare
	for range share {
		b.submit(t, storetest.Create())
	}
	b.SetNow(func() time.Time { return time.Now().Add(time.Hour) })
	depth := func() farm.QueueDepth {
		t.Helper()
		depths, err := b.Depths(t.Context())
		if err != nil || len(depths) != 1 || depths[0].Name != farm.QueueCPU {
			t.Fatalf("Depths = %+v, %v", depths, err)
		}
		return depths[0]
	}
	if d := depth(); d.Depth != share || d.OldestSeconds > 1800 { // the queue itself uses the real clock
		t.Errorf("nothing is parked: %+v", d)
	}
	for range 3 {
		b.submit(t, storetest.Create())
	}
	b.SetNow(func() time.Time { return time.Now().Add(time.Hour + 2*time.Second) }) // answers are cached for a second of the dispatcher's clock
	if d := depth(); d.Depth != share+3 || d.OldestSeconds < 3600 || d.OldestSeconds > 3700 {
		t.Errorf("three are parked: %+v", d)
	}
}

// Jobs that wait in a worker for a slot are neither running nor forgotten.
func TestDepthsCountJobsThatWaitInAWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.submit(t, storetest.Create())
	since := time.Now().Add(-time.Hour)
	waiting := map[string]farm.WaitingJobs{farm.QueueCPU: {Jobs: 2, Since: since}, "node-n1": {Jobs: 1, Since: since}}
	if err := b.store.Heartbeat(t.Context(), farm.Worker{ID: "w", Waiting: waiting}); err != nil {
		t.Fatal(err)
	}
	depths, err := b.Depths(t.Context())
	if err != nil || len(depths) != 2 || depths[0].Name != farm.QueueCPU || depths[0].Depth != 3 || depths[0].OldestSeconds < 3600 ||
		depths[1].Name != "node-n1" || depths[1].Depth != 1 || depths[1].Running != 0 {
		t.Errorf("Depths = %+v, %v", depths, err)
	}
}

// A receiver that takes no callbacks keeps limits.max_callbacks of them, with their tasks; the oldest are given up.
func TestCallbacksBeyondTheLimitAreGivenUp(t *testing.T) {
	t.Parallel()
	const limit = 3
	b := setup(t)
	limits := farm.DefaultLimits()
	limits.MaxCallbacks = limit
	b.Dispatcher = dispatch.New(b.store, b.queue, limits, nil)
	var ids []string
	for n := 1; n <= limit+2; n++ {
		a := storetest.Create()
		a.Job.CallbackURL = "https://example.com"
		b.submit(t, a)
		if _, err := b.Cancel(t.Context(), a.Job.Ref()); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, a.Job.ID)
		if n == limit+1 {
			continue // so that two are beyond it at once
		}
		dropped, err := b.DropCallbacks(t.Context(), storetest.Tenant)
		if want := max(0, n-limit); err != nil || dropped != want {
			t.Fatalf("with %d callbacks %d were given up, %v; want %d", n, dropped, err, want)
		}
	}
	for i, id := range ids {
		b.enqueued(t, queue.QueueCallbacks, "callback-"+id, i >= 2)
	}
	left, err := b.store.Callbacks(t.Context(), storetest.Tenant, 10)
	if err != nil || len(left) != limit || left[0].ID != ids[2] {
		t.Errorf("callbacks left: %v, %v", left, err)
	}
	b.sweep(t, 0) // and they are not enqueued again
}

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
		a.Job.Redacted = a.Request
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

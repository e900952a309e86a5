package dispatch_test

import (
	"testing"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
)

// A receiver that takes no callbacks keeps limits.max_callbacks of them, with their tasks; the oldest are given up.
func TestCallbacksBeyondTheLimitAreGivenUp(t *testing.T) {
	t.Parallel()
	const most = 3
	b := setup(t)
	limits := farm.DefaultLimits()
	limits.MaxCallbacks = most
	b.Dispatcher = dispatch.New(b.store, b.queue, limits, nil)
	var ids []string
	for n := 1; n <= most+2; n++ {
		a := storetest.Create()
		a.Job.CallbackURL = "https://example.com"
		b.submit(t, a)
		if _, err := b.Cancel(t.Context(), a.Job.Ref()); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, a.Job.ID)
		if n == most+1 {
			continue // so that two are beyond it at once
		}
		dropped, err := b.DropCallbacks(t.Context(), storetest.Tenant)
		if want := max(0, n-most); err != nil || dropped != want {
			t.Fatalf("with %d callbacks %d were given up, %v; want %d", n, dropped, err, want)
		}
	}
	for i, id := range ids {
		b.enqueued(t, queue.QueueCallbacks, "callback-"+id, i >= 2)
	}
	left, err := b.store.Callbacks(t.Context(), storetest.Tenant, 10)
	if err != nil || len(left) != most || left[0].ID != ids[2] {
		t.Errorf("callbacks left: %v, %v", left, err)
	}
	b.sweep(t, 0) // and they are not enqueued again
}

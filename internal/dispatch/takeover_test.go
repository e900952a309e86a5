package dispatch_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
)

// A job that is handed over is on its queue again at once, goes on under a new attempt, and may be handed over however
// often: workers that stop in order are not held against it.
func TestOfferTakeover(t *testing.T) {
	t.Parallel()
	b := setup(t)
	job := b.submit(t, storetest.Execute(b.box(t)))
	b.later(time.Minute)
	for attempt := 1; attempt <= 6; attempt++ {
		worker := farm.Worker{ID: fmt.Sprint("w", attempt)}
		if err := b.store.Heartbeat(t.Context(), worker); err != nil {
			t.Fatal(err)
		}
		c, err := b.store.Claim(t.Context(), job.Ref(), worker.ID)
		if err != nil || c.Job.Attempt != attempt {
			t.Fatalf("Claim = %+v, %v", c, err)
		}
		for range 2 { // the second as after an answer that got lost
			if err := b.OfferTakeover(t.Context(), job.Ref(), attempt); err != nil {
				t.Fatalf("OfferTakeover = %v", err)
			}
		}
		b.enqueued(t, "node-n1", fmt.Sprintf("%s.%d", job.ID, attempt), true)
		b.sweep(t, 0)
		r, err := b.store.Route(t.Context(), job.Ref())
		if err != nil || r.State != farm.JobRunning || r.Attempt != attempt || r.Uncounted != attempt {
			t.Fatalf("Route = %+v, %v", r, err)
		}
		if err := b.OfferTakeover(t.Context(), job.Ref(), attempt-1); !errors.Is(err, store.ErrFenced) {
			t.Errorf("OfferTakeover by another attempt = %v, want ErrFenced", err)
		}
	}
	if err := b.OfferTakeover(t.Context(), farm.Ref{Tenant: storetest.Tenant, ID: "job_none"}, 1); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("OfferTakeover of a job that is not there = %v", err)
	}
}

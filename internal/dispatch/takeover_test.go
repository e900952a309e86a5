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

// A job that is offered for takeover is enqueued at once and continues under a new attempt. It can be offered any number of
// times: orderly stops of workers do not count as crashes.
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
		for range 2 { // the second call imitates a retry after a lost answer
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
		t.Errorf("OfferTakeover of an unknown job = %v", err)
	}
}

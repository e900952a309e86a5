package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/webhook"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// Outcomes of deliveries, as metrics have them.
const (
	callbackOK      = "ok"
	callbackError   = "error" // it is tried again
	callbackGivenUp = "given_up"
)

const (
	// callbackSlots is how many callbacks a worker delivers at once, beside its jobs. Each waits for its receiver, for up to 20 s.
	callbackSlots = 64
	// longestPutBack is how long a callback beyond them waits at most, before it is looked at again.
	longestPutBack = time.Minute
)

// lanes shares the places for callbacks between tenants: one has at most half of those that others leave, so that silent receivers of one do not
// stop those of the others.
type lanes struct {
	places *budget.Places

	mu      sync.Mutex
	putBack map[string]int // by tenant: callbacks that were put back since one of its deliveries ended
}

func newLanes() *lanes {
	return &lanes{places: budget.NewPlaces(callbackSlots), putBack: map[string]int{}}
}

// enter begins a delivery, which leave ends. Where the tenant has its share, it begins none and returns a queue.Later: the more were put back, the
// later they come again, as if each delivery took a second.
func (l *lanes) enter(tenant string) (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	place := l.places.Ask(tenant)
	select {
	case <-place.Granted():
		return func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			place.Leave()
			delete(l.putBack, tenant)
		}, nil
	default:
		place.Leave()
		l.putBack[tenant]++
		return nil, queue.Later{In: min(time.Second*time.Duration(1+2*l.putBack[tenant]/callbackSlots), longestPutBack)}
	}
}

// deliver makes one try to deliver a callback. An error has the queue try again; after the last one the callback is given up.
func (w *Worker) deliver(ctx context.Context, t queue.Task) error {
	leave, err := w.callbacks.enter(t.Ref.Tenant)
	if err != nil {
		return err
	}
	defer leave()
	err = w.deps.Callback(ctx, t.Ref)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return err // the worker stops: this is no try
	}
	outcome := callbackOK
	if err != nil {
		failure, _ := errors.AsType[*webhook.Failure](err)
		about := []any{"job_id", t.Ref.ID, "tenant", t.Ref.Tenant, "try", t.Try.Number, "tries", t.Try.Max, "error", err}
		if failure != nil {
			about = append(about, "host", failure.Host)
		}
		if t.Try.RetryIn > 0 && (failure == nil || !failure.Gone) {
			w.metrics.callbacks.WithLabelValues(callbackError).Inc()
			w.log.WarnContext(ctx, "callback was not delivered; it is tried again", append(about, "retry_in_ms", t.Try.RetryIn.Milliseconds())...)
			return err
		}
		w.log.WarnContext(ctx, "callback was not delivered and is given up", about...)
		outcome = callbackGivenUp
	}
	w.metrics.callbacks.WithLabelValues(outcome).Inc()
	ctx, done := retry.Detached(ctx) // else what was delivered while the worker stops would be delivered again
	defer done()
	return w.store.CallbackDone(ctx, t.Ref)
}

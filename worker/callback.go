package worker

import (
	"context"
	"errors"

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

// deliver makes one try to deliver a callback. An error has the queue try again; after the last one the callback is given up.
func (w *Worker) deliver(ctx context.Context, t queue.Task) error {
	err := w.deps.Callback(ctx, t.Ref)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return err // the worker stops: this is no try
	}
	outcome := callbackOK
	if err != nil {
		failure, _ := errors.AsType[*webhook.Failure](err)
		about := []any{"job_id", t.Ref.ID, "tenant", t.Ref.Tenant, "try", t.Try.Number, "tries", t.Try.Most, "error", err}
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

package worker

import (
	"context"
	"errors"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
)

const (
	// placeTimeout is how long a job waits for a place before it is put back into its queue, which other nodes serve too.
	placeTimeout = time.Second
	// nodeTimeout is that of a job that only this node can run. Its end normally ends the wait; the message may be lost.
	nodeTimeout = time.Minute
	// maxWaiting is how many tasks may wait for a place before the worker takes no more. One tenant has at most Limits.QueueShare in each queue, and the
	// closes of its sandboxes.
	maxWaiting = 2000
)

// places bound what a worker does at once. A job has a place from before its claim to its end. A tenant has at most as many as worker.slots; there are
// twice as many, so that no tenant has all of them.
type places struct {
	long   *budget.Places
	aside  *budget.Places // of jobs that do not wait for the others, see queue.Task
	closed chan struct{}  // closed when the worker stops
}

func newPlaces(slots int) places {
	return places{long: budget.NewPlaces(2 * slots), aside: budget.NewPlaces(2 * slots), closed: make(chan struct{})}
}

// handlers is how many tasks a worker takes at once: those with a place, and those that wait for one.
func handlers(slots int) int { return 2*2*slots + maxWaiting }

// errNoPlace says that a job did not get a place in time.
var errNoPlace = errors.New("no place became free in time")

// enter waits until a job that is not claimed yet has a place, which leave gives back. A job that was cancelled or has ended needs none: there is
// nothing to run. errNoPlace if there is none in time, queue.Later if the worker stops.
func (w *Worker) enter(ctx context.Context, j *activeJob, t queue.Task) (leave func(), err error) {
	of := w.places.long
	if t.Aside {
		of = w.places.aside
	}
	place := of.Ask(t.Ref.Tenant)
	select {
	case <-place.Granted():
	default:
		err = w.await(ctx, j, t, place.Granted())
	}
	select {
	case <-w.places.closed: // perhaps the place is free because of that
		err = queue.Later{}
	default:
	}
	if err != nil {
		place.Leave()
		return nil, err
	}
	return place.Leave, nil
}

// await waits for a place, or for a reason not to.
func (w *Worker) await(ctx context.Context, j *activeJob, t queue.Task, granted <-chan struct{}) error {
	timeout := placeTimeout
	if t.Queue == farm.NodeQueue(w.node.ID()) {
		timeout = nodeTimeout
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	w.jobs.wait(j, waiting{queue: t.Queue, since: w.now()})
	defer w.jobs.wait(j, waiting{})
	select {
	case <-granted:
	case <-j.cancel:
	case <-w.places.closed:
	case <-timer.C:
		return errNoPlace
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

package worker

import (
	"context"
	"fmt"
	"sync"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// labelEpoch names the epoch of the records (store.Epoch) in which a container was made. A container that has no record
// is left over when the records are still those of its epoch; else they were lost, and the sandbox is taken back.
const labelEpoch = "sandfarm.epoch"

// epoch is the epoch of the records as this worker knows it.
type epoch struct {
	mu    sync.Mutex
	value string
}

// get gives the epoch, "" before the first look.
func (e *epoch) get() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.value
}

// set notes the epoch, and reports whether it is another one than before.
func (e *epoch) set(value string) (changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	changed = e.value != "" && e.value != value
	e.value = value
	return changed
}

// lookAtEpoch notes the epoch of the records, and reports whether the records were lost since the last look.
func (w *Worker) lookAtEpoch(ctx context.Context) (lost bool, err error) {
	value, err := w.store.Epoch(ctx)
	if err != nil {
		return false, fmt.Errorf("look for lost records: %w", err)
	}
	return w.epoch.set(value), nil
}

// followEpoch takes the sandboxes back at once when the records were lost; the reconciler would a little later.
func (w *Worker) followEpoch(ctx context.Context) error {
	lost, err := w.lookAtEpoch(ctx)
	if err != nil || !lost {
		return err
	}
	w.log.WarnContext(ctx, "Redis has lost the records: jobs are gone, sandboxes are adopted from the engine", "worker_id", w.id)
	w.background.Go(func() { // beside the heartbeat, which must not wait
		if err := w.reconcile(w.base); err != nil && w.base.Err() == nil {
			w.log.WarnContext(w.base, "sandboxes are not adopted yet; it is tried again", "worker_id", w.id, "error", err)
		}
	})
	return nil
}

// labels are what a sandbox's container carries, for a Redis that forgets.
func (w *Worker) labels(s *farm.Sandbox) map[string]string {
	labels := recordLabel(s)
	if epoch := w.epoch.get(); labels != nil && epoch != "" {
		labels[labelEpoch] = epoch
	}
	return labels
}

// takeBack gives a container's sandbox its record again when the records were lost, and reports whether it is open. Another
// worker of the engine may have been first: then the record that it wrote says so.
func (w *Worker) takeBack(ctx context.Context, c engine.Container) (bool, error) {
	made := c.Labels[labelEpoch]
	if made == "" {
		return false, nil
	}
	// Asked anew, since the records may have been lost a moment ago; not noted, so that the next heartbeat sees it too.
	if now, err := w.store.Epoch(ctx); err != nil || now == made {
		return false, err
	}
	if adopted, err := w.adoptOne(ctx, c); adopted || err != nil {
		return adopted, err
	}
	return w.belongs(ctx, c)
}

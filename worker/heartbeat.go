package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// heartbeatEvery renews the registration, which expires after 10 s.
	heartbeatEvery = 2 * time.Second
	// pingTimeout is how long a heartbeat waits for the engine.
	pingTimeout = 3 * time.Second
)

// beat renews the worker's registration, with the engine's problem if it does not answer: then no jobs should be sent here. Errors of
// what the registration reports besides do not stop it: a worker that is not registered looks dead.
func (w *Worker) beat(ctx context.Context) error {
	problem, images := w.pingEngine(ctx)
	queues := make([]string, 0, 2)
	for name := range w.queues() {
		queues = append(queues, name)
	}
	stale := w.refreshStatus(ctx, problem == "")
	running, sandboxes := w.jobs.count()
	status := w.placement.Status()
	err := w.store.Heartbeat(ctx, farm.Worker{
		ID: w.id, Node: w.node.ID(), Host: w.cfg.Host, Version: w.cfg.Version, Queues: queues, Images: images,
		Slots: w.cfg.Slots, Running: running, Sandboxes: sandboxes, StartedAt: w.started, SeenAt: w.now(), Problem: problem,
		Capacity: status.Room.Capacity, Reserved: status.Room.Reserved, LargestMB: status.LargestMB, GPUs: status.GPUs, Pool: status.Pool,
	})
	if err != nil {
		return errors.Join(stale, fmt.Errorf("send heartbeat: %w", err))
	}
	return errors.Join(stale, w.restoreLostRecords(ctx))
}

// refreshStatus reads what the registration reports of the node: capacity, GPUs and warm pool. What cannot be read stays as it was.
func (w *Worker) refreshStatus(ctx context.Context, engineUp bool) error {
	_, poolErr := w.placement.RefreshPool(ctx)
	return errors.Join(w.notePing(ctx, engineUp), w.placement.RefreshGPUs(ctx), poolErr)
}

// pingEngine asks the engine whether it works, and for its images. It is bounded: an engine that hangs must not stop the heartbeat,
// or other workers would take this worker's jobs over.
func (w *Worker) pingEngine(ctx context.Context) (problem string, images []farm.Image) {
	ctx, done := context.WithTimeout(ctx, pingTimeout)
	defer done()
	if err := w.engine.Ping(ctx); err != nil {
		return "The container engine does not answer. Start it again (see `sandfarm doctor`).", nil
	}
	images, err := w.node.Images(ctx)
	if err != nil {
		return "The container engine does not list its images.", nil
	}
	return "", images
}

// restoreLostRecords runs the reconciler at once when the records were lost: it restores sandboxes from their containers.
func (w *Worker) restoreLostRecords(ctx context.Context) error {
	lost, err := w.node.RefreshEpoch(ctx)
	if err != nil || !lost {
		return err
	}
	w.log.WarnContext(ctx, "Redis has lost the records: jobs are gone, sandboxes are restored from their containers", "worker_id", w.id)
	w.background.Go(func() { // beside the heartbeat, which must not wait
		if err := w.reconciler.Run(w.base); err != nil && w.base.Err() == nil {
			w.log.WarnContext(w.base, "not all sandboxes are restored; it is tried again", "worker_id", w.id, "error", err)
		}
	})
	return nil
}

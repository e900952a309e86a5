package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// heartbeatEvery renews the node's lease and the worker's registration, which expires after 10 s.
	heartbeatEvery = 2 * time.Second
	// statusEvery is how often the worker asks its engine and the records for what the registration reports.
	statusEvery = 2 * time.Second
	// preloadEvery is how often the worker looks for images whose files are not in memory. The first creates do not wait for that.
	preloadEvery = 30 * time.Second
	// pingTimeout is how long the status waits for the engine.
	pingTimeout = 3 * time.Second
)

// engineStatus is what the last ping of the engine found.
type engineStatus struct {
	mu      sync.Mutex
	problem string
	images  []farm.Image
}

// set takes the result of a ping, and reports whether the engine's state has changed.
func (e *engineStatus) set(problem string, images []farm.Image) (changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	changed = e.problem != problem
	e.problem, e.images = problem, images
	return changed
}

func (e *engineStatus) get() (problem string, images []farm.Image) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.problem, e.images
}

// beat renews the lease of the node and then the worker's registration, from what the worker knows: nothing is read before, so nothing that
// is slow, or cannot be read, makes the worker look dead. A worker that is not registered yet only renews the lease: it may build images
// for minutes.
func (w *Worker) beat(ctx context.Context) error {
	drained, err := w.store.RenewNode(ctx, w.node.ID())
	if err == nil && w.placement.Drain(drained) {
		w.log.InfoContext(ctx, "the drain of the node changed", "worker_id", w.id, "node", w.node.ID(), "drained", drained)
	}
	if !w.registered.Load() {
		return err
	}
	return errors.Join(err, w.register(ctx))
}

// register writes the worker's registration, with the engine's problem if it does not answer: then no jobs should be sent here.
func (w *Worker) register(ctx context.Context) error {
	problem, images := w.engineStatus.get()
	running, sandboxes := w.jobs.count()
	status := w.placement.Status()
	w.beats.Lock()
	defer w.beats.Unlock()
	before, err := w.store.Beat(ctx, farm.Worker{
		Beat: w.beats.stored + 1, Jobs: w.jobs.attempts(), Waiting: w.jobs.waiting(),
		ID: w.id, Node: w.node.ID(), Host: w.cfg.Host, Version: w.cfg.Version, Queues: w.queueNames(), Images: images,
		Slots: w.cfg.Slots, Running: running, Sandboxes: sandboxes, StartedAt: w.started, SeenAt: w.now(), Problem: problem, Draining: status.Drained,
		Capacity: status.Room.Capacity, Reserved: status.Room.Reserved, LargestMB: status.LargestMB, Machine: status.Machine, GPUs: status.GPUs, Pool: status.Pool,
		Runtimes: w.node.Runtimes(), Hibernates: w.node.Hibernates(), Live: w.liveAddress(),
	})
	if err != nil {
		return fmt.Errorf("send heartbeat: %w", err)
	}
	if before < w.beats.stored {
		w.log.WarnContext(ctx, "Redis was away, or has lost data: containers are compared with the records", "worker_id", w.id)
		w.reconcileNow()
	}
	w.beats.stored++
	return nil
}

// beats numbers the heartbeats of a worker. A number is used again until Redis has confirmed it, so that two numbers more mean a list of jobs
// that was made after the first of the two was stored.
type beats struct {
	sync.Mutex
	stored uint64 // the last one that Redis has confirmed
}

// refreshStatus asks the engine and the records for what the registration reports: images, capacity, GPUs and warm pool. What cannot be read
// stays as it was. A change of the engine's state is registered at once.
func (w *Worker) refreshStatus(ctx context.Context) error {
	problem, images := w.pingEngine(ctx)
	changed := w.engineStatus.set(problem, images)
	_, poolErr := w.placement.RefreshPool(ctx)
	err := errors.Join(w.activity.store(ctx, func(ctx context.Context, m []farm.Minute) error { return w.store.NoteActivity(ctx, w.id, m) }), w.notePing(ctx, problem == ""), w.placement.RefreshGPUs(ctx), poolErr, w.dispatch.RegisterQueues(ctx, w.queueNames()...))
	if changed {
		err = errors.Join(err, w.beat(ctx))
	}
	return err
}

// pingEngine asks the engine whether it works, and for its images. It is bounded: an engine may hang.
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

// reconcileNow runs the reconciler beside the heartbeat, which must not wait. It restores sandboxes whose records were lost.
func (w *Worker) reconcileNow() {
	w.background.Go(func() {
		if err := w.reconciler.Run(w.base); err != nil && w.base.Err() == nil {
			w.log.WarnContext(w.base, "not all containers were compared with the records; it is tried again", "worker_id", w.id, "error", err)
		}
	})
}

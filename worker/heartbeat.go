package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// heartbeatEvery renews the registration, which vanishes after 10 s without it.
const heartbeatEvery = 2 * time.Second

// engineLook is how long a heartbeat waits for the engine.
const engineLook = 3 * time.Second

// beat renews the worker's registration. An engine that does not answer is told there: no jobs should be sent meanwhile.
func (w *Worker) beat(ctx context.Context) error {
	problem, images := w.look(ctx)
	queues := make([]string, 0, 2)
	for name := range w.queues() {
		queues = append(queues, name)
	}
	if err := w.engineIs(ctx, problem == ""); err != nil {
		return err
	}
	if err := w.lookAtGPUs(ctx); err != nil {
		return err
	}
	if _, err := w.lookAtPool(ctx); err != nil {
		return err
	}
	running, sandboxes := w.runs.count()
	node := w.room.mine()
	err := w.store.Heartbeat(ctx, farm.Worker{
		ID: w.id, Node: w.node, Host: w.cfg.Host, Version: w.cfg.Version, Queues: queues, Images: images,
		Slots: w.cfg.Slots, Running: running, Sandboxes: sandboxes, StartedAt: w.started, SeenAt: w.now(), Problem: problem,
		Capacity: node.Capacity, Reserved: node.Reserved, GPUs: w.gpus.shown(), Pool: w.pool.stock(),
	})
	if err != nil {
		return fmt.Errorf("send heartbeat: %w", err)
	}
	return w.followEpoch(ctx)
}

// look asks the engine how it does. An engine that hangs must not stop the heart: the worker's jobs would be given away.
func (w *Worker) look(ctx context.Context) (problem string, images []farm.Image) {
	ctx, done := context.WithTimeout(ctx, engineLook)
	defer done()
	if err := w.engine.Ping(ctx); err != nil {
		return "The container engine does not answer. Start it again (see `sandfarm doctor`).", nil
	}
	images, err := w.offered(ctx, false)
	if err != nil {
		return "The container engine does not list its images.", nil
	}
	return "", images
}

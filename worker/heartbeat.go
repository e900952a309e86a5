package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// heartbeatEvery renews the registration, which vanishes after 10 s without it.
const heartbeatEvery = 2 * time.Second

// beat renews the worker's registration. An engine that does not answer is told there: no jobs should be sent meanwhile.
func (w *Worker) beat(ctx context.Context) error {
	problem := ""
	if err := w.engine.Ping(ctx); err != nil {
		problem = "The container engine does not answer. Start it again (see `sandfarm doctor`)."
	}
	images, err := w.offered(ctx, false)
	if err != nil && problem == "" {
		problem = "The container engine does not list its images."
	}
	queues := make([]string, 0, 2)
	for name := range w.queues() {
		queues = append(queues, name)
	}
	running, sandboxes := w.runs.count()
	err = w.store.Heartbeat(ctx, farm.Worker{
		ID: w.id, Node: w.node, Host: w.cfg.Host, Version: w.cfg.Version, Queues: queues, Images: images,
		Slots: w.cfg.Slots, Running: running, Sandboxes: sandboxes, StartedAt: w.started, SeenAt: w.now(), Problem: problem,
	})
	if err != nil {
		return fmt.Errorf("send heartbeat: %w", err)
	}
	return nil
}

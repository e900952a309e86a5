package service

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/scale"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Codes of what a job waits for, beside the obstacles of package scale.
const (
	waitsFIFO       = "fifo"
	waitsRunning    = "max_running"
	waitsQueueShare = "queue_share"
	waitsQueue      = "queue"
)

// place is the position of a queued job, in its queue if it has one there, or else in the FIFO of its sandbox, and what the job waits for.
func (s *Service) place(ctx context.Context, j *farm.Job) (position int, estimate *float64, waiting *wire.Waiting) {
	wait, err := s.Store.Wait(ctx, j)
	var at store.QueuePosition
	if err == nil && wait.Position > 0 {
		if at, err = s.Store.QueuePosition(ctx, j); err == nil {
			waiting, err = s.waiting(ctx, j, wait, at.Position)
		}
	}
	if err != nil {
		s.Logger.WarnContext(ctx, "what a job waits for is not known", slog.String("job_id", j.ID), slog.Any("error", err))
	}
	if at.Position == 0 {
		return wait.Position, nil, waiting
	}
	if at.Estimate >= 0 {
		seconds := math.Ceil(at.Estimate.Seconds())
		estimate = &seconds
	}
	return at.Position, estimate, waiting
}

// waiting says what a queued job waits for: first what the records say, then what the workers reported last.
func (s *Service) waiting(ctx context.Context, j *farm.Job, wait store.Wait, position int) (*wire.Waiting, error) {
	is := func(code, format string, args ...any) (*wire.Waiting, error) {
		return &wire.Waiting{Code: code, Message: fmt.Sprintf(format, args...)}, nil
	}
	switch {
	case wait.Before == 1:
		return is(waitsFIFO, "Jobs of a sandbox run one after the other, and one comes first: %s (%s, %s).", wait.Head, wait.HeadKind, wait.HeadState)
	case wait.Before > 1:
		return is(waitsFIFO, "Jobs of a sandbox run one after the other, and %d come first: %s (%s, %s) and those behind it.", wait.Before, wait.Head, wait.HeadKind, wait.HeadState)
	case wait.Parked && !j.Inline && wait.MaxRunning >= 0 && wait.Running >= wait.MaxRunning:
		return is(waitsRunning, "%d jobs of your tenant run or are about to, as many as its quota max_running allows.", wait.Running)
	case wait.Parked:
		return is(waitsQueueShare, "%d jobs of your tenant are before it in the queue %s, as many as the queue share of a tenant allows. It enters the queue when one of them has begun.", wait.Slots, wait.Queue)
	}
	nodes, err := s.readNodes(ctx, false)
	if err != nil {
		return nil, err
	}
	if wait.Node == "" && j.Shown != nil && j.Shown.Sandbox != nil {
		create := createOf(wait.Queue, j.Shown.Sandbox, j.Kind == farm.KindRun)
		if o := scale.ObstacleOf(nodes.scale, create); o != scale.NoObstacle {
			return is(string(o), "%s", obstacleOfCreate(o, create))
		}
	} else if o, err := s.obstacleOnNode(ctx, j, wait, nodes.scale); err != nil {
		return nil, err
	} else if o != scale.NoObstacle {
		return is(string(o), "%s", obstacleOfOther(o, wait.Node))
	}
	if position > 1 {
		return is(waitsQueue, "It is number %d in the queue %s.", position, wait.Queue)
	}
	return is(waitsQueue, "It is next in the queue %s.", wait.Queue)
}

// createOf is a sandbox that waits for a node.
func createOf(queue string, spec *farm.SandboxSpec, oneShot bool) scale.Create {
	return scale.Create{Queue: queue, Image: spec.Image, Runtime: spec.Runtime, Size: spec.Resources.Capacity(), GPU: spec.GPU, OneShot: oneShot}
}

// obstacleOfCreate is a sentence about an obstacle of a create, and what ends it.
func obstacleOfCreate(o scale.Obstacle, c scale.Create) string {
	size := fmt.Sprintf("%d MiB of memory and %g cores", c.Size.MemoryMB, c.Size.CPUs)
	if c.GPU.Wanted() {
		size += fmt.Sprintf(" and %d GPUs", c.GPU.Count)
	}
	switch o {
	case scale.NoWorker:
		return "No worker is alive. It starts when one is."
	case scale.NoModel:
		return fmt.Sprintf("No live worker takes work of the queue %s.", c.Queue)
	case scale.NoImage:
		return fmt.Sprintf("No live worker offers the image %q.", c.Image)
	case scale.NoRuntime:
		return fmt.Sprintf("No live worker offers the runtime %q.", c.Runtime)
	case scale.Draining:
		return "The nodes that could take it are drained: they take no new sandboxes."
	case scale.Failing:
		return "The workers that could take it accept no jobs now; GET /v1/workers says why."
	case scale.TooLarge:
		return "No node that is in service is large enough for " + size + "."
	case scale.NoRoom:
		return "No node has " + size + " free. It starts when other sandboxes have ended, or a node is added."
	case scale.NoGPU:
		return fmt.Sprintf("No node has %d GPUs free. It starts when other sandboxes have ended, or a node is added.", c.GPU.Count)
	default:
		return "All slots of the workers that could take it are taken. It starts when another job ends."
	}
}

// obstacleOfOther is a sentence about an obstacle of a job whose node is chosen, or which any worker takes.
func obstacleOfOther(o scale.Obstacle, node string) string {
	whose := "its sandbox's node"
	if node == "" {
		whose = "the farm"
	}
	switch o {
	case scale.NoWorker:
		return "No worker of " + whose + " is alive. It starts when one is."
	case scale.Failing:
		return "The workers of " + whose + " accept no jobs now; GET /v1/workers says why."
	case scale.NoRoom:
		return "Its sandbox hibernates, and its node has too little memory or too few cores free to resume it. It starts when other sandboxes have ended."
	default:
		return "All slots of the workers of " + whose + " are taken. It starts when another job ends."
	}
}

// obstacleOnNode is why the node of a job's sandbox does not take the job now.
func (s *Service) obstacleOnNode(ctx context.Context, j *farm.Job, wait store.Wait, nodes []scale.Node) (scale.Obstacle, error) {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n scale.Node) bool { return wait.Node != "" && n.ID != wait.Node })
	free := func(has func(scale.Node) bool) bool { return slices.ContainsFunc(nodes, has) }
	switch {
	case len(nodes) == 0:
		return scale.NoWorker, nil
	case !free(func(n scale.Node) bool { return !n.Failing }):
		return scale.Failing, nil
	case wait.SandboxState == farm.SandboxHibernated && !j.Inline:
		box, err := s.Store.Sandbox(ctx, farm.Ref{Tenant: j.Tenant, ID: j.SandboxID})
		if err != nil {
			return scale.NoObstacle, err
		}
		if n := nodes[0]; n.Capacity != (farm.Capacity{}) && !n.Reserved.Plus(box.Spec.Resources.Capacity()).Within(n.Capacity) {
			return scale.NoRoom, nil
		}
	case j.Inline:
		return scale.NoObstacle, nil
	}
	if !free(func(n scale.Node) bool { return n.Running < n.Slots }) {
		return scale.Busy, nil
	}
	return scale.NoObstacle, nil
}

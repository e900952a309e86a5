package scale

import (
	"slices"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Obstacle is why no node takes a create now.
type Obstacle string

// The obstacles. Each is true of the nodes to which those before it do not apply, of which there are some.
const (
	NoObstacle Obstacle = ""              // none is known
	NoWorker   Obstacle = "no_worker"     // there is no live worker
	NoModel    Obstacle = "no_gpu_model"  // none serves its queue, which is that of its GPU model
	NoImage    Obstacle = "no_image"      // none offers its image
	NoRuntime  Obstacle = "no_runtime"    // none offers its runtime
	Draining   Obstacle = "drain"         // those that could take it are drained
	Failing    Obstacle = "worker_failed" // the workers of those that could take it accept no jobs
	TooLarge   Obstacle = "too_large"     // it is larger than any of them
	NoRoom     Obstacle = "no_room"       // none has its memory and cores free
	NoGPU      Obstacle = "no_gpu"        // none has its GPUs free
	Busy       Obstacle = "busy"          // all slots of their workers are taken
)

// Obstacles lists them in order, without NoObstacle.
func Obstacles() []Obstacle {
	return []Obstacle{NoWorker, NoModel, NoImage, NoRuntime, Draining, Failing, TooLarge, NoRoom, NoGPU, Busy}
}

// ObstacleOf is the first obstacle of a create. A node whose capacity is not measured yet is taken to have room.
func ObstacleOf(nodes []Node, c Create) Obstacle {
	g := group{shape: shapeOf(c), count: 1}
	free := func(n Node) int {
		count := 0
		for _, d := range n.GPUs {
			if d.Is(g.model) && !d.Leased {
				count++
			}
		}
		return count
	}
	unmeasured := func(n Node) bool { return n.Capacity == farm.Capacity{} }
	may := map[Obstacle]func(Node) bool{
		NoWorker:  func(Node) bool { return true },
		NoModel:   func(n Node) bool { return slices.Contains(n.Queues, g.queue) },
		NoImage:   func(n Node) bool { return slices.Contains(n.Images, g.image) },
		NoRuntime: func(n Node) bool { return g.runtime == "" || slices.Contains(n.Runtimes, g.runtime) },
		Draining:  func(n Node) bool { return !n.Draining },
		Failing:   func(n Node) bool { return !n.Failing },
		TooLarge:  func(n Node) bool { return unmeasured(n) || c.Size.Within(n.Largest) && len(n.GPUs) >= g.gpus },
		NoRoom:    func(n Node) bool { return unmeasured(n) || n.Reserved.Plus(c.Size).Within(n.Capacity) },
		NoGPU:     func(n Node) bool { return free(n) >= g.gpus },
		Busy:      func(n Node) bool { return n.Running < n.Slots },
	}
	left := slices.Clone(nodes)
	for _, o := range Obstacles() {
		if left = slices.DeleteFunc(left, func(n Node) bool { return !may[o](n) }); len(left) == 0 {
			return o
		}
	}
	return NoObstacle
}

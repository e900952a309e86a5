package scale_test

import (
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/scale"
)

func TestObstacleOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		nodes  []scale.Node
		create scale.Create
		want   scale.Obstacle
	}{
		"None":              {[]scale.Node{node("a")}, creates(1, 512)[0], scale.NoObstacle},
		"OneNodeOfTwo":      {[]scale.Node{node("a", uses(4096, 4)), node("b")}, creates(1, 512)[0], scale.NoObstacle},
		"NotMeasured":       {[]scale.Node{node("a", func(n *scale.Node) { n.Capacity, n.Largest = farm.Capacity{}, farm.Capacity{} })}, creates(1, 512)[0], scale.NoObstacle},
		"NoWorker":          {nil, creates(1, 512)[0], scale.NoWorker},
		"NoModel":           {[]scale.Node{node("a"), node("b", with("h200", 0))}, creates(1, 512, gpus(1, "a100"))[0], scale.NoModel},
		"NoImage":           {[]scale.Node{node("a")}, creates(1, 512, func(c *scale.Create) { c.Image = "r" })[0], scale.NoImage},
		"NoRuntime":         {[]scale.Node{node("a")}, creates(1, 512, func(c *scale.Create) { c.Runtime = "runsc" })[0], scale.NoRuntime},
		"Draining":          {[]scale.Node{node("a", drained)}, creates(1, 512)[0], scale.Draining},
		"Failing":           {[]scale.Node{node("a", func(n *scale.Node) { n.Failing = true }), node("b", drained)}, creates(1, 512)[0], scale.Failing},
		"TooLarge":          {[]scale.Node{node("a")}, creates(1, 8192)[0], scale.TooLarge},
		"TooManyGPUs":       {[]scale.Node{node("a", with("h200", 0))}, creates(1, 512, gpus(3, "h200"))[0], scale.TooLarge},
		"NoMemory":          {[]scale.Node{node("a", uses(4000, 1))}, creates(1, 512)[0], scale.NoRoom},
		"NoCores":           {[]scale.Node{node("a", uses(512, 3.75))}, creates(1, 512)[0], scale.NoRoom},
		"GPUsLeased":        {[]scale.Node{node("a", with("h200", 1))}, creates(1, 512, gpus(2, "h200"))[0], scale.NoGPU},
		"SlotsTaken":        {[]scale.Node{node("a", func(n *scale.Node) { n.Running = 8 })}, creates(1, 512)[0], scale.Busy},
		"WithoutTheDrained": {[]scale.Node{node("a", drained), node("b", uses(4000, 1))}, creates(1, 512)[0], scale.NoRoom},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := scale.ObstacleOf(c.nodes, c.create); got != c.want {
				t.Errorf("ObstacleOf = %q, want %q", got, c.want)
			}
		})
	}
}

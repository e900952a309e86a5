package scale_test

import (
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/scale"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

var now = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// node is a node of 4 GiB and 4 cores without GPUs.
func node(id string, change ...func(*scale.Node)) scale.Node {
	size := farm.Capacity{MemoryMB: 4096, CPUs: 4}
	n := scale.Node{ID: id, Queues: []string{farm.QueueCPU}, Images: []string{"python"}, Runtimes: []string{"runc"}, Capacity: size, Largest: size, Slots: 8}
	for _, c := range change {
		c(&n)
	}
	return n
}

func uses(memoryMB int, cpus float64) func(*scale.Node) {
	return func(n *scale.Node) { n.Reserved, n.Used = farm.Capacity{MemoryMB: memoryMB, CPUs: cpus}, true }
}

// with gives a node two devices of a model, of which some are leased.
func with(model string, leased int) func(*scale.Node) {
	return func(n *scale.Node) {
		n.Kind = scale.Kind{GPU: true, Model: model}
		n.GPUs = []farm.GPUDevice{{ID: "0", Model: model, Leased: leased > 0}, {ID: "1", Model: model, Leased: leased > 1}}
		n.Queues = n.GPUs[0].Queues()
	}
}

func drained(n *scale.Node) {
	n.Draining, n.Capacity, n.Largest = true, farm.Capacity{}, farm.Capacity{}
}

// creates are creates of one size, the first of which has waited for a minute.
func creates(count, memoryMB int, change ...func(*scale.Create)) []scale.Create {
	out := make([]scale.Create, count)
	for i := range out {
		out[i] = scale.Create{Queue: farm.QueueCPU, Image: "python", Size: farm.Capacity{MemoryMB: memoryMB, CPUs: 0.5}, Since: now.Add(time.Duration(i)*time.Second - time.Minute)}
		for _, c := range change {
			c(&out[i])
		}
	}
	return out
}

func gpus(count int, model string) func(*scale.Create) {
	return func(c *scale.Create) {
		c.GPU = &farm.GPU{Count: count, Model: model}
		c.Queue = c.GPU.Queue()
	}
}

func join(lists ...[]scale.Create) (out []scale.Create) {
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}

// answer is what the tests compare of a need.
type answer struct {
	Kind                                     scale.Kind
	Nodes, Wanted, Waiting, Placeable, Unfit int
	Idle                                     []string
}

func TestPlan(t *testing.T) {
	t.Parallel()
	cpu, a100, h200 := scale.Kind{}, scale.Kind{GPU: true, Model: "a100-80gb"}, scale.Kind{GPU: true, Model: "h200"}
	for name, c := range map[string]struct {
		nodes   []scale.Node
		waiting []scale.Create
		more    map[string]int
		want    []answer
	}{
		"Nothing": {want: []answer{{Kind: cpu}}},
		"NoNodeAndSomethingWaits": {
			waiting: creates(9, 512), want: []answer{{Kind: cpu, Wanted: 1, Waiting: 9}},
		},
		"UsedNodesStay": {
			nodes: []scale.Node{node("a", uses(512, 1)), node("b", uses(512, 1))}, want: []answer{{Kind: cpu, Nodes: 2, Wanted: 2}},
		},
		"IdleNodesCouldGo": {
			nodes: []scale.Node{node("a"), node("b", uses(512, 1)), node("c")},
			want:  []answer{{Kind: cpu, Nodes: 3, Wanted: 1, Idle: []string{"a", "c"}}},
		},
		"TheLastNodeStays": {
			nodes: []scale.Node{node("a"), node("b")}, want: []answer{{Kind: cpu, Nodes: 2, Wanted: 1, Idle: []string{"b"}}},
		},
		"HibernatedSandboxesKeepTheirNode": {
			nodes: []scale.Node{node("a", uses(0, 0)), node("b", uses(512, 1))}, want: []answer{{Kind: cpu, Nodes: 2, Wanted: 2}},
		},
		"WhatFitsNeedsNoNode": {
			nodes: []scale.Node{node("a", uses(1024, 1))}, waiting: creates(6, 512),
			want: []answer{{Kind: cpu, Nodes: 1, Wanted: 1, Waiting: 6, Placeable: 6}},
		},
		"OneMoreThanFits": {
			nodes: []scale.Node{node("a", uses(1024, 1))}, waiting: creates(7, 512),
			want: []answer{{Kind: cpu, Nodes: 1, Wanted: 2, Waiting: 7, Placeable: 6}},
		},
		"NewNodesAreFilled": { // by memory each takes 8 of 512 MiB
			nodes: []scale.Node{node("a", uses(4096, 1))}, waiting: creates(17, 512),
			want: []answer{{Kind: cpu, Nodes: 1, Wanted: 4, Waiting: 17}},
		},
		"CoresCount": { // each takes 8 of half a core
			nodes: []scale.Node{node("a", uses(0, 4))}, waiting: creates(9, 128),
			want: []answer{{Kind: cpu, Nodes: 1, Wanted: 3, Waiting: 9}},
		},
		"SmallOnesFillWhatLargeOnesLeave": {
			nodes:   []scale.Node{node("a", uses(4096, 4))},
			waiting: join(creates(2, 3072), creates(4, 512)),
			want:    []answer{{Kind: cpu, Nodes: 1, Wanted: 3, Waiting: 6}},
		},
		"IdleNodesAreUsedFirst": {
			nodes: []scale.Node{node("a"), node("b", uses(4096, 4)), node("c")}, waiting: creates(3, 1024),
			want: []answer{{Kind: cpu, Nodes: 3, Wanted: 2, Waiting: 3, Placeable: 3, Idle: []string{"c"}}},
		},
		"RunsNeedSlots": { // seven of eight are taken
			nodes:   []scale.Node{node("a", func(n *scale.Node) { n.Running = 7 })},
			waiting: creates(2, 128, func(c *scale.Create) { c.OneShot = true }),
			want:    []answer{{Kind: cpu, Nodes: 1, Wanted: 2, Waiting: 2, Placeable: 1}},
		},
		"CreatesShareASlot": {
			nodes: []scale.Node{node("a", func(n *scale.Node) { n.Running = 7 })}, waiting: creates(2, 128),
			want: []answer{{Kind: cpu, Nodes: 1, Wanted: 1, Waiting: 2, Placeable: 2}},
		},
		"NoSlotIsFree": {
			nodes: []scale.Node{node("a", func(n *scale.Node) { n.Running = 8 })}, waiting: creates(2, 128),
			want: []answer{{Kind: cpu, Nodes: 1, Wanted: 2, Waiting: 2}},
		},
		"DrainedAndFailingNodesTakeNothing": {
			nodes:   []scale.Node{node("a", drained), node("b", func(n *scale.Node) { n.Failing = true })},
			waiting: creates(1, 512), want: []answer{{Kind: cpu, Wanted: 1, Waiting: 1}},
		},
		"OnlyADrainedNode": {
			nodes: []scale.Node{node("a", drained)}, waiting: creates(20, 512), want: []answer{{Kind: cpu, Wanted: 1, Waiting: 20}},
		},
		"LargerThanEveryNode": {
			nodes: []scale.Node{node("a", uses(512, 1))}, waiting: creates(2, 4097),
			want: []answer{{Kind: cpu, Nodes: 1, Wanted: 1, Waiting: 2, Unfit: 2}},
		},
		"AsLargeAsANode": {
			nodes: []scale.Node{node("a", uses(512, 1))}, waiting: creates(2, 4096),
			want: []answer{{Kind: cpu, Nodes: 1, Wanted: 3, Waiting: 2}},
		},
		"OvercommitIsNotForOneSandbox": {
			nodes:   []scale.Node{node("a", uses(8192, 1), func(n *scale.Node) { n.Capacity.MemoryMB = 8192 })},
			waiting: creates(2, 4097), want: []answer{{Kind: cpu, Nodes: 1, Wanted: 1, Waiting: 2, Unfit: 2}},
		},
		"RuntimeAndImage": {
			nodes: []scale.Node{node("a"), node("b", func(n *scale.Node) { n.Runtimes, n.Images = []string{"runc", "runsc"}, []string{"python", "node"} })},
			waiting: join(
				creates(5, 1024, func(c *scale.Create) { c.Runtime = "runsc" }), creates(1, 1024, func(c *scale.Create) { c.Image = "node" }),
				creates(1, 1024, func(c *scale.Create) { c.Image = "gone" })),
			want: []answer{{Kind: cpu, Nodes: 2, Wanted: 2, Waiting: 7, Placeable: 4, Unfit: 1, Idle: []string{"a"}}},
		},
		"WhatWasNotReadIsLikeTheRest": {
			nodes: []scale.Node{node("a", uses(4096, 4))}, waiting: join(creates(3, 1024), creates(1, 4096)),
			more: map[string]int{farm.QueueCPU: 36}, // 40: 30 of 1 GiB, 10 of 4 GiB
			want: []answer{{Kind: cpu, Nodes: 1, Wanted: 1 + 8 + 10, Waiting: 40}},
		},
		"GPUsByModel": {
			nodes:   []scale.Node{node("a", uses(512, 1)), node("g", with("a100-80gb", 2), uses(512, 1)), node("h", with("h200", 1), uses(512, 1))},
			waiting: join(creates(3, 512, gpus(1, "a100")), creates(1, 512, gpus(1, "h200"))),
			want: []answer{
				{Kind: cpu, Nodes: 1, Wanted: 1}, {Kind: a100, Nodes: 1, Wanted: 3, Waiting: 3}, {Kind: h200, Nodes: 1, Wanted: 1, Waiting: 1, Placeable: 1},
			},
		},
		"AnyModel": {
			nodes:   []scale.Node{node("g", with("a100-80gb", 2), uses(512, 1)), node("h", with("h200", 0))},
			waiting: creates(4, 512, gpus(1, "")),
			want: []answer{
				{Kind: cpu}, {Kind: a100, Nodes: 1, Wanted: 2, Waiting: 4, Placeable: 2}, {Kind: h200, Nodes: 1, Wanted: 1},
			},
		},
		"MoreDevicesThanANodeHas": {
			nodes: []scale.Node{node("h", with("h200", 0))}, waiting: creates(1, 512, gpus(3, "h200")),
			want: []answer{{Kind: cpu}, {Kind: h200, Nodes: 1, Wanted: 1, Waiting: 1, Unfit: 1}},
		},
		"ModelOfNoNode": {
			nodes: []scale.Node{node("a", uses(512, 1))}, waiting: creates(2, 512, gpus(1, "b200")),
			want: []answer{{Kind: cpu, Nodes: 1, Wanted: 1}, {Kind: scale.Kind{GPU: true, Model: "b200"}, Wanted: 1, Waiting: 2}},
		},
		"GPUNodesThatTakeOthers": {
			nodes:   []scale.Node{node("h", with("h200", 2), uses(3584, 1), func(n *scale.Node) { n.Queues = append(n.Queues, farm.QueueCPU) })},
			waiting: creates(2, 512),
			want:    []answer{{Kind: cpu}, {Kind: h200, Nodes: 1, Wanted: 2, Waiting: 2, Placeable: 1}},
		},
		"NotMeasuredYet": {
			nodes:   []scale.Node{node("a", func(n *scale.Node) { n.Capacity, n.Largest = farm.Capacity{}, farm.Capacity{} })},
			waiting: creates(1, 512), want: []answer{{Kind: cpu, Nodes: 1, Wanted: 1, Waiting: 1, Unfit: 1}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := scale.Plan(scale.Snapshot{Nodes: c.nodes, Waiting: c.waiting, More: c.more, Now: now})
			got := make([]answer, len(found))
			for i, n := range found {
				got[i] = answer{Kind: n.Kind, Nodes: n.Nodes, Wanted: n.Wanted, Waiting: n.Waiting, Placeable: n.Placeable, Unfit: n.Unfit, Idle: n.Idle}
				if n.Waiting > 0 && n.Oldest != time.Minute {
					t.Errorf("the oldest of %v has waited for %v, want a minute", n.Kind, n.Oldest)
				}
				if len(n.Idle) == 0 {
					got[i].Idle = nil
				}
			}
			testbed.Diff(t, "", c.want, got)
		})
	}
}

// A plan of a large farm with much that waits takes no longer than a scrape may.
func TestPlanOfALargeFarm(t *testing.T) {
	t.Parallel()
	s := scale.Snapshot{Now: now, More: map[string]int{farm.QueueCPU: 100_000 - 1000}}
	for i := range 1000 {
		s.Nodes = append(s.Nodes, node(string(rune('a'+i)), uses(4096, 4)))
		s.Waiting = append(s.Waiting, creates(1, 1024+i)...) // no two are alike
	}
	got := scale.Plan(s)
	if got[0].Waiting != 100_000 || got[0].Wanted < 1000+100_000/4 || got[0].Wanted > 1000+100_000/2+1000 {
		t.Errorf("need %+v", got[0])
	}
}

func TestNodesOf(t *testing.T) {
	t.Parallel()
	member, size := farm.Capacity{MemoryMB: 512, CPUs: 0.5}, farm.Capacity{MemoryMB: 4096, CPUs: 4}
	worker := func(id, on string) farm.Worker {
		return farm.Worker{ID: id, Node: on, Slots: 4, Running: 1, Queues: []string{"cpu", "node-" + on, "control"}, Capacity: size, SeenAt: now, Images: []farm.Image{{Name: "python"}}}
	}
	pooled, broken, second := worker("w1", "n1"), worker("w2", "n1"), worker("w3", "n2")
	pooled.Pool, pooled.Reserved, pooled.LargestMB = []farm.PoolStock{{Image: "python", Target: 4, Ready: 3}}, farm.Capacity{MemoryMB: 3 * 512, CPUs: 1.5}, 2048
	broken.Problem, broken.SeenAt = "the engine does not answer", now.Add(-time.Second)
	second.Problem, second.Draining = "the engine does not answer", true
	second.GPUs = []farm.GPUDevice{{ID: "0", Model: "t4"}, {ID: "1", Model: "h200"}, {ID: "2", Model: "h200"}}
	second.Queues = []string{"gpu", "gpu-t4", "gpu-h200", "node-n2"}
	got := scale.NodesOf([]farm.Worker{pooled, broken, second}, member)
	want := []scale.Node{
		{ID: "n1", Queues: []string{"cpu"}, Images: []string{"python"}, Capacity: size, Largest: farm.Capacity{MemoryMB: 2048, CPUs: 4}, Slots: 8, Running: 2, PoolMissing: 1},
		{
			ID: "n2", Kind: scale.Kind{GPU: true, Model: "h200"}, Queues: []string{"gpu", "gpu-t4", "gpu-h200"}, Images: []string{"python"}, Capacity: size, Largest: size,
			Slots: 4, Running: 1, GPUs: second.GPUs, Draining: true, Failing: true,
		},
	}
	testbed.Diff(t, "", want, got)
}

func TestIdle(t *testing.T) {
	t.Parallel()
	if !node("a").Idle() {
		t.Error("an empty node is not idle")
	}
	for name, change := range map[string]func(*scale.Node){
		"open sandboxes": func(n *scale.Node) { n.Used = true }, "jobs": func(n *scale.Node) { n.Running = 1 }, "memory": uses(1, 0), "cores": uses(0, 0.001),
		"a device": with("h200", 1), "a drain": drained, "a problem": func(n *scale.Node) { n.Failing = true },
	} {
		if node("a", change).Idle() {
			t.Errorf("a node with %s is idle", name)
		}
	}
}

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
			testbed.Diff(t, "ObstacleOf", c.want, scale.ObstacleOf(c.nodes, c.create))
		})
	}
}

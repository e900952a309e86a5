package placement

import (
	"maps"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// A create whose runtime the node lacks reserves nothing here, whatever is free, and so goes back to the queue of all nodes.
func TestSandboxOfAnotherRuntimeIsLeftToOtherNodes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.measured(64<<10, 8)
	p.node.UseRuntimes("runc", "runsc")
	for runtime, want := range map[string]bool{"": true, "runc": true, "runsc": true, "kata": false} {
		job, _ := b.Sized(512, 1)
		claim := b.Claim(job, p.deps.WorkerID)
		claim.Sandbox.Spec.Runtime = runtime
		ok, err := p.Reserve(t.Context(), claim)
		testbed.Check(t, ok == want && err == nil, "Reserve for the runtime %q = %v, %v, want %v", runtime, ok, err, want)
	}
	b.Reserved(farm.Capacity{MemoryMB: 3 * 512, CPUs: 3})
}

// An automatic pool is shared between the runtimes, and the default has what is left over.
func TestAutomaticPoolIsSharedBetweenRuntimes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.placer()
	standard, runsc, kata := poolKey{image: autoImage}, poolKey{autoImage, "runsc"}, poolKey{autoImage, "kata"}
	for _, c := range []struct {
		runtimes []string
		size     int
		want     map[poolKey]int
	}{
		{nil, 3, map[poolKey]int{standard: 3}},
		{[]string{"runc"}, 3, map[poolKey]int{standard: 3}},
		{[]string{"runc", "runsc"}, 3, map[poolKey]int{standard: 2, runsc: 1}},
		{[]string{"runc", "runsc"}, 1, map[poolKey]int{standard: 1, runsc: 0}},
		{[]string{"runc", "runsc", "kata"}, 8, map[poolKey]int{standard: 4, runsc: 2, kata: 2}},
		{[]string{"runc", "runsc"}, 0, map[poolKey]int{standard: 0, runsc: 0}},
	} {
		p.node.UseRuntimes(c.runtimes...)
		got := p.autoTargets(c.size)
		testbed.Check(t, maps.Equal(got, c.want), "%d members for %v: %v, want %v", c.size, c.runtimes, got, c.want)
	}
}

// worker.pool may name a runtime that sandboxes may have. The default by its name is the default.
func TestPoolOfRuntimes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.pooling(64<<10, "python=2", "node@runc=1", "python@runsc=3")
	p.node.UseRuntimes("runc", "runsc")
	workertest.Must(t, p.PreparePool())
	want := map[poolKey]int{{image: "python"}: 2, {image: "node"}: 1, {"python", "runsc"}: 3}
	testbed.Check(t, maps.Equal(p.pool.targets, want), "targets %v, want %v", p.pool.targets, want)
	p.node.UseRuntimes("runc")
	err := p.PreparePool()
	testbed.Check(t, err != nil, "a pool of a runtime that the node lacks is accepted")
}

// A member of one runtime serves no sandbox that must have another: the member is removed, and the sandbox starts cold.
func TestMemberOfAnotherRuntimeIsUnfit(t *testing.T) {
	t.Parallel()
	for runtime, want := range map[string]bool{"": true, "runc": true, "runsc": false} {
		b := setup(t)
		p := b.pooling(64<<10, "python=1")
		p.node.UseRuntimes("runc", "runsc")
		m := b.member(p)
		_, box := b.Claimed(m, func(s *farm.Sandbox) { s.Spec.Runtime = runtime })
		_, ok, err := p.AssignMember(t.Context(), b.Sandbox(box))
		testbed.Check(t, ok == want && err == nil, "a member with the default runtime for %q: %v, %v, want %v", runtime, ok, err, want)
	}
}

// Members of each pool key are counted by themselves.
func TestMembersOfRuntimesAreCountedApart(t *testing.T) {
	t.Parallel()
	p := newPool(map[poolKey]int{{image: "python"}: 1, {"python", "runsc"}: 2})
	p.update([]store.Member{{Image: "python", State: store.MemberIdle}, {Image: "python", Runtime: "runsc", State: store.MemberIdle}})
	stock := p.stock()
	if len(stock) != 2 || stock[0] != (farm.PoolStock{Image: "python", Target: 1, Ready: 1}) || stock[1] != (farm.PoolStock{Image: "python", Runtime: "runsc", Target: 2, Ready: 1}) {
		t.Errorf("stock %+v", stock)
	}
	got := p.missing(p.idle, time.Now())
	testbed.Check(t, len(got) == 1 && got[0] == (poolKey{"python", "runsc"}), "missing %v", got)
}

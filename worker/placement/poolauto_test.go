package placement

import (
	"maps"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// The size of an automatic pool, at each of its bounds.
func TestAutomaticPoolFitsTheFreeMemory(t *testing.T) {
	t.Parallel()
	const one = autoShare * memberCost // MiB that must be free for one member
	base := autoNode{memoryMB: 3 * one, cores: 8, capacity: farm.Capacity{MemoryMB: 1 << 20, CPUs: 1 << 10}, member: farm.Capacity{MemoryMB: 2048, CPUs: 2}, available: -1}
	for name, c := range map[string]struct {
		change func(n *autoNode)
		want   int
	}{
		"memory for three":                  {func(*autoNode) {}, 3},
		"1 MiB less":                        {func(n *autoNode) { n.memoryMB-- }, 2},
		"1 MiB less than for one":           {func(n *autoNode) { n.memoryMB = one - 1 }, 0},
		"no memory":                         {func(n *autoNode) { n.memoryMB = 0 }, 0},
		"not measured":                      {func(n *autoNode) { *n = autoNode{} }, 0},
		"as many as cores":                  {func(n *autoNode) { n.cores = 2 }, 2},
		"a large host":                      {func(n *autoNode) { n.memoryMB, n.cores = 256<<10, 64 }, maxAuto},
		"the host has memory for two left":  {func(n *autoNode) { n.available = 2 * one }, 2},
		"the host has 1 MiB less left":      {func(n *autoNode) { n.available = 2*one - 1 }, 1},
		"the host has nothing left":         {func(n *autoNode) { n.available = 0 }, 0},
		"the host has more than sandboxes":  {func(n *autoNode) { n.available = 1 << 20 }, 3},
		"a third is reserved":               {func(n *autoNode) { n.reserved.MemoryMB = 1<<20/3 + 1 }, 1},
		"half the cores are reserved":       {func(n *autoNode) { n.reserved.CPUs = 512 }, 1},
		"everything is reserved":            {func(n *autoNode) { n.reserved = n.capacity }, 0},
		"more is reserved than there is":    {func(n *autoNode) { n.reserved.MemoryMB = 2 << 20 }, 0},
		"two fit into what can be reserved": {func(n *autoNode) { n.capacity.MemoryMB = 2 * autoShare * 2048 }, 2},
		"1 MiB less can be reserved":        {func(n *autoNode) { n.capacity.MemoryMB = 2*autoShare*2048 - 1 }, 1},
		"cores of one can be reserved":      {func(n *autoNode) { n.capacity.CPUs = autoShare * 2 }, 1},
	} {
		n := base
		c.change(&n)
		if got := autoSize(n); got != c.want {
			t.Errorf("%s: %d members, want %d", name, got, c.want)
		}
	}
}

// Members give way to the sandboxes of callers: none is started in the place of one that no longer fits, and those that are far too many
// are retired.
func TestAutomaticPoolGivesWay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.MemoryReserveMB = 64
	p := b.pooling(64+3*autoShare*memberCost, poolAuto) // 4 cores
	p.gate.capacity = farm.Capacity{MemoryMB: 100_000, CPUs: 1000}
	refresh := func(want int) {
		t.Helper()
		workertest.Must(t, p.RefreshCapacity(t.Context()))
		_, err := p.RefreshPool(t.Context())
		workertest.Must(t, err)
		if stock := p.pool.stock(); len(stock) != 1 || stock[0].Target != want {
			t.Fatalf("the pool is %+v, want a target of %d", stock, want)
		}
	}
	for range 3 {
		b.member(p)
		refresh(3) // members do not count against themselves
	}
	job, _ := b.Sized(512, 400)
	reserve(t, b, p, job)
	refresh(1)
	b.Creation(farm.KindCreate) // it waits, so that no member is started
	workertest.Must(t, p.maintain(t.Context()))
	if n := b.IdleMembers(); n != 2 {
		t.Errorf("%d members are left, want twice the target of 1", n)
	}
	job, _ = b.Sized(512, 300)
	reserve(t, b, p, job)
	refresh(0)
	workertest.Must(t, p.maintain(t.Context()))
	if n := b.IdleMembers(); n != 0 || !p.WantsPool() {
		t.Errorf("%d members are left where none fits; the pool is wanted: %v", n, p.WantsPool())
	}
}

func reserve(t *testing.T, b *bundle, p *Placer, job farm.Ref) {
	t.Helper()
	claim, err := b.Store.Claim(t.Context(), job, p.deps.WorkerID)
	workertest.Must(t, err)
	if ok, err := p.Reserve(t.Context(), claim); err != nil || !ok {
		t.Fatalf("Reserve = %v, %v", ok, err)
	}
}

// The pool of a worker follows the images that the engine has, whoever has built them: in docker compose that is another service.
func TestAutomaticPoolOfAnImageThatOthersBuild(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.pooling(64<<10, poolAuto) // 4 cores
	_, err := p.node.Images(t.Context())
	workertest.Must(t, err)
	_, err = p.RefreshPool(t.Context())
	workertest.Must(t, err)
	if stock := p.pool.stock(); !p.WantsPool() || len(stock) != 1 || stock[0].Target != 4 {
		t.Errorf("the pool is wanted: %v, %+v; want a target of 4", p.WantsPool(), stock)
	}
}

// A node that is too small, or lacks the image, has no automatic pool, and the reconciler may remove what an earlier one left.
func TestNoAutomaticPool(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		memoryMB int
		image    string
	}{
		"too small":     {autoShare*memberCost - 1, autoImage},
		"another image": {64 << 10, "node"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.Fake.SetImage(c.image)
			p := b.pooling(c.memoryMB, poolAuto)
			_, err := p.node.Images(t.Context())
			workertest.Must(t, err)
			_, err = p.RefreshPool(t.Context())
			workertest.Must(t, err)
			if p.WantsPool() || len(p.pool.stock()) != 0 {
				t.Errorf("the pool is wanted: %v, %+v", p.WantsPool(), p.pool.stock())
			}
		})
	}
}

func TestPoolTargets(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]map[poolKey]int{
		"": {}, "none": {}, "auto": {}, "python=0": {{image: "python"}: 0}, "python=2,node=1": {{image: "python"}: 2, {image: "node"}: 1}, "python=1000": {{image: "python"}: 1000},
		"python=2,python@runsc=1": {{image: "python"}: 2, {"python", "runsc"}: 1},
	} {
		got, err := Config{Pool: split(text)}.poolTargets()
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%q gives %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"python", "python=", "python=-1", "python=1001", "=2", "Python=1", "python=1,python=2", "auto,python=1", "none,auto", "python=two", "python@=1", "@runsc=1", "python@runsc=1,python@runsc=2", "python@run sc=1"} {
		if err := (Config{Pool: split(text), PoolFill: 2, MemoryOvercommit: 1, CPUOvercommit: 1}).Validate(); err == nil {
			t.Errorf("%q is allowed", text)
		}
	}
}

func split(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

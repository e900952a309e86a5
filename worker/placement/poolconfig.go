package placement

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Words of worker.pool that are not images.
const (
	poolAuto = "auto"
	poolNone = "none"
)

// maxPool bounds the members of one image on one node.
const maxPool = 1000

// poolImage is the name of an image in worker.pool.
var poolImage = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// poolKey is the part of a node's pool for an image and an OCI runtime. Runtime is empty for what sandboxes of the image have on this node if they
// ask for none.
type poolKey struct{ image, runtime string }

// String is the form of worker.pool.
func (s poolKey) String() string {
	if s.runtime == "" {
		return s.image
	}
	return s.image + "@" + s.runtime
}

// poolKeyOf is where a member belongs.
func poolKeyOf(m store.Member) poolKey { return poolKey{m.Image, m.Runtime} }

// poolTargets reads worker.pool: how many members each pool key should have; none if the number is chosen (isAuto).
func (c Config) poolTargets() (map[poolKey]int, error) {
	targets := map[poolKey]int{}
	var errs []error
	for _, entry := range c.Pool {
		if entry == poolAuto || entry == poolNone {
			if len(c.Pool) > 1 {
				errs = append(errs, fmt.Errorf("worker.pool contains %q with other entries; use it alone", entry))
			}
			continue
		}
		name, text, _ := strings.Cut(entry, "=")
		count, err := strconv.Atoi(text)
		image, runtime, named := strings.Cut(name, "@")
		at := poolKey{image, runtime}
		_, twice := targets[at]
		switch {
		case err != nil || !poolImage.MatchString(image) || named && farm.CheckRuntime(runtime) != nil || count < 0 || count > maxPool:
			errs = append(errs, fmt.Errorf("worker.pool contains %q; write the name of an image and a number from 0 to %d, as python=2 or python@runsc=2, or auto or none", entry, maxPool))
		case twice:
			errs = append(errs, fmt.Errorf("worker.pool names %s twice", at))
		default:
			targets[at] = count
		}
	}
	return targets, errors.Join(errs...)
}

// PreparePool checks worker.pool against what the node offers. Call it once the node has its identity.
func (p *Placer) PreparePool() error {
	p.pool.mu.Lock()
	defer p.pool.mu.Unlock()
	targets := map[poolKey]int{}
	for at, count := range p.pool.targets {
		if !p.node.Offers(farm.SandboxSpec{Image: at.image, Runtime: at.runtime}) {
			return fmt.Errorf("worker.pool contains %s, but the runtime %s is not among engine.runtimes: add it there, or take the entry out", at, at.runtime)
		}
		if at.runtime == p.node.Runtime(farm.SandboxSpec{Image: at.image}) {
			at.runtime = ""
		}
		targets[at] += count
	}
	p.pool.targets = targets
	return nil
}

// The rule of worker.pool = auto: see autoSize.
const (
	autoImage  = "python"
	autoShare  = 8   // of the free memory, one part in so many is for the pool
	maxAuto    = 16  // larger bursts of creates are what a number in worker.pool is for
	autoSpare  = 2   // members stay up to so many times the target: few are started or removed as sandboxes come and go
	memberCost = 192 // MiB that an idle member uses at most, with what it has imported
)

// autoNode is what the size of an automatic pool depends on.
type autoNode struct {
	memoryMB  int           // that the host has for sandboxes
	cores     float64       // of the host
	capacity  farm.Capacity // that sandboxes may reserve
	reserved  farm.Capacity // of the capacity, by the sandboxes of callers
	member    farm.Capacity // that a member reserves
	available int           // MiB that the host has left, with what idle members use; below 0: not known
}

// autoSize is how many members an automatic pool should have: they use an eighth of the node's free memory at most, and reserve an eighth of
// what sandboxes can still reserve. Free is the memory for sandboxes less the part of the capacity that callers have reserved, and never
// more than the host has left. A start takes a core for about a second: with a member for each core, an empty pool is full again
// in seconds.
func autoSize(n autoNode) int {
	unreserved := max(1-n.reserved.Share(n.capacity), 0)
	free := unreserved * float64(n.memoryMB)
	if n.available >= 0 {
		free = min(free, float64(n.available))
	}
	return int(math.Floor(min(
		free/autoShare/memberCost,
		float64(n.capacity.MemoryMB)*unreserved/autoShare/float64(max(n.member.MemoryMB, 1)),
		n.capacity.CPUs*unreserved/autoShare/max(n.member.CPUs, 0.001),
		n.cores, maxAuto,
	)))
}

// isAuto reports whether the size of the pool is chosen.
func (c Config) isAuto() bool { return slices.Equal(c.Pool, []string{poolAuto}) }

// resizePool sets the target of an automatic pool from what is free now; 0 without its image, whoever builds that. members are those of the node.
func (p *Placer) resizePool(members []store.Member) {
	if !p.cfg.isAuto() {
		return
	}
	p.gate.mu.Lock()
	n := autoNode{
		memoryMB: p.gate.physical, cores: p.gate.host.CPUs, capacity: p.gate.capacity, reserved: p.gate.nodes[p.gate.node].Reserved,
		member: p.memberResources().Capacity(),
	}
	total := p.gate.host.MemoryMB
	p.gate.mu.Unlock()
	n.available = availableMB(total)
	largest := n
	largest.reserved, largest.available = farm.Capacity{}, -1
	for _, m := range members {
		if m.State == store.MemberClaimed {
			continue
		}
		n.reserved = n.reserved.Minus(m.Resources.Capacity())
		if n.available >= 0 && m.State == store.MemberIdle {
			n.available += memberCost
		}
	}
	_, cpu := p.Queues()
	p.pool.mu.Lock()
	defer p.pool.mu.Unlock()
	p.pool.auto, p.pool.spare = cpu && p.node.Listed(autoImage) && autoSize(largest) > 0, autoSpare
	p.pool.targets = map[poolKey]int{}
	if p.pool.auto {
		p.pool.targets = p.autoTargets(autoSize(n))
	}
}

// autoTargets shares an automatic pool between the runtimes that sandboxes may have, in equal parts. The default has what is left over.
func (p *Placer) autoTargets(size int) map[poolKey]int {
	standard, targets := p.node.Runtime(farm.SandboxSpec{Image: autoImage}), map[poolKey]int{}
	others := slices.DeleteFunc(p.node.Runtimes(), func(name string) bool { return name == standard })
	part := size / (len(others) + 1)
	for _, name := range others {
		targets[poolKey{autoImage, name}] = part
	}
	targets[poolKey{image: autoImage}] = size - part*len(others)
	return targets
}

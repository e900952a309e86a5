package placement

import (
	"errors"
	"fmt"
	"regexp"
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

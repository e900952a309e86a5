package placement

import (
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// takeGap is the time between two creates that are taken off a queue of GPUs while the first one has none yet: what this
// worker knows of free devices is from before it.
const takeGap = 50 * time.Millisecond

// gpus are the devices of this node, and what is known of their leases.
type gpus struct {
	now    func() time.Time
	wake   func()
	driver string            // of the engine
	cdi    map[string]string // what CDI calls a device; empty: the driver is another one

	mu      sync.Mutex
	devices []farm.GPUDevice
	leases  map[string]store.GPULease
	mine    map[string]gpuLease  // of sandboxes that this worker starts
	taken   map[string]time.Time // when a create was last looked for, by queue
	pause   map[string]time.Duration
	until   map[string]time.Time // no create is taken off a queue before
	yields  bool                 // creates that need no GPU are left alone
}

// gpuLease is what a sandbox has under a fence.
type gpuLease struct {
	devices []string
	fence   int64
}

// newGPUs is a node without devices.
func newGPUs(now func() time.Time, wake func()) *gpus {
	return &gpus{
		now: now, wake: wake, mine: map[string]gpuLease{}, taken: map[string]time.Time{}, pause: map[string]time.Duration{},
		until: map[string]time.Time{},
	}
}

// set makes the devices known; it is called once, before the queues are served.
func (g *gpus) set(devices []farm.GPUDevice, support engine.GPUSupport, cdi map[string]string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.devices, g.driver, g.cdi = devices, support.Driver, cdi
}

// any reports whether the node has devices. They do not change.
func (g *gpus) any() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.devices) > 0
}

// queues are those of the sandboxes that the devices fit.
func (g *gpus) queues() map[string]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	names := map[string]int{}
	for _, d := range g.devices {
		for _, name := range d.Queues() {
			names[name] = 4 // before creates that need none
		}
	}
	return names
}

// shown are the devices for the registration.
func (g *gpus) shown() []farm.GPUDevice {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := make([]farm.GPUDevice, len(g.devices))
	for i, d := range g.devices {
		_, d.Leased = g.leases[d.ID]
		list[i] = d
	}
	return list
}

// of are the ids of the devices of a model.
func (g *gpus) of(model string) (ids []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, d := range g.devices {
		if d.Is(model) {
			ids = append(ids, d.ID)
		}
	}
	return ids
}

// learn takes what the store says of leases. A device that became free brings the queues back at once.
func (g *gpus) learn(now store.GPUs) {
	g.mu.Lock()
	freed := false
	for id := range g.leases {
		if _, leased := now.Leases[id]; !leased {
			freed = true
		}
	}
	g.leases = now.Leases
	if freed {
		clear(g.pause)
		clear(g.until)
	}
	g.mu.Unlock()
	if freed {
		g.wake()
	}
}

// keep notes what a sandbox has that this worker starts.
func (g *gpus) keep(sandbox string, lease gpuLease) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mine[sandbox] = lease
}

// forget is the end of keep.
func (g *gpus) forget(sandbox string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.mine, sandbox)
}

// kept gives what keep noted.
func (g *gpus) kept(sandbox string) gpuLease {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mine[sandbox]
}

// missed notes that a create found too few devices: others of its queue are tried after a pause, which grows.
func (g *gpus) missed(queue string) {
	g.mu.Lock()
	g.pause[queue] = min(max(2*g.pause[queue], firstPause), longPause)
	pause := g.pause[queue]
	g.until[queue] = g.now().Add(pause)
	delete(g.taken, queue)
	g.mu.Unlock()
	time.AfterFunc(pause, g.wake)
}

// placed notes that a create of a queue has its devices.
func (g *gpus) placed(queue string) {
	g.mu.Lock()
	delete(g.pause, queue)
	delete(g.until, queue)
	delete(g.taken, queue)
	g.mu.Unlock()
	g.wake()
}

// open reports whether a create is to be taken now off a queue whose sandboxes need a model.
func (g *gpus) open(queue, model string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	if !g.free(model) || now.Before(g.until[queue]) {
		return false
	}
	if wait := takeGap - now.Sub(g.taken[queue]); wait > 0 {
		time.AfterFunc(wait, g.wake)
		return false
	}
	g.taken[queue] = now
	return true
}

// free reports whether a device of a model is free. The lock is held.
func (g *gpus) free(model string) bool {
	for _, d := range g.devices {
		if _, leased := g.leases[d.ID]; !leased && d.Is(model) {
			return true
		}
	}
	return false
}

// yield says that jobs wait for a GPU, and whether another worker takes those that need none. Where there is none, they are
// left alone only while a device is free: what waits for a device may wait for hours, and they must not.
func (g *gpus) yield(waiting, others bool) {
	g.mu.Lock()
	yields := waiting && (others || g.free(""))
	back := g.yields && !yields
	g.yields = yields
	g.mu.Unlock()
	if back {
		g.wake()
	}
}

// yielding reports whether creates that need no GPU are left alone.
func (g *gpus) yielding() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.yields
}

package placement

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// takeGap is the time between two creates that are taken off a queue of GPUs while the first has no lease yet: until then
// this worker counts its devices as free.
const takeGap = 50 * time.Millisecond

// gpus are the devices of this node, and what this worker knows of their leases.
type gpus struct {
	now  func() time.Time
	wake func()

	mu      sync.Mutex
	devices []farm.GPUDevice
	leases  map[string]store.GPULease
	mine    map[string][]string  // leased to sandboxes that this worker starts
	taken   map[string]time.Time // when a create was last taken, by queue
	pause   map[string]time.Duration
	until   map[string]time.Time // a queue is paused until then
}

// newGPUs makes a node without devices.
func newGPUs(now func() time.Time, wake func()) *gpus {
	return &gpus{
		now: now, wake: wake, mine: map[string][]string{}, taken: map[string]time.Time{}, pause: map[string]time.Duration{},
		until: map[string]time.Time{},
	}
}

// set sets the devices. It is called once, before the queues are served.
func (g *gpus) set(devices []farm.GPUDevice) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.devices = devices
}

// any reports whether the node has devices. They do not change.
func (g *gpus) any() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.devices) > 0
}

// queues are those that the devices can serve, with weights.
func (g *gpus) queues() map[string]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	names := map[string]int{}
	for _, d := range g.devices {
		for _, name := range d.Queues() {
			names[name] = 4 // before creates without a GPU
		}
	}
	return names
}

// list returns the devices for the registration.
func (g *gpus) list() []farm.GPUDevice {
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

// update takes the leases of the node. It ends the pauses when a device became free.
func (g *gpus) update(now store.GPUs) {
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

// keep remembers the devices that are leased to a sandbox which this worker starts.
func (g *gpus) keep(sandbox string, devices []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mine[sandbox] = devices
}

// forget forgets the devices that keep remembered.
func (g *gpus) forget(sandbox string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.mine, sandbox)
}

// kept returns the devices that keep has stored.
func (g *gpus) kept(sandbox string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mine[sandbox]
}

// pauseQueue pauses a queue after a create that found too few devices. The pause doubles until one finds enough.
func (g *gpus) pauseQueue(queue string) {
	g.mu.Lock()
	g.pause[queue] = min(max(2*g.pause[queue], firstPause), maxPause)
	pause := g.pause[queue]
	g.until[queue] = g.now().Add(pause)
	delete(g.taken, queue)
	g.mu.Unlock()
	time.AfterFunc(pause, g.wake)
}

// resumeQueue ends the pause of a queue after a create that has its devices.
func (g *gpus) resumeQueue(queue string) {
	g.mu.Lock()
	delete(g.pause, queue)
	delete(g.until, queue)
	delete(g.taken, queue)
	g.mu.Unlock()
	g.wake()
}

// open reports whether a create may be taken now off a queue of a model.
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

// free reports whether a device of a model is free. The caller holds the lock.
func (g *gpus) free(model string) bool {
	for _, d := range g.devices {
		if _, leased := g.leases[d.ID]; !leased && d.Is(model) {
			return true
		}
	}
	return false
}

// gpuTimeout bounds a query: the driver wakes every device, which takes seconds per device without persistence mode.
const gpuTimeout = time.Minute

// maxGPUOutput bounds the output, well above that of any machine.
const maxGPUOutput = 1 << 20

// GPUDevice is a GPU of this machine.
type GPUDevice struct {
	farm.GPUDevice        // the id is the driver's UUID
	Index          string // the number of the device, which may change with a restart
	Name           string // the driver's name, such as "NVIDIA A100-SXM4-80GB"
	MIG            bool   // the device is split into instances, which must be listed in worker.gpus
}

// gpuQuery lists the fields that nvidia-smi prints, in this order.
const gpuQuery = "--query-gpu=index,uuid,name,memory.total,mig.mode.current"

// GPUDevices lists the GPUs of this machine. A machine without nvidia-smi has none, which is not an error.
func GPUDevices(ctx context.Context) ([]GPUDevice, error) { return devices(ctx, "nvidia-smi") }

func devices(ctx context.Context, program string) ([]GPUDevice, error) {
	path, err := exec.LookPath(program)
	if errors.Is(err, exec.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for nvidia-smi: %w", err)
	}
	ctx, done := context.WithTimeout(ctx, gpuTimeout)
	defer done()
	command := exec.CommandContext(ctx, path, gpuQuery, "--format=csv,noheader,nounits") //nolint:gosec // found on the PATH
	var stderr bytes.Buffer
	command.Stderr = &stderr
	command.WaitDelay = time.Second
	out, err := command.Output()
	if err != nil {
		text := strings.Join(strings.Fields(string(out[:min(len(out), 300)])+" "+stderr.String()[:min(stderr.Len(), 300)]), " ")
		return nil, fmt.Errorf("ask nvidia-smi for devices: %w: %s", err, text)
	}
	return parseDevices(out[:min(len(out), maxGPUOutput)])
}

// parseDevices parses nvidia-smi's lines, such as "0, GPU-8f1c…, NVIDIA A100-SXM4-80GB, 81920, Disabled".
func parseDevices(out []byte) ([]GPUDevice, error) {
	r := csv.NewReader(bytes.NewReader(out))
	r.TrimLeadingSpace, r.FieldsPerRecord, r.LazyQuotes = true, 5, true
	var list []GPUDevice
	for {
		line, err := r.Read()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read nvidia-smi: %w", err)
		}
		d := GPUDevice{Index: line[0], Name: strings.TrimSpace(line[2]), MIG: strings.TrimSpace(line[4]) == "Enabled"}
		d.ID, d.Model = strings.TrimSpace(line[1]), farm.NormalGPUModel(line[2])
		d.MemoryMB, _ = strconv.Atoi(strings.TrimSpace(line[3])) // devices that share the machine's memory print "[N/A]"
		if !strings.HasPrefix(d.ID, "GPU-") || strings.ContainsAny(d.ID, ", ") {
			return nil, fmt.Errorf("read nvidia-smi: %q is not the UUID of a device", d.ID)
		}
		list = append(list, d)
	}
}

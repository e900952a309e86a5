package node

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/telemetry"
)

const (
	usageTimeout = 3 * time.Second // the end of a sandbox must not wait for long
	roundsAtOnce = 8               // sandboxes, of which a tenant has half
	maxTenants   = 1000            // as labels of metrics; the others share one
)

// UsageRecords keep the usage.
type UsageRecords interface {
	AddUsage(ctx context.Context, s store.Sample) (store.Usage, error)
}

// Usage is what the container of a sandbox has used: by the counters of the engine or, if it has none, by those of its control group, which its agent
// reads. The agent is asked over an open connection; one is made only for the last sample. Since it is inside, no more is believed than the sandbox may have
// used. ok is false if nobody counts now.
func (n *Node) Usage(ctx context.Context, s *farm.Sandbox, last bool) (u farm.ContainerUsage, ok bool, err error) {
	if c, counts := n.engine.(Counters); counts {
		return c.Usage(ctx, n.Container(s))
	}
	if s.Container == "" || !last && !n.Connected(s.ID) {
		return u, false, nil
	}
	c, err := n.Connect(ctx, s)
	if err != nil {
		return u, false, err
	}
	use, err := c.Live().Use(ctx)
	if err != nil {
		return u, false, err
	}
	limits := s.Spec.Resources.OrDefault()
	u = farm.ContainerUsage{Container: s.Container, CPU: use.CPU, Memory: min(use.MemoryBytes-use.CacheBytes, int64(limits.MemoryMB)<<20)}
	if most := limits.CPUs * n.deps.Now().Sub(s.CreatedAt).Seconds(); use.CPU.Seconds() > most {
		u.CPU = time.Duration(max(most, 0) * float64(time.Second))
	}
	return u, true, nil
}

// SamplerDeps are the dependencies of a Sampler. All fields except Metrics are required.
type SamplerDeps struct {
	Usage   func(ctx context.Context, s *farm.Sandbox, last bool) (farm.ContainerUsage, bool, error) // Node.Usage
	Records UsageRecords
	Log     *slog.Logger
	Base    context.Context // the worker's life, in which rounds of SampleAll run
	Metrics prometheus.Registerer
}

// Sampler counts what sandboxes use, for the bills of their tenants: CPU time, memory and GPUs, by Node.Usage. A sample is taken on a timer
// and before a container is removed. Counters only grow and a record remembers its last sample, so several workers of a node and takeovers add
// nothing twice. What a container used after its last sample is lost if it dies without a worker. It is safe for concurrent use.
type Sampler struct {
	deps             SamplerDeps
	cpu, memory, gpu *prometheus.CounterVec
	rounds           *rounds

	mu      sync.Mutex
	tenants map[string]bool
}

// NewSampler makes a Sampler.
func NewSampler(deps SamplerDeps) (*Sampler, error) {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"tenant"})
	}
	s := &Sampler{
		deps:    deps,
		cpu:     counter("sandfarm_usage_cpu_seconds_total", "CPU seconds of sandboxes that this worker counted, by tenant."),
		memory:  counter("sandfarm_usage_memory_gb_seconds_total", "GiB of memory times seconds that this worker counted, by tenant."),
		gpu:     counter("sandfarm_usage_gpu_seconds_total", "Seconds of leased GPUs that this worker counted, by tenant."),
		rounds:  newRounds(),
		tenants: map[string]bool{},
	}
	if deps.Metrics == nil {
		return s, nil
	}
	return s, telemetry.Register(deps.Metrics, s.cpu, s.memory, s.gpu)
}

// Sample adds what a sandbox has used since its last sample. It is for the last one, before the container ends.
func (s *Sampler) Sample(ctx context.Context, box *farm.Sandbox) { s.sample(ctx, box, true) }

// sample fails silently: the next sample adds what this one missed.
func (s *Sampler) sample(ctx context.Context, box *farm.Sandbox, last bool) {
	ctx, done := context.WithTimeout(ctx, usageTimeout)
	defer done()
	u, running, err := s.deps.Usage(ctx, box, last)
	if err == nil && !running {
		return
	}
	gpus := 0
	if box.Spec.GPU != nil {
		gpus = box.Spec.GPU.Count
	}
	var added store.Usage
	if err == nil {
		added, err = s.deps.Records.AddUsage(ctx, store.Sample{Sandbox: box.Ref(), Container: u.Container, CPU: u.CPU, MemoryKB: u.Memory >> 10, GPUs: gpus})
	}
	if err != nil {
		s.deps.Log.DebugContext(ctx, "usage of a sandbox was not counted", "sandbox_id", box.ID, "error", err)
		return
	}
	label := s.label(box.Tenant)
	s.cpu.WithLabelValues(label).Add(added.CPUSeconds)
	s.memory.WithLabelValues(label).Add(added.MemoryGBSeconds)
	s.gpu.WithLabelValues(label).Add(added.GPUSeconds)
}

// SampleAll samples running sandboxes in rounds, see rounds. It does not wait.
func (s *Sampler) SampleAll(boxes []*farm.Sandbox) {
	s.rounds.begin(boxes, func(box *farm.Sandbox) { s.sample(s.deps.Base, box, false) })
}

// Wait waits for the rounds of SampleAll, which the end of Base ends.
func (s *Sampler) Wait() { s.rounds.background.Wait() }

// label is the label of a tenant in metrics.
func (s *Sampler) label(tenant string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.tenants[tenant] && len(s.tenants) >= maxTenants {
		return "(others)" // no tenant can be named so
	}
	s.tenants[tenant] = true
	return tenant
}

// rounds ask agents, a few at a time, beside their caller, since agents may stall: while an earlier round still asks those of a tenant, that tenant's
// are left out. Agents that stall delay no other tenant.
type rounds struct {
	places     *budget.Places
	background sync.WaitGroup

	mu   sync.Mutex
	open map[string]bool // tenants whose agents are being asked
}

func newRounds() *rounds {
	return &rounds{places: budget.NewPlaces(roundsAtOnce), open: map[string]bool{}}
}

// begin begins a round. ask must return in bounded time.
func (r *rounds) begin(boxes []*farm.Sandbox, ask func(*farm.Sandbox)) {
	all := map[string][]*farm.Sandbox{}
	for _, box := range boxes {
		all[box.Tenant] = append(all[box.Tenant], box)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for tenant, own := range all {
		if r.open[tenant] {
			continue
		}
		r.open[tenant] = true
		r.background.Go(func() { r.round(tenant, own, ask) })
	}
}

// round asks the agents of a tenant.
func (r *rounds) round(tenant string, boxes []*farm.Sandbox, ask func(*farm.Sandbox)) {
	var group sync.WaitGroup
	for _, box := range boxes {
		place := r.places.Ask(tenant)
		<-place.Granted() // whoever has one leaves it in bounded time
		group.Go(func() {
			defer place.Leave()
			ask(box)
		})
	}
	group.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, tenant)
}

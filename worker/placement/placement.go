// Package placement decides which creates this worker takes, and reserves what their sandboxes need on its node.
//
//   - gate.go: memory and cores. One script in Redis holds the reservations of all nodes; while its own node is full, or much fuller
//     than another, the gate pauses creates.
//   - devices.go, gpulease.go: GPUs and their leases, under the generation of the sandbox.
//   - pool.go, poolconfig.go, poolfill.go: the warm pool, sandboxes that are started ahead of need.
//
// The reconciler calls ReconcileReservations and ReconcileGPUs to correct what a dead worker left.
package placement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/telemetry"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// Values of Config.SandboxCgroup.
const (
	CgroupAuto = "auto"
	CgroupNone = "none"
)

// Config holds the settings of placement: those of the worker of the same names.
type Config struct {
	MemoryReserveMB  int
	MemoryOvercommit float64
	CPUOvercommit    float64
	SandboxCgroup    string // CgroupAuto or CgroupNone; empty: none

	GPUs        []string
	GPUTakesCPU bool

	Pool     []string
	PoolAge  time.Duration
	PoolFill int

	CreateTimeout time.Duration
	UploadRetry   time.Duration // for how long the engine is waited for
	Limits        farm.Limits
	Version       string // of the program
}

// Validate reports every problem of the settings.
func (c Config) Validate() error {
	var errs []error
	if c.MemoryReserveMB < 0 {
		errs = append(errs, fmt.Errorf("worker.memory_reserve_mb is %d; it cannot be negative", c.MemoryReserveMB))
	}
	if c.SandboxCgroup != "" && c.SandboxCgroup != CgroupAuto && c.SandboxCgroup != CgroupNone {
		errs = append(errs, fmt.Errorf("worker.sandbox_cgroup is %q; auto and none are allowed", c.SandboxCgroup))
	}
	if _, err := c.poolTargets(); err != nil {
		errs = append(errs, err)
	}
	for name, factor := range map[string]float64{"memory_overcommit": c.MemoryOvercommit, "cpu_overcommit": c.CPUOvercommit} {
		if factor < 0.01 || factor > 1000 {
			errs = append(errs, fmt.Errorf("worker.%s is %g; 0.01 to 1000 are allowed", name, factor))
		}
	}
	if _, _, err := listedGPUs(c.GPUs); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Host is what a node.Engine also has if all its containers run on one machine, where this package places them. An engine that places them itself,
// as a cluster does, lacks it: then this package reserves memory and cores of its Capacity only, and leases no GPUs.
type Host interface {
	// LimitSandboxes bounds the memory in bytes of all sandboxes that are created from now on together. An error says why that is not possible.
	LimitSandboxes(ctx context.Context, memory int64) error
	// OfferGPUs returns those of these devices that the engine can give to containers, and by which driver; "" if it has none. index is the number
	// of a device, by id.
	OfferGPUs(ctx context.Context, devices []farm.GPUDevice, index map[string]string) ([]farm.GPUDevice, string, error)
}

// Deps are the dependencies of a Placer. All fields except Metrics are required.
type Deps struct {
	Store      *store.Store
	Engine     node.Engine
	Node       *node.Node
	WorkerID   string
	Log        *slog.Logger
	Now        func() time.Time
	Wake       func()          // makes the queues ask the gate again: its answer may have changed
	PoolFailed func()          // counts a round of the pool's maintenance that failed
	Base       context.Context // the life of background work, ended by the worker
	Metrics    prometheus.Registerer
}

// Placer reserves what sandboxes need on this worker's node: memory and cores, GPUs, and members of the warm pool.
type Placer struct {
	cfg     Config
	deps    Deps
	store   *store.Store
	engine  node.Engine
	host    Host // nil: the engine places containers itself
	node    *node.Node
	log     *slog.Logger
	metrics *metrics

	gate gate
	// cgroupProblem is why sandboxes have no common cgroup, as it was logged last; nil: nothing was logged.
	cgroupProblem atomic.Pointer[string]
	gpus          *gpus
	pool          pool
	turns         *budget.Places // of sandboxes that start, hibernate or resume, for jobs and for the pool

	background sync.WaitGroup // fills of the pool
}

// New makes a Placer. Call Measure and FindGPUs before its first use, once the node has its identity.
func New(cfg Config, deps Deps) (*Placer, error) {
	targets, err := cfg.poolTargets()
	if err != nil {
		return nil, err
	}
	p := &Placer{
		cfg: cfg, deps: deps, store: deps.Store, engine: deps.Engine, node: deps.Node, log: deps.Log, pool: newPool(targets),
		gate: gate{smallest: farm.Capacity{MemoryMB: cfg.Limits.Memory.Min, CPUs: cfg.Limits.CPUs.Min}, now: deps.Now, wake: deps.Wake},
		gpus: newGPUs(deps.Now, deps.Wake), turns: budget.NewPlaces(TurnsPerCore * runtime.NumCPU()),
	}
	p.host, _ = deps.Engine.(Host)
	p.metrics = newMetrics(p)
	return p, p.metrics.register(deps.Metrics)
}

// Wait waits for background work. Base must have ended.
func (p *Placer) Wait() { p.background.Wait() }

// retry repeats a write to Redis while it does not answer.
func (p *Placer) retry(ctx context.Context, write func(context.Context) error) error {
	return retry.Writes{Limit: p.cfg.UploadRetry}.Do(ctx, write)
}

// Accepts is the gate: it decides whether tasks are taken off a queue now. It is asked often, and answers from memory.
func (p *Placer) Accepts(queue string) bool {
	model, gpu := farm.GPUQueue(queue)
	switch {
	case gpu:
		return p.gate.fits() && p.gpus.open(queue, model)
	case queue == farm.QueueCPU:
		return p.gate.open()
	default:
		return true
	}
}

// Queues returns the queues of the node's GPUs with their weights, and whether the worker also serves creates without a GPU.
func (p *Placer) Queues() (queues map[string]int, cpu bool) {
	return p.gpus.queues(), !p.gpus.any() || p.cfg.GPUTakesCPU
}

// Reserve reserves what the new sandbox of a job needs on this node. It reports whether all of it is reserved; if not, nothing
// is. Jobs that neither start nor resume a sandbox need nothing.
func (p *Placer) Reserve(ctx context.Context, claim *store.Claim) (bool, error) {
	if ResumesSandbox(claim) {
		return p.reserveCapacity(ctx, claim)
	}
	if !StartsSandbox(claim) {
		return true, nil
	}
	if claim.Sandbox.State == farm.SandboxQueued && claim.Sandbox.Node != p.node.ID() && p.gate.drains() {
		return false, nil // it was taken just before the node was drained
	}
	if started := claim.Sandbox.State != farm.SandboxQueued && claim.Sandbox.Node == p.node.ID(); !started && !p.node.Offers(claim.Sandbox.Spec) {
		p.gate.pauseCreates() // a node that offers its runtime takes it
		return false, nil
	}
	if ok, err := p.leaseGPUs(ctx, claim); !ok || err != nil {
		return false, err
	}
	ok, err := p.reserveCapacity(ctx, claim)
	if !ok && claim.Sandbox.Node != p.node.ID() {
		p.ReleaseGPUs(ctx, claim.Sandbox)
	}
	return ok, err
}

// StartsSandbox reports whether a job has a sandbox to start.
func StartsSandbox(claim *store.Claim) bool {
	return (claim.Job.Kind == farm.KindCreate || claim.Job.Kind == farm.KindRun) && claim.Sandbox != nil &&
		(claim.Sandbox.State == farm.SandboxQueued || claim.Sandbox.State == farm.SandboxStarting)
}

// ResumesSandbox reports whether a job needs its sandbox, which is hibernated.
func ResumesSandbox(claim *store.Claim) bool {
	return claim.Sandbox != nil && claim.Sandbox.State == farm.SandboxHibernated && !claim.Job.Inline && claim.Job.Kind != farm.KindHibernate
}

// Release releases what a sandbox whose container is gone reserved here: memory, cores and its record in the pool.
// GPUs are separate (ReleaseGPUs). What fails is left to the reconciler.
func (p *Placer) Release(ctx context.Context, s *farm.Sandbox) {
	p.ReleaseCapacity(ctx, s.Ref(), s.Generation)
	p.ForgetMember(ctx, s)
}

// ReleaseWithoutEngine releases what a sandbox reserved on a node whose engine does not answer. Its GPUs stay leased until the
// engine answers: a device may still be in use.
func (p *Placer) ReleaseWithoutEngine(ctx context.Context, s *farm.Sandbox) error {
	p.gpus.forget(s.ID)
	_, err := p.store.Unreserve(ctx, p.node.ID(), farm.Capacity{}, s.Ref(), s.Generation) // the node offers nothing
	if err == nil && s.Pooled {
		_, err = p.DropMember(ctx, s.ID, store.MemberClaimed)
	}
	return err
}

// TurnsPerCore is how many sandboxes start, hibernate or resume at once for each core of the machine, of which one tenant has half: more at once take
// longer each, those of others too, and leave less to running code. The engine packs and unpacks memory outside the sandboxes' own limits.
const TurnsPerCore = 2

// poolTenant is for whom members of the pool are started.
const poolTenant = ""

// Hibernating is for whom sandboxes of a tenant hibernate: its starts and resumes, for which callers wait, are not behind a queue of these.
func Hibernating(tenant string) string { return tenant + " hibernates" }

// Turn waits for the turn of a tenant's sandbox to start, hibernate or resume. It lasts until done is called; meanwhile the caller must not wait for
// another one. The error is that of ctx. An engine that places containers itself starts them on many machines, and needs no turns.
func (p *Placer) Turn(ctx context.Context, tenant string) (done func(), err error) {
	if p.host == nil {
		return func() {}, nil
	}
	place := p.turns.Ask(tenant)
	select {
	case <-place.Granted():
		return place.Leave, nil
	case <-ctx.Done():
		place.Leave()
		return nil, context.Cause(ctx)
	}
}

// Started forgets the devices of a sandbox whose container has started with its devices.
func (p *Placer) Started(sandboxID string) { p.gpus.forget(sandboxID) }

// SetEngineDown pauses the gate of creates while the engine does not answer.
func (p *Placer) SetEngineDown(down bool) {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	p.gate.down = down
}

// Drain sets whether the node is drained, and reports whether that is a change. A drained node takes no creates and has no warm pool; what is on it
// continues.
func (p *Placer) Drain(drained bool) (changed bool) {
	p.gate.mu.Lock()
	changed, p.gate.drained = p.gate.drained != drained, drained
	p.gate.mu.Unlock()
	if changed {
		p.pool.drain(drained)
		p.deps.Wake()
	}
	return changed
}

// Withdraw records that the node offers nothing while its engine does not answer. It reports whether another node has room for
// the smallest sandbox.
func (p *Placer) Withdraw(ctx context.Context) (otherHasRoom bool, err error) {
	nodes, err := p.store.ReportCapacity(ctx, p.node.ID(), farm.Capacity{})
	return p.gate.otherHasRoom(nodes), err
}

// Status is the part of a worker's registration that describes its node.
type Status struct {
	Room store.NodeCapacity
	// Drained says that the node takes no new sandboxes. Its capacity is zero then.
	Drained bool
	// LargestMB is the memory that one sandbox may have; 0: not measured yet.
	LargestMB int
	// Machine is the host and what its programs use; nil: not known.
	Machine *farm.Machine
	GPUs    []farm.GPUDevice
	Pool    []farm.PoolStock
}

// Status returns what was known at the last refresh.
func (p *Placer) Status() Status {
	return Status{Room: p.gate.mine(), Drained: p.gate.drains(), LargestMB: p.gate.largest(), Machine: machineOf(p.gate.machine()), GPUs: p.gpus.list(), Pool: p.pool.stock()}
}

// machineOf says what the programs of a host use, if this is the host.
func machineOf(host farm.Capacity) *farm.Machine {
	available := availableMB(host.MemoryMB)
	if available < 0 {
		return nil
	}
	return &farm.Machine{MemoryMB: host.MemoryMB, UsedMB: host.MemoryMB - available, CPUs: host.CPUs, Load: machineLoad()}
}

// UnlockPool lets another worker of the node maintain the pool.
func (p *Placer) UnlockPool(ctx context.Context) error {
	return p.store.Unlock(ctx, p.poolLock(), p.deps.WorkerID)
}

// WantsPool reports whether this worker's settings ask for a warm pool.
func (p *Placer) WantsPool() bool { return p.pool.wants() }

// availableMB is the memory in MiB that programs on this machine can still use without swapping. It is below 0 if that is not known, or if this
// machine does not have totalMB of memory: then the engine runs elsewhere.
func availableMB(totalMB int) int {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return -1
	}
	return parseAvailable(string(text), totalMB)
}

// machineLoad is the number of programs that ran or waited for a core of this machine, a mean over the last minute; 0: not known.
func machineLoad() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}

// parseAvailable reads a file in the format of /proc/meminfo.
func parseAvailable(text string, totalMB int) int {
	values := map[string]int{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, ":")
		if fields := strings.Fields(rest); len(fields) > 0 {
			values[name], _ = strconv.Atoi(fields[0]) // kB
		}
	}
	available, known := values["MemAvailable"]
	if !known || values["MemTotal"]>>10 != totalMB {
		return -1
	}
	return available >> 10
}

// metrics count what happens to the warm pool, and read reservations when they are scraped.
type metrics struct {
	started, fillErrors, unusable prometheus.Counter
	left                          *prometheus.CounterVec
	reserved                      *reserved
}

func newMetrics(p *Placer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		started:    counter("sandfarm_worker_pool_started_total", "Sandboxes that were started for the warm pool."),
		fillErrors: counter("sandfarm_worker_pool_fill_errors_total", "Sandboxes for the warm pool that could not be started."),
		unusable:   counter("sandfarm_worker_pool_unusable_total", "Claimed sandboxes of the warm pool that had ended or were made from something else, so that another one was started."),
		left: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_worker_pool_left_total", Help: "Sandboxes that left the warm pool without a claim, by reason: died, changed, old, surplus, room or stale.",
		}, []string{"reason"}),
		reserved: newReserved(p),
	}
	for _, reason := range []string{LeftDied, LeftChanged, LeftOld, LeftSurplus, LeftRoom, LeftStale} { // so that rate() counts the first one
		m.left.WithLabelValues(reason)
	}
	return m
}

func (m *metrics) register(to prometheus.Registerer) error {
	if to == nil {
		return nil
	}
	return telemetry.Register(to, m.started, m.fillErrors, m.unusable, m.left, m.reserved)
}

// reserved reads the node's reservations when it is scraped.
type reserved struct {
	placer *Placer

	capacityBytes, reservedBytes *prometheus.Desc
	capacityCPUs, reservedCPUs   *prometheus.Desc
	poolAge                      *prometheus.Desc
}

func newReserved(p *Placer) *reserved {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, []string{"node"}, nil) }
	return &reserved{
		placer:        p,
		capacityBytes: desc("sandfarm_node_memory_capacity_bytes", "Memory that the worker's node has for sandboxes."),
		reservedBytes: desc("sandfarm_node_memory_reserved_bytes", "Memory that is reserved for sandboxes of the worker's node."),
		capacityCPUs:  desc("sandfarm_node_cpus_capacity", "Cores that the worker's node has for sandboxes, its overcommit included."),
		reservedCPUs:  desc("sandfarm_node_cpus_reserved", "Cores that are reserved for sandboxes of the worker's node."),
		poolAge:       desc("sandfarm_pool_oldest_seconds", "For how long the oldest sandbox of the node's warm pool has waited for a create; 0 when there is none."),
	}
}

// Describe is part of prometheus.Collector.
func (r *reserved) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{r.capacityBytes, r.reservedBytes, r.capacityCPUs, r.reservedCPUs, r.poolAge} {
		ch <- d
	}
}

// Collect is part of prometheus.Collector.
func (r *reserved) Collect(ch chan<- prometheus.Metric) {
	node, room := r.placer.gate.named()
	if node == "" {
		return // not measured yet
	}
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, node)
	}
	const mib = 1 << 20
	gauge(r.capacityBytes, float64(room.Capacity.MemoryMB)*mib)
	gauge(r.reservedBytes, float64(room.Reserved.MemoryMB)*mib)
	gauge(r.capacityCPUs, room.Capacity.CPUs)
	gauge(r.reservedCPUs, room.Reserved.CPUs)
	gauge(r.poolAge, r.placer.pool.age(r.placer.deps.Now()).Seconds())
}

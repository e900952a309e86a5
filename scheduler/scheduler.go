// Package scheduler runs the farm's periodic loops: it closes sandboxes at their deadline, enqueues jobs that are in no queue, lets other workers
// take over the jobs of dead ones, and removes what is old. Any number of schedulers may run; one leads, by a lock that it renews.
//
// It promises that no sandbox outlives its deadline and no accepted job is forgotten, whatever crashes.
package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Config holds the settings of a scheduler.
type Config struct {
	ExpireEvery time.Duration `toml:"-"` // how often the scheduler closes sandboxes whose deadline has passed
	SweepEvery  time.Duration `toml:"-"` // how often the scheduler enqueues jobs that are in no queue, and hands jobs of dead workers to others
	RetainEvery time.Duration `toml:"-"` // how often expired artifacts are removed from the object store
	TrimEvery   time.Duration `toml:"-"` // how often records beyond their bounds are removed, and the counts behind quotas are compared with the records
	PoolEvery   time.Duration `toml:"-"` // how often the warm pool is compared with its targets
	NodeTimeout time.Duration `toml:"node_timeout" default:"5m" min:"1s" doc:"How long a node may be without a worker before it is ended: its sandboxes and their jobs are lost, creations continue on other nodes, and what it holds is released. Time in which the whole farm is stopped does not count. Raise it before maintenance of a node that takes longer."`
	Lifecycle   bool          `toml:"lifecycle_rules" default:"true" doc:"Set lifecycle rules in the bucket, so that the object store removes what the farm should have removed days before."`
	Jitter      float64       `toml:"-"` // random part of its interval by which a loop may run earlier, so that schedulers started together do not stay in step

	// Settle is how long a new leader waits before it takes workers for dead: half of store.HeartbeatTTL by default; negative: not at all. If Redis was away, the
	// lease has lapsed like the registrations of all workers, and they need two heartbeats to be back.
	Settle time.Duration `toml:"-"`
	Limits farm.Limits   `toml:"-"`
}

func (c Config) withDefaults() Config {
	c.ExpireEvery = cmp.Or(c.ExpireEvery, time.Second)
	c.SweepEvery = cmp.Or(c.SweepEvery, 2*time.Second)
	c.PoolEvery = cmp.Or(c.PoolEvery, 5*time.Second)
	c.Settle = cmp.Or(c.Settle, store.HeartbeatTTL/2)
	c.NodeTimeout = cmp.Or(c.NodeTimeout, 5*time.Minute)
	c.Jitter = cmp.Or(c.Jitter, 0.1)
	if c.Limits == (farm.Limits{}) {
		c.Limits = farm.DefaultLimits()
	}
	every := max(time.Second, min(time.Minute, time.Duration(c.Limits.RetentionSeconds)*time.Second/4))
	c.RetainEvery, c.TrimEvery = cmp.Or(c.RetainEvery, every), cmp.Or(c.TrimEvery, every)
	return c
}

// Validate reports a wrong setting. Zero fields count as their defaults.
func (c Config) Validate() error { return c.withDefaults().validate() }

func (c Config) validate() error {
	if c.NodeTimeout < time.Second {
		return fmt.Errorf("scheduler.node_timeout is %s; it must be at least 1s", c.NodeTimeout)
	}
	return nil
}

const (
	// leaseTTL is how long a scheduler leads without renewing the lock. After that another one takes over.
	leaseTTL = 5 * time.Second
	// LockName is the lock of the leader.
	LockName = "scheduler"
	// batch is how many records of each tenant a step handles at once.
	batch = 200
)

// Records are the scheduler's view of the store.
type Records interface {
	Lock(ctx context.Context, name, owner string, ttl time.Duration) (bool, error)
	Unlock(ctx context.Context, name, owner string) error
	Tenants(ctx context.Context) ([]string, error)
	Due(ctx context.Context, tenant string, limit int) ([]farm.Ref, error)
	Sandbox(ctx context.Context, ref farm.Ref) (*farm.Sandbox, error)
	MoveSandbox(ctx context.Context, m store.Move) (*farm.Sandbox, error)
	ExpiredArtifacts(ctx context.Context, tenant string, limit int) ([]farm.Artifact, error)
	DeleteArtifacts(ctx context.Context, artifacts []farm.Artifact) (int, error)
	ArtifactsOfJob(ctx context.Context, job farm.Ref) ([]farm.Artifact, error)
	OrphanedObjects(ctx context.Context, keys []string) ([]string, error)
	RepairStored(ctx context.Context, tenant string, bound int, anew bool) (drift store.StoredDrift, done bool, err error)
	RepairJobMemory(ctx context.Context, tenant string) (drift store.JobMemory, checked bool, err error)
}

// Ledger removes records that are beyond their bounds.
type Ledger interface {
	Trim(ctx context.Context, tenant string) (store.Trimmed, error)
	ForgetFinished(ctx context.Context) ([]store.Forgotten, error)
	TrimKeys(ctx context.Context, before time.Time) (int, error)
	Workers(ctx context.Context) ([]farm.Worker, error)
}

// Pool lists the warm pool.
type Pool interface {
	Members(ctx context.Context, nodes ...string) ([]store.Member, error)
}

// Quotas are the counts behind the quotas of tenants.
type Quotas interface {
	RepairUse(ctx context.Context, tenant string) (store.Drift, error)
	AddStored(ctx context.Context, tenant string) error
}

// Tasks removes archived tasks and unused queues.
type Tasks interface {
	Trim(ctx context.Context, before time.Time, unused func(queue string) bool) (queue.Trimmed, error)
}

// Jobs accepts jobs and enqueues those that are in no queue.
type Jobs interface {
	Submit(ctx context.Context, a store.Accept) (store.Accepted, error)
	Sweep(ctx context.Context, tenant string) (int, error)
	DropCallbacks(ctx context.Context, tenant string) (int, error)
}

// Blobs lists and removes objects.
type Blobs interface {
	ListAfter(ctx context.Context, prefix, after string, fn func(blob.Info) error) error
	Delete(ctx context.Context, keys ...string) error
	AbortUploads(ctx context.Context, prefix string, before time.Time) (int, error)
	EnsureLifecycle(ctx context.Context, rules ...blob.LifecycleRule) (changed bool, err error)
}

// Deps are the dependencies of a scheduler. All are required, except those with a default.
type Deps struct {
	Records Records
	Ledger  Ledger
	Jobs    Jobs
	Tasks   Tasks
	Quotas  Quotas    // nil: they are not compared with the records
	Pool    Pool      // nil: no warm pool
	Nodes   Nodes     // nil: no node is ended
	End     NodeEnder // required with Nodes
	Drains  Drains    // nil: nothing on drained nodes is hibernated or closed
	Fleet   Fleet     // nil: no events; it needs Nodes, and Drains for those of drains
	Blobs   Blobs
	Log     *slog.Logger
	Metrics prometheus.Registerer // nil: no metrics
	Random  func() float64        // from 0 to 1, for the jitter; default math/rand
}

// Scheduler runs the loops.
type Scheduler struct {
	cfg    Config
	deps   Deps
	id     string
	log    *slog.Logger
	seen   *metrics
	pool   pool
	leases nodeLeases
	drains drains
	fleet  fleetWatch

	wg sync.WaitGroup

	mu    sync.Mutex
	stop  context.CancelFunc
	until time.Time     // end of the lease, by this machine's clock; zero: it does not lead
	since time.Time     // when it became the leader, without a gap since
	gain  chan struct{} // closed, and replaced, when this scheduler becomes the leader

	noRules bool       // of the loop rules: the log says that the object store has none
	bucket  comparison // of the loop stored

	staging, records position // of the loop unstage
}

// New makes a scheduler. Start starts it.
func New(cfg Config, deps Deps) (*Scheduler, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if deps.Random == nil {
		deps.Random = rand.Float64
	}
	s := &Scheduler{cfg: cfg, deps: deps, id: farm.NewID("sch_"), log: deps.Log, gain: make(chan struct{})}
	var err error
	if s.seen, err = newMetrics(deps.Metrics, s.leading, &s.pool, &s.leases, &s.drains); err != nil {
		return nil, err
	}
	return s, nil
}

// Start starts the loops. They do not end with ctx, but with Stop.
func (s *Scheduler) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		return errors.New("start scheduler: it has been started")
	}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	for _, l := range s.loops() {
		s.wg.Go(func() { s.run(ctx, l) })
	}
	return nil
}

// Stop stops the loops and waits for them. It may be called more than once, and before Start.
func (s *Scheduler) Stop() {
	s.mu.Lock()
	stop := s.stop
	s.mu.Unlock()
	if stop == nil {
		return
	}
	stop()
	s.wg.Wait()
	if s.leading() {
		ctx, done := context.WithTimeout(context.Background(), time.Second) //nolint:forbidigo // Stop has no context
		defer done()
		_ = s.deps.Records.Unlock(ctx, LockName, s.id) // it also expires on its own
		s.setLease(time.Time{})
	}
}

// lead takes or renews the lease. The lease counts from before the call, so that it never lasts longer here than in the store.
func (s *Scheduler) lead(ctx context.Context) error {
	ctx, done := context.WithTimeout(ctx, leaseTTL/2)
	defer done()
	began := time.Now()
	held, err := s.deps.Records.Lock(ctx, LockName, s.id, leaseTTL)
	switch {
	case err != nil: // keep the current lease until it expires
		return fmt.Errorf("take the lead: %w", err)
	case !held:
		s.setLease(time.Time{})
	default:
		if !s.leading() {
			s.log.InfoContext(ctx, "scheduler leads", "scheduler_id", s.id)
		}
		s.setLease(began.Add(leaseTTL))
	}
	return nil
}

func (s *Scheduler) leading() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.until)
}

// settled reports whether this scheduler has led for a while.
func (s *Scheduler) settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.since) >= s.cfg.Settle
}

// setLease sets until when this scheduler leads, and wakes the loops if it did not lead before.
func (s *Scheduler) setLease(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if !now.Before(s.until) && now.Before(until) {
		s.since = now
		close(s.gain)
		s.gain = make(chan struct{})
	}
	s.until = until
}

// gains is closed when this scheduler becomes the leader next.
func (s *Scheduler) gains() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gain
}

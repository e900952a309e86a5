package scheduler

import (
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

const (
	// leaseTTL is how long a scheduler leads without renewing; another takes over after that.
	leaseTTL = 5 * time.Second
	// LockName is the lock of the one that leads.
	LockName = "scheduler"
	// batch is how many records one step looks at, for each tenant.
	batch = 200
)

// Records are the scheduler's view of the store.
type Records interface {
	Lock(ctx context.Context, name, owner string, ttl time.Duration) (bool, error)
	Unlock(ctx context.Context, name, owner string) error
	Tenants(ctx context.Context) ([]string, error)
	Due(ctx context.Context, tenant string, limit int) ([]farm.Ref, error)
	ExpiredArtifacts(ctx context.Context, tenant string, limit int) ([]farm.Artifact, error)
	DeleteArtifacts(ctx context.Context, artifacts []farm.Artifact) (int, error)
}

// Ledger forgets records that are over their bounds.
type Ledger interface {
	Trim(ctx context.Context, tenant string) (store.Trimmed, error)
	Workers(ctx context.Context) ([]farm.Worker, error)
}

// Pool holds sandboxes that were started ahead of need.
type Pool interface {
	Members(ctx context.Context, nodes ...string) ([]store.Member, error)
	DropMember(ctx context.Context, id string, states ...store.MemberState) error
}

// Tasks forgets what the queues keep of the past.
type Tasks interface {
	Trim(ctx context.Context, before time.Time, unused func(queue string) bool) (queue.Trimmed, error)
}

// Jobs accepts jobs and sweeps what no queue holds.
type Jobs interface {
	Submit(ctx context.Context, a store.Accept) (store.Accepted, error)
	Sweep(ctx context.Context, tenant string) (int, error)
}

// Blobs lists and removes objects.
type Blobs interface {
	List(ctx context.Context, prefix string, fn func(blob.Info) error) error
	Delete(ctx context.Context, keys ...string) error
	AbortUploads(ctx context.Context, prefix string, before time.Time) (int, error)
	EnsureLifecycle(ctx context.Context, rules ...blob.LifecycleRule) (changed bool, err error)
}

// Deps are what a scheduler works with; all but the last two are needed.
type Deps struct {
	Records Records
	Ledger  Ledger
	Jobs    Jobs
	Tasks   Tasks
	Pool    Pool // nil: nobody looks after it
	Blobs   Blobs
	Log     *slog.Logger
	Metrics prometheus.Registerer // where the figures are shown; nil: nowhere
	Random  func() float64        // from 0 to 1, of which each pause's jitter is made; nil: math/rand
}

// Scheduler runs the loops.
type Scheduler struct {
	cfg  Config
	deps Deps
	id   string
	log  *slog.Logger
	seen *metrics
	pool pool

	wg sync.WaitGroup

	mu    sync.Mutex
	stop  context.CancelFunc
	until time.Time     // end of the lease, by this machine's clock; zero: another one leads
	gain  chan struct{} // closed, and made anew, when the lead is gained

	noRules bool // of the loop rules: it was said that the object store takes none
}

// New makes a scheduler; nothing is started.
func New(cfg Config, deps Deps) (*Scheduler, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if deps.Random == nil {
		deps.Random = rand.Float64
	}
	s := &Scheduler{cfg: cfg, deps: deps, id: farm.NewID("sch_"), log: deps.Log, gain: make(chan struct{}), pool: pool{gone: map[string]time.Time{}}}
	var err error
	if s.seen, err = newMetrics(deps.Metrics, s.leading, &s.pool); err != nil {
		return nil, err
	}
	return s, nil
}

// Start begins the loops, once. They go on when ctx ends; Stop ends them.
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

// Stop ends the loops and waits for them. It may be called again, and before Start.
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
		_ = s.deps.Records.Unlock(ctx, LockName, s.id) // it lapses by itself as well
		s.setLease(time.Time{})
	}
}

// lead takes or renews the lease. It counts from before the call, so that it never lasts longer here than in the store.
func (s *Scheduler) lead(ctx context.Context) error {
	ctx, done := context.WithTimeout(ctx, leaseTTL/2)
	defer done()
	began := time.Now()
	held, err := s.deps.Records.Lock(ctx, LockName, s.id, leaseTTL)
	switch {
	case err != nil: // the lease that is held goes on to its end
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

// setLease writes down until when this scheduler leads, and wakes the loops where it did not before.
func (s *Scheduler) setLease(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if !now.Before(s.until) && now.Before(until) {
		close(s.gain)
		s.gain = make(chan struct{})
	}
	s.until = until
}

// gains is closed when the lead is gained next.
func (s *Scheduler) gains() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gain
}

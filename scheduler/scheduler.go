package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

const (
	// leaseTTL is how long a scheduler leads without renewing; another takes over after that.
	leaseTTL = 5 * time.Second
	// stepTimeout bounds one step: a server that hangs must not hold the others up for ever.
	stepTimeout = time.Minute
	// LockName is the lock of the one that leads.
	LockName = "scheduler"
	// unstageEvery is how often staged objects that nobody fetched are looked for: there are few, and they are days old.
	unstageEvery = time.Hour
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
	DeleteArtifacts(ctx context.Context, artifacts []farm.Artifact) error
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
}

// Deps are what a scheduler works with; all are needed.
type Deps struct {
	Records Records
	Jobs    Jobs
	Blobs   Blobs
	Log     *slog.Logger
}

// Scheduler runs the loops.
type Scheduler struct {
	cfg  Config
	deps Deps
	id   string
	log  *slog.Logger

	wg sync.WaitGroup

	mu    sync.Mutex
	stop  context.CancelFunc
	until time.Time // end of the lease, by this machine's clock; zero: another one leads
}

// New makes a scheduler; nothing is started.
func New(cfg Config, deps Deps) (*Scheduler, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Scheduler{cfg: cfg, deps: deps, id: farm.NewID("sch_"), log: deps.Log}, nil
}

// Start begins the loops, once. They go on when ctx ends; Stop ends them.
func (s *Scheduler) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		return errors.New("start scheduler: it has been started")
	}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.loop(ctx, leaseTTL/4, s.lead)
	s.loop(ctx, s.cfg.ExpireEvery, s.whenLeading(s.expire))
	s.loop(ctx, s.cfg.SweepEvery, s.whenLeading(s.sweep))
	s.loop(ctx, s.cfg.RetainEvery, s.whenLeading(s.retain))
	s.loop(ctx, unstageEvery, s.whenLeading(s.unstage))
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

func (s *Scheduler) loop(ctx context.Context, every time.Duration, step func(context.Context) error) {
	s.wg.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			s.once(ctx, step)
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	})
}

func (s *Scheduler) once(ctx context.Context, step func(context.Context) error) {
	inner, done := context.WithTimeout(ctx, stepTimeout)
	defer done()
	if err := step(inner); err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "a periodic step did not succeed; it is tried again", "error", err)
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

func (s *Scheduler) whenLeading(step func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if !s.leading() {
			return nil
		}
		return step(ctx)
	}
}

func (s *Scheduler) leading() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.until)
}

func (s *Scheduler) setLease(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = until
}

package dispatch

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// backlogTTL is how long the backlog is remembered, so that scrapes and dashboards cost two calls a second.
const backlogTTL = time.Second

// Depths lists the backlog of every queue by name: its waiting tasks, the jobs that wait for a slot of the worker that took them, and the parked jobs,
// which wait for a slot of their tenants. The answer is up to a second old, and what workers reported up to a heartbeat older.
func (d *Dispatcher) Depths(ctx context.Context) ([]farm.QueueDepth, error) {
	depths, err := d.queue.Depths(ctx)
	if err != nil {
		return nil, err
	}
	backlog, err := d.backlog.get(ctx, d.store, d.now)
	if err != nil {
		return nil, err
	}
	for i := range depths {
		depths[i].Running = max(depths[i].Running-backlog.taken[depths[i].Name], 0)
	}
	now := d.now()
	for name, jobs := range backlog.waiting {
		at := slices.IndexFunc(depths, func(q farm.QueueDepth) bool { return q.Name == name })
		if at < 0 {
			depths, at = append(depths, farm.QueueDepth{Name: name}), len(depths)
		}
		depths[at].Depth += jobs.Jobs
		if !jobs.Since.IsZero() {
			depths[at].OldestSeconds = max(depths[at].OldestSeconds, now.Sub(jobs.Since).Seconds())
		}
	}
	slices.SortFunc(depths, func(a, b farm.QueueDepth) int { return cmp.Compare(a.Name, b.Name) })
	return depths, nil
}

// backlog is what waits and is in no queue, by queue.
type backlog struct {
	waiting map[string]farm.WaitingJobs
	taken   map[string]int // how many of them wait in a worker
}

// backlogCache remembers the backlog. One caller asks at a time; the others wait for its answer.
type backlogCache struct {
	turn chan struct{}
	last backlog
	asOf time.Time
}

func newBacklogCache() *backlogCache { return &backlogCache{turn: make(chan struct{}, 1)} }

func (c *backlogCache) get(ctx context.Context, s *store.Store, now func() time.Time) (backlog, error) {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return backlog{}, context.Cause(ctx)
	}
	defer func() { <-c.turn }()
	if age := now().Sub(c.asOf); age >= 0 && age < backlogTTL {
		return c.last, nil
	}
	parked, err := s.Parked(ctx)
	if err != nil {
		return backlog{}, err
	}
	workers, err := s.Workers(ctx)
	if err != nil {
		return backlog{}, err
	}
	b := backlog{waiting: map[string]farm.WaitingJobs{}, taken: map[string]int{}}
	maps.Copy(b.waiting, parked)
	for _, w := range workers {
		for queue, jobs := range w.Waiting {
			b.waiting[queue] = b.waiting[queue].And(jobs)
			b.taken[queue] += jobs.Jobs
		}
	}
	c.last, c.asOf = b, now()
	return b, nil
}

package dispatch

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// parkedTTL is how long the parked jobs are remembered, so that scrapes and dashboards cost one call a second.
const parkedTTL = time.Second

// Depths lists the backlog of every queue by name: its waiting tasks and the parked jobs, which wait for a slot of their tenants. The answer is
// up to a second old.
func (d *Dispatcher) Depths(ctx context.Context) ([]farm.QueueDepth, error) {
	depths, err := d.queue.Depths(ctx)
	if err != nil {
		return nil, err
	}
	parked, err := d.parked.get(ctx, d.store, d.now)
	if err != nil {
		return nil, err
	}
	now := d.now()
	for name, jobs := range parked {
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

// parkedCache remembers the parked jobs. One caller asks at a time; the others wait for its answer.
type parkedCache struct {
	turn chan struct{}
	jobs map[string]store.ParkedJobs
	asOf time.Time
}

func newParkedCache() *parkedCache { return &parkedCache{turn: make(chan struct{}, 1)} }

func (c *parkedCache) get(ctx context.Context, s *store.Store, now func() time.Time) (map[string]store.ParkedJobs, error) {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-c.turn }()
	if age := now().Sub(c.asOf); age >= 0 && age < parkedTTL {
		return c.jobs, nil
	}
	jobs, err := s.Parked(ctx)
	if err != nil {
		return nil, err
	}
	c.jobs, c.asOf = jobs, now()
	return jobs, nil
}

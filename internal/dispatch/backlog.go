package dispatch

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// holdsFor is how long Depths remembers what is held, so that scrapes and dashboards cost one look a second.
const holdsFor = time.Second

// Depths says how much waits and runs in every queue, by name: its tasks, and the jobs that are held back from it until
// fewer tasks of their tenants are on it. The answer is up to a second old.
func (d *Dispatcher) Depths(ctx context.Context) ([]farm.QueueDepth, error) {
	depths, err := d.queue.Depths(ctx)
	if err != nil {
		return nil, err
	}
	holds, err := d.held.get(ctx, d.store, d.now)
	if err != nil {
		return nil, err
	}
	now := d.now()
	for name, hold := range holds {
		at := slices.IndexFunc(depths, func(q farm.QueueDepth) bool { return q.Name == name })
		if at < 0 {
			depths, at = append(depths, farm.QueueDepth{Name: name}), len(depths)
		}
		depths[at].Depth += hold.Jobs
		if !hold.Since.IsZero() {
			depths[at].OldestSeconds = max(depths[at].OldestSeconds, now.Sub(hold.Since).Seconds())
		}
	}
	slices.SortFunc(depths, func(a, b farm.QueueDepth) int { return cmp.Compare(a.Name, b.Name) })
	return depths, nil
}

// holds remembers what is held. One asks at a time; the others wait for its answer.
type holds struct {
	turn chan struct{}
	of   map[string]store.ParkedJobs
	asOf time.Time
}

func newHolds() *holds { return &holds{turn: make(chan struct{}, 1)} }

func (h *holds) get(ctx context.Context, s *store.Store, now func() time.Time) (map[string]store.ParkedJobs, error) {
	select {
	case h.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-h.turn }()
	if age := now().Sub(h.asOf); age >= 0 && age < holdsFor {
		return h.of, nil
	}
	of, err := s.Parked(ctx)
	if err != nil {
		return nil, err
	}
	h.of, h.asOf = of, now()
	return of, nil
}

package dispatch

import (
	"context"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

const (
	// missedBeats is how many heartbeats of every live worker must follow without a job before the job counts as nobody's. The list of the
	// first one may be older than the claim.
	missedBeats = 2
	// slowRead is how long the registrations may take to be read. If it takes longer, Redis was away, and they may have expired meanwhile.
	slowRead = store.HeartbeatTTL / 2
	// unheldMost bounds the jobs that are watched; the others are watched when those are done.
	unheldMost = 10_000
)

// fleet is the registrations of the live workers, read in one step. A nil fleet knows nothing.
type fleet struct {
	workers map[string]farm.Worker
	nodes   map[string]bool
}

// readFleet reads the registrations. It gives nil if Redis was slow.
func (d *Dispatcher) readFleet(ctx context.Context) (*fleet, error) {
	began := d.now()
	workers, err := d.store.Workers(ctx)
	if err != nil || d.now().Sub(began) > slowRead {
		return nil, err
	}
	f := &fleet{workers: make(map[string]farm.Worker, len(workers)), nodes: make(map[string]bool, len(workers))}
	for _, w := range workers {
		f.workers[w.ID], f.nodes[w.Node] = w, true
	}
	return f, nil
}

// alive reports whether a worker is registered.
func (f *fleet) alive(worker string) bool {
	_, ok := f.workers[worker]
	return ok
}

// holds reports whether a live worker says that it has a job, or is about to claim it. A worker of a release that lists no jobs has those that
// the records give it.
func (f *fleet) holds(r *store.Route) bool {
	if owner, ok := f.workers[r.Worker]; ok && owner.Holds == nil {
		return true
	}
	for _, w := range f.workers {
		if attempt, ok := w.Holds[r.Ref.ID]; ok && (attempt == 0 || attempt == r.Attempt) {
			return true
		}
	}
	return false
}

// unheld is a job that a worker should have and that none lists.
type unheld struct {
	attempt int
	beats   map[string]uint64 // of the live workers, read after the job
	seen    time.Time
}

// nobodys reports whether a job that a worker should have is in the hands of none: no live worker has listed it in two heartbeats after its
// record was read. The answer to a claim may have been lost, for example while Redis was away.
func (d *Dispatcher) nobodys(ctx context.Context, r *store.Route, f *fleet) (bool, error) {
	if f.holds(r) {
		d.forgetUnheld(r.Ref.ID)
		return false, nil
	}
	d.mu.Lock()
	known := d.unheld[r.Ref.ID]
	d.mu.Unlock()
	if known == nil || known.attempt != r.Attempt {
		after, err := d.readFleet(ctx) // f may be older than the claim
		if err != nil || after == nil {
			return false, err
		}
		d.watchUnheld(r, after)
		return false, nil
	}
	for id, w := range f.workers {
		if w.Beat > 0 && w.Beat < known.beats[id]+missedBeats {
			return false, nil
		}
	}
	return len(f.workers) > 0, nil
}

// watchUnheld notes a job that no worker lists.
func (d *Dispatcher) watchUnheld(r *store.Route, f *fleet) {
	u := &unheld{attempt: r.Attempt, beats: make(map[string]uint64, len(f.workers)), seen: d.now()}
	for id, w := range f.workers {
		u.beats[id] = w.Beat
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, other := range d.unheld { // those that ended, or were claimed, since
		if u.seen.Sub(other.seen) > time.Hour {
			delete(d.unheld, id)
		}
	}
	if len(d.unheld) < unheldMost {
		d.unheld[r.Ref.ID] = u
	}
}

func (d *Dispatcher) forgetUnheld(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.unheld, id)
}

package dispatch

import (
	"context"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

const (
	// missedBeats is how many further heartbeats of every live worker must not list a job before the job counts as abandoned. The list in the
	// first of them may be older than the claim.
	missedBeats = 2
	// slowRead limits the time to read the registrations. If reading takes longer, Redis was unavailable and registrations may have expired.
	slowRead = store.HeartbeatTTL / 2
	// maxUnlisted bounds the jobs that are watched. More jobs are watched when these are done.
	maxUnlisted = 10_000
)

// fleet is the registrations of the live workers, read in one step. It is nil if they could not be read reliably.
type fleet struct {
	workers map[string]farm.Worker
	nodes   map[string]bool
}

// readFleet reads the registrations. It returns nil if Redis was slow.
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

// lists reports whether a live worker lists a job as running or about to be claimed.
func (f *fleet) lists(r *store.Route) bool {
	for _, w := range f.workers {
		if attempt, ok := w.Jobs[r.Ref.ID]; ok && (attempt == 0 || attempt == r.Attempt) {
			return true
		}
	}
	return false
}

// unlisted is a job that should be on a worker but that no live worker lists.
type unlisted struct {
	attempt int
	beats   map[string]uint64 // last heartbeat of each live worker, read after the job
	seen    time.Time
}

// abandoned reports whether no live worker runs a job that should be on a worker: none listed it in two heartbeats after its record was
// read. This happens when the reply to a claim is lost, for example while Redis is unavailable.
func (d *Dispatcher) abandoned(ctx context.Context, r *store.Route, f *fleet) (bool, error) {
	if f.lists(r) {
		d.forgetUnlisted(r.Ref.ID)
		return false, nil
	}
	d.mu.Lock()
	known := d.unlisted[r.Ref.ID]
	d.mu.Unlock()
	if known == nil || known.attempt != r.Attempt {
		after, err := d.readFleet(ctx) // f may be older than the claim
		if err != nil || after == nil {
			return false, err
		}
		d.watchUnlisted(r, after)
		return false, nil
	}
	for id, w := range f.workers {
		if w.Beat > 0 && w.Beat < known.beats[id]+missedBeats {
			return false, nil
		}
	}
	return len(f.workers) > 0, nil
}

// watchUnlisted starts to watch a job that no worker lists.
func (d *Dispatcher) watchUnlisted(r *store.Route, f *fleet) {
	u := &unlisted{attempt: r.Attempt, beats: make(map[string]uint64, len(f.workers)), seen: d.now()}
	for id, w := range f.workers {
		u.beats[id] = w.Beat
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, other := range d.unlisted { // jobs that have ended or were claimed since
		if u.seen.Sub(other.seen) > time.Hour {
			delete(d.unlisted, id)
		}
	}
	if len(d.unlisted) < maxUnlisted {
		d.unlisted[r.Ref.ID] = u
	}
}

func (d *Dispatcher) forgetUnlisted(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.unlisted, id)
}

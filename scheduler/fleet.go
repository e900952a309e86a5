package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Fleet has the events of workers and nodes, and what was seen of these last.
type Fleet interface {
	FleetSeen(ctx context.Context) (map[string]string, error)
	NoteFleet(ctx context.Context, n store.FleetNote) (bool, error)
}

// fleetWatch is what this scheduler knows of the fleet while it leads. The loop nodes alone uses it.
type fleetWatch struct {
	since   time.Time         // when it began to lead; what it knew before is out of date
	seen    map[string]string // as the store remembers it
	running map[string]int    // jobs of the workers, at the last look
}

// watchFleet notes what has happened to workers and drains since the last look. What was seen outlasts a change of the leader, and a farm that was
// down: the next leader notes that the workers of before are gone.
func (s *Scheduler) watchFleet(ctx context.Context, workers []farm.Worker) error {
	if s.deps.Fleet == nil || !s.settled() {
		return nil
	}
	s.mu.Lock()
	since := s.since
	s.mu.Unlock()
	if !s.fleet.since.Equal(since) {
		seen, err := s.deps.Fleet.FleetSeen(ctx)
		if err != nil {
			return fmt.Errorf("read what was seen of the fleet: %w", err)
		}
		s.fleet = fleetWatch{since: since, seen: seen, running: map[string]int{}}
	}
	now := time.Now().UTC()
	notes := s.fleet.ofWorkers(now, workers)
	if states, at := s.drains.states(); !at.Before(since) {
		notes = append(notes, s.fleet.ofDrains(now, workers, states)...)
	}
	var errs []error
	for _, n := range notes {
		if _, err := s.deps.Fleet.NoteFleet(ctx, n); err != nil {
			errs = append(errs, fmt.Errorf("note that %s: %w", n.Event.Kind, err))
			continue
		}
		if n.To == "" {
			delete(s.fleet.seen, n.Subject)
		} else {
			s.fleet.seen[n.Subject] = n.To
		}
	}
	clear(s.fleet.running)
	for _, w := range workers {
		s.fleet.running[w.ID] = w.Running
	}
	return errors.Join(errs...)
}

// ofWorkers compares the live workers with those that were seen.
func (f *fleetWatch) ofWorkers(now time.Time, workers []farm.Worker) []store.FleetNote {
	var notes []store.FleetNote
	live := map[string]bool{}
	for _, w := range workers {
		subject := farm.SeenWorkerPrefix + w.ID
		live[subject] = true
		text, _ := json.Marshal(farm.SeenWorker{Node: w.Node, Host: w.Host, Problem: w.Problem}) // strings can be written
		before, to := f.seen[subject], string(text)
		if before == to {
			continue
		}
		n := store.FleetNote{Subject: subject, From: before, To: to, Event: farm.FleetEvent{At: now, Node: w.Node, Host: w.Host, Worker: w.ID, Detail: w.Problem}}
		switch {
		case before == "":
			n.Event.Kind, n.Event.At = farm.FleetWorkerStarted, w.StartedAt.UTC()
		case w.Problem != "":
			n.Event.Kind = farm.FleetWorkerProblem
		default:
			n.Event.Kind = farm.FleetWorkerRecovered
		}
		notes = append(notes, n)
	}
	for _, subject := range f.subjects(farm.SeenWorkerPrefix) {
		if live[subject] {
			continue
		}
		var w farm.SeenWorker
		_ = json.Unmarshal([]byte(f.seen[subject]), &w) // of another release: the event names only the worker
		id := strings.TrimPrefix(subject, farm.SeenWorkerPrefix)
		notes = append(notes, store.FleetNote{
			Subject: subject, From: f.seen[subject],
			Event: farm.FleetEvent{At: now, Kind: farm.FleetWorkerLost, Node: w.Node, Host: w.Host, Worker: id, Jobs: f.running[id]},
		})
	}
	return notes
}

// ofDrains compares the drains, by node, with those that were seen.
func (f *fleetWatch) ofDrains(now time.Time, workers []farm.Worker, states map[string]farm.DrainState) []store.FleetNote {
	var notes []store.FleetNote
	note := func(node string, from, to farm.DrainState, kind farm.FleetEventKind) {
		e := farm.FleetEvent{At: now, Kind: kind, Node: node}
		if i := slices.IndexFunc(workers, func(w farm.Worker) bool { return w.Node == node }); i >= 0 {
			e.Host = workers[i].Host
		}
		if kind == farm.FleetDrained {
			e.Detail = string(to)
		}
		notes = append(notes, store.FleetNote{Subject: farm.SeenDrainPrefix + node, From: string(from), To: string(to), Event: e})
	}
	for _, node := range slices.Sorted(maps.Keys(states)) {
		before, state := farm.DrainState(f.seen[farm.SeenDrainPrefix+node]), states[node]
		if before == "" {
			note(node, "", farm.DrainRuns, farm.FleetDrainStarted)
			before = farm.DrainRuns
		}
		if state != before && state != farm.DrainRuns {
			note(node, before, state, farm.FleetDrained)
		}
	}
	for _, subject := range f.subjects(farm.SeenDrainPrefix) {
		node := strings.TrimPrefix(subject, farm.SeenDrainPrefix)
		if _, drained := states[node]; !drained {
			note(node, farm.DrainState(f.seen[subject]), "", farm.FleetDrainEnded)
		}
	}
	return notes
}

// subjects are those that were seen and begin with a prefix, sorted.
func (f *fleetWatch) subjects(prefix string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(f.seen)), func(subject string) bool { return !strings.HasPrefix(subject, prefix) })
}

// noteNodeEnded notes that a node has ended. An event that cannot be noted is left out: the node has ended all the same.
func (s *Scheduler) noteNodeEnded(ctx context.Context, node string, lost int) {
	if s.deps.Fleet == nil {
		return
	}
	_, err := s.deps.Fleet.NoteFleet(ctx, store.FleetNote{Event: farm.FleetEvent{At: time.Now().UTC(), Kind: farm.FleetNodeEnded, Node: node, Sandboxes: lost}})
	if err != nil {
		s.log.WarnContext(ctx, "the end of a node is not among the events", "node", node, "error", err)
	}
}

var _ Fleet = (*store.Store)(nil)

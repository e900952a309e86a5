package store

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// FleetNote is a change of the fleet, with the event that tells of it.
type FleetNote struct {
	Subject  string // what changed, see farm.SeenWorkerPrefix; "": nothing is remembered
	From, To string // what was, and what is, remembered of it; "": nothing
	Event    farm.FleetEvent
}

// fleetArgs are the arguments of fleet_note.lua.
type fleetArgs struct {
	Subject string `lua:"subject"`
	From    string `lua:"from"`
	To      string `lua:"to"`
	Event   []byte `lua:"event"` // JSON
	Most    int    `lua:"most"`  // events that are kept
}

// FleetSeen is what is remembered of the fleet, by subject.
func (s *Store) FleetSeen(ctx context.Context) (map[string]string, error) {
	seen, err := s.rdb.HGetAll(ctx, s.Index(SlotFleet, IndexFleetSeen)).Result()
	return seen, wrap("read what was seen of the fleet", err)
}

// NoteFleet remembers a change and adds its event, of which the newest farm.MaxFleetEvents are kept. It does neither, and reports false, if what
// is remembered is not From: another process has noted the change.
func (s *Store) NoteFleet(ctx context.Context, n FleetNote) (bool, error) {
	event, err := encode("event of the fleet", n.Event)
	if err != nil {
		return false, err
	}
	r, err := s.Run(ctx, "note an event of the fleet", "fleet_note", SlotFleet, fleetArgs{Subject: n.Subject, From: n.From, To: n.To, Event: event, Most: farm.MaxFleetEvents})
	return r.text(0) == "ok", err
}

// FleetEvents lists the newest events of the fleet, the newest first.
func (s *Store) FleetEvents(ctx context.Context, limit int) ([]farm.FleetEvent, error) {
	found, err := s.rdb.XRevRangeN(ctx, s.Index(SlotFleet, IndexFleetEvents), "+", "-", int64(limit)).Result()
	if err != nil {
		return nil, wrap("read events of the fleet", err)
	}
	events := make([]farm.FleetEvent, 0, len(found))
	for _, m := range found {
		var e farm.FleetEvent
		text, _ := m.Values["e"].(string)
		if json.Unmarshal([]byte(text), &e) == nil {
			e.ID = m.ID
			events = append(events, e)
		}
	}
	return events, nil
}

// noteStopped notes that a worker has stopped in order, if it was seen before.
func (s *Store) noteStopped(ctx context.Context, workerID string) error {
	subject := farm.SeenWorkerPrefix + workerID
	known, err := s.rdb.HGet(ctx, s.Index(SlotFleet, IndexFleetSeen), subject).Result()
	if errors.Is(err, redis.Nil) {
		return nil
	}
	if err != nil {
		return wrap("read what was seen of a worker", err)
	}
	var w farm.SeenWorker
	_ = json.Unmarshal([]byte(known), &w) // of another release: the event names only the worker
	_, err = s.NoteFleet(ctx, FleetNote{
		Subject: subject, From: known, Event: farm.FleetEvent{At: s.now().UTC(), Kind: farm.FleetWorkerStopped, Worker: workerID, Node: w.Node, Host: w.Host},
	})
	return err
}

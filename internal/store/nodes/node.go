// Package nodes keeps what concerns nodes and workers: heartbeats, leases of nodes, reservations of memory and cores, leases of GPUs, the warm pool,
// drains, events of the fleet, what workers say of the last hour, and the authorities of the live path.
//
// It needs none of the other packages. Its keys are in slots of the farm, so no script here touches the records of a tenant.
package nodes

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

// NodeLease is the lease of a node: any of its workers renews it. All times are by the clock of Redis, so the clocks of workers do not matter.
type NodeLease struct {
	Node string
	Age  time.Duration // since it was renewed; time in which the farm was stopped does not count
}

// RenewNode renews the lease of a node, and reports whether the node is drained. It depends on nothing else that is stored.
func (s *Store) RenewNode(ctx context.Context, node string) (drained bool, err error) {
	found, err := s.nodeLease(ctx, leaseArgs{Op: "renew", Nodes: []string{node}})
	return len(found) == 1, err
}

// CheckNodes renews the leases of nodes that are known to have a live worker, since a worker of an older release renews none, gives each node
// that is in use and has no lease a new one, and lists all leases, those renewed last at the end. One process calls it regularly, more often than
// twice within the timeout: time without calls does not count, unless a lease had lapsed before.
func (s *Store) CheckNodes(ctx context.Context, timeout time.Duration, live, used []string) ([]NodeLease, error) {
	return s.nodeLease(ctx, leaseArgs{
		Op: "check", Nodes: live, Known: used, Timeout: timeout.Microseconds(), Gap: min(timeout/2, leaseGap).Microseconds(),
	})
}

// leaseGap is the longest time between two checks of the leases that counts: another scheduler leads sooner.
const leaseGap = 15 * time.Second

// NodeLapsed reports whether the lease of a node has not been renewed for the timeout. A node without a lease has not lapsed.
func (s *Store) NodeLapsed(ctx context.Context, node string, timeout time.Duration) (bool, error) {
	found, err := s.nodeLease(ctx, leaseArgs{Op: "look", Nodes: []string{node}})
	return err == nil && len(found) == 1 && found[0].Age >= timeout, err
}

// DropNodeLease removes the lease of a node that has not been renewed for the timeout, and reports whether it did.
func (s *Store) DropNodeLease(ctx context.Context, node string, timeout time.Duration) (bool, error) {
	dropped, err := s.nodeLease(ctx, leaseArgs{Op: "drop", Nodes: []string{node}, Timeout: timeout.Microseconds()})
	return len(dropped) == 1, err
}

// leaseArgs are the arguments of node_lease.lua. Times are in microseconds.
type leaseArgs struct {
	Op      string   `lua:"op"`
	Nodes   []string `lua:"nodes"`
	Known   []string `lua:"known"`
	Timeout int64    `lua:"timeout"`
	Gap     int64    `lua:"gap"`
}

func (s *Store) nodeLease(ctx context.Context, args leaseArgs) ([]NodeLease, error) {
	r, err := s.Run(ctx, args.Op+" leases of nodes", "node_lease", db.SlotNodes, args)
	if err != nil {
		return nil, err
	}
	var out []NodeLease
	for i := 1; i+1 < len(r); i += 2 { // the first is the time
		age, err := strconv.ParseInt(r.Text(i+1), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read lease of node %s: %w", r.Text(i), err)
		}
		out = append(out, NodeLease{Node: r.Text(i), Age: time.Duration(age) * time.Microsecond})
	}
	slices.SortFunc(out, func(a, b NodeLease) int { return cmp.Or(-cmp.Compare(a.Age, b.Age), cmp.Compare(a.Node, b.Node)) })
	return out, nil
}

// ReleaseNode removes what a node that is gone holds: its reservations, the leases of its GPUs, its members of the pool, claimed ones too, and its
// drain.
// If the node comes back, its reconciler restores what its containers have, and leases no GPU before.
func (s *Store) ReleaseNode(ctx context.Context, node string) error {
	pipe := s.Redis.Pipeline()
	pipe.Del(ctx, s.Key(db.SlotCapacity, db.KeyReservations, node), s.Key(db.SlotCapacity, db.KeyGPUs, node), s.Key(db.SlotCapacity, db.KeyGPUFirst, node))
	pipe.HDel(ctx, s.Index(db.SlotCapacity, db.IndexCapacities), node)
	if _, err := pipe.Exec(ctx); err != nil {
		return db.Wrap("release what a node holds", err)
	}
	members, err := s.Members(ctx, node)
	if err != nil {
		return err
	}
	for _, m := range members {
		if err := s.DropMember(ctx, m.ID, MemberStarting, MemberIdle, MemberClaimed); err != nil && !errors.Is(err, ErrNoMember) {
			return err
		}
	}
	pipe = s.Redis.Pipeline()
	pipe.Del(ctx, s.Key(db.SlotNodes, db.KeyTenantsOf, node))
	pipe.HDel(ctx, s.Index(db.SlotNodes, db.IndexDrains), node)
	_, err = pipe.Exec(ctx)
	return db.Wrap("forget tenants and drain of a node", err)
}

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
	Max     int    `lua:"most"`  // events that are kept
}

// FleetSeen is what is remembered of the fleet, by subject.
func (s *Store) FleetSeen(ctx context.Context) (map[string]string, error) {
	seen, err := s.Redis.HGetAll(ctx, s.Index(db.SlotFleet, db.IndexFleetSeen)).Result()
	return seen, db.Wrap("read what was seen of the fleet", err)
}

// NoteFleet remembers a change and adds its event, of which the newest farm.MaxFleetEvents are kept. It does neither, and reports false, if what
// is remembered is not From: another process has noted the change.
func (s *Store) NoteFleet(ctx context.Context, n FleetNote) (bool, error) {
	event, err := db.Encode("event of the fleet", n.Event)
	if err != nil {
		return false, err
	}
	r, err := s.Run(ctx, "note an event of the fleet", "fleet_note", db.SlotFleet, fleetArgs{Subject: n.Subject, From: n.From, To: n.To, Event: event, Max: farm.MaxFleetEvents})
	return r.Text(0) == "ok", err
}

// FleetEvents lists the newest events of the fleet, the newest first.
func (s *Store) FleetEvents(ctx context.Context, limit int) ([]farm.FleetEvent, error) {
	found, err := s.Redis.XRevRangeN(ctx, s.Index(db.SlotFleet, db.IndexFleetEvents), "+", "-", int64(limit)).Result()
	if err != nil {
		return nil, db.Wrap("read events of the fleet", err)
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
	known, err := s.Redis.HGet(ctx, s.Index(db.SlotFleet, db.IndexFleetSeen), subject).Result()
	if errors.Is(err, redis.Nil) {
		return nil
	}
	if err != nil {
		return db.Wrap("read what was seen of a worker", err)
	}
	var w farm.SeenWorker
	_ = json.Unmarshal([]byte(known), &w) // of another release: the event names only the worker
	_, err = s.NoteFleet(ctx, FleetNote{
		Subject: subject, From: known, Event: farm.FleetEvent{At: s.Now().UTC(), Kind: farm.FleetWorkerStopped, Worker: workerID, Node: w.Node, Host: w.Host},
	})
	return err
}

// SetDrain drains a node. A drain that the node has keeps the time since when it is drained. It ends by EndDrain, or with the node.
func (s *Store) SetDrain(ctx context.Context, d farm.Drain) (farm.Drain, error) {
	before, err := s.Drain(ctx, d.Node)
	switch {
	case err == nil:
		d.Since = before.Since
	case farm.CodeOf(err) != farm.CodeNotFound:
		return farm.Drain{}, err
	}
	doc, err := db.Encode("drain", d)
	if err != nil {
		return farm.Drain{}, err
	}
	return d, db.Wrap("store drain", s.Redis.HSet(ctx, s.Index(db.SlotNodes, db.IndexDrains), d.Node, doc).Err())
}

// Drain reads the drain of a node; CodeNotFound if it has none.
func (s *Store) Drain(ctx context.Context, node string) (farm.Drain, error) {
	text, err := s.Redis.HGet(ctx, s.Index(db.SlotNodes, db.IndexDrains), node).Result()
	if errors.Is(err, redis.Nil) {
		return farm.Drain{}, notDrained(node)
	}
	if err != nil {
		return farm.Drain{}, db.Wrap("read drain", err)
	}
	return decodeDrain(node, text)
}

// Drains lists the drains of all nodes, by node.
func (s *Store) Drains(ctx context.Context) ([]farm.Drain, error) {
	all, err := s.Redis.HGetAll(ctx, s.Index(db.SlotNodes, db.IndexDrains)).Result()
	if err != nil {
		return nil, db.Wrap("list drains", err)
	}
	out := make([]farm.Drain, 0, len(all))
	for node, text := range all {
		d, err := decodeDrain(node, text)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b farm.Drain) int { return cmp.Compare(a.Node, b.Node) })
	return out, nil
}

// EndDrain ends the drain of a node; CodeNotFound if it has none.
func (s *Store) EndDrain(ctx context.Context, node string) error {
	n, err := s.Redis.HDel(ctx, s.Index(db.SlotNodes, db.IndexDrains), node).Result()
	if err == nil && n == 0 {
		return notDrained(node)
	}
	return db.Wrap("end drain", err)
}

func notDrained(node string) error {
	return farm.Errorf(farm.CodeNotFound, "Node %s is not drained.", farm.Shorten(node))
}

func decodeDrain(node, text string) (farm.Drain, error) {
	var d farm.Drain
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		return d, fmt.Errorf("read drain of node %s: %w", node, err)
	}
	return d, nil
}

//go:embed *.lua
var scripts embed.FS

// Lua has the scripts, for db.New.
func Lua() fs.FS { return scripts }

// Store reads and writes what concerns nodes. It is safe for concurrent use.
type Store struct{ *db.DB }

// New makes a Store.
func New(d *db.DB) *Store { return &Store{d} }

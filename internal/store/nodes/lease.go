package nodes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

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
// twice in a patience: time without calls does not count, unless a lease had lapsed before.
func (s *Store) CheckNodes(ctx context.Context, patience time.Duration, live, used []string) ([]NodeLease, error) {
	return s.nodeLease(ctx, leaseArgs{
		Op: "check", Nodes: live, Known: used, Patience: patience.Microseconds(), Gap: min(patience/2, leaseGap).Microseconds(),
	})
}

// leaseGap is the longest time between two checks of the leases that counts: another scheduler leads sooner.
const leaseGap = 15 * time.Second

// NodeLapsed reports whether the lease of a node has not been renewed for patience. A node without a lease has not lapsed.
func (s *Store) NodeLapsed(ctx context.Context, node string, patience time.Duration) (bool, error) {
	found, err := s.nodeLease(ctx, leaseArgs{Op: "look", Nodes: []string{node}})
	return err == nil && len(found) == 1 && found[0].Age >= patience, err
}

// DropNodeLease removes the lease of a node that has not been renewed for patience, and reports whether it did.
func (s *Store) DropNodeLease(ctx context.Context, node string, patience time.Duration) (bool, error) {
	dropped, err := s.nodeLease(ctx, leaseArgs{Op: "drop", Nodes: []string{node}, Patience: patience.Microseconds()})
	return len(dropped) == 1, err
}

// leaseArgs are the arguments of node_lease.lua. Times are in microseconds.
type leaseArgs struct {
	Op       string   `lua:"op"`
	Nodes    []string `lua:"nodes"`
	Known    []string `lua:"known"`
	Patience int64    `lua:"patience"`
	Gap      int64    `lua:"gap"`
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

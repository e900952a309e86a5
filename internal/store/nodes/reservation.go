package nodes

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

// Rules of reservations.
const (
	firstAfter = 30 * time.Second // a sandbox that has waited so long goes first: no other sandbox overtakes it on one node
	firstFor   = 10 * time.Second // how long it goes first after it last asked
	nodeTTL    = 30 * time.Second // a node that was not reported for so long has no worker
)

// NodeCapacity is what a node has for sandboxes, and what of it is reserved.
type NodeCapacity struct {
	Capacity farm.Capacity
	Reserved farm.Capacity
}

// ReserveRequest asks for memory and cores of a node for a sandbox.
type ReserveRequest struct {
	Node       string
	Capacity   farm.Capacity // of the node
	Sandbox    farm.Ref
	Generation int // of the sandbox; 0: not checked
	Want       farm.Capacity
	Since      time.Time // when its creation was accepted; zero: it never goes first
	Queue      string    // whose pace this start counts for, see QueuePosition; "": none
	Force      bool      // reserve regardless of what is free: the sandbox already exists
}

// Reserve reserves memory and cores of a node for a sandbox, in one step with the check of what is free, and reports whether it did. A
// reservation that the sandbox has there is replaced. A sandbox that has waited for half a minute goes first: no other one overtakes it on one
// node until it fits. nodes are all nodes that have a worker. ErrFenced if a later generation of the sandbox has a reservation there.
func (s *Store) Reserve(ctx context.Context, r ReserveRequest) (ok bool, nodes map[string]NodeCapacity, err error) {
	op := "reserve"
	if r.Force {
		op = "force"
	}
	verdict, nodes, err := s.reserve(ctx, reserveArgs{
		Op: op, Node: r.Node, Sandbox: r.Sandbox.ID, Generation: r.Generation, Tenant: r.Sandbox.Tenant, Memory: r.Want.MemoryMB, Cores: milli(r.Want.CPUs),
		WaitedLong: !r.Since.IsZero() && s.Now().Sub(r.Since) > firstAfter, Queue: r.Queue,
	}, r.Capacity)
	if err == nil && verdict == "fenced" {
		err = fmt.Errorf("reserve capacity for generation %d of sandbox %s: %w", r.Generation, r.Sandbox.ID, db.ErrFenced)
	}
	return verdict == "ok", nodes, err
}

// Unreserve releases what this generation of a sandbox, or an earlier one, has reserved on a node; 0: any. It is not an error if nothing is
// reserved, or if a later generation has a reservation, which stays.
func (s *Store) Unreserve(ctx context.Context, node string, capacity farm.Capacity, sandbox farm.Ref, generation int) (map[string]NodeCapacity, error) {
	_, nodes, err := s.reserve(ctx, reserveArgs{Op: "release", Node: node, Sandbox: sandbox.ID, Generation: generation}, capacity)
	return nodes, err
}

// ReportCapacity stores what a node has, which keeps it listed for half a minute, and returns all nodes.
func (s *Store) ReportCapacity(ctx context.Context, node string, capacity farm.Capacity) (map[string]NodeCapacity, error) {
	_, nodes, err := s.reserve(ctx, reserveArgs{Op: "look", Node: node}, capacity)
	return nodes, err
}

// Reservation is what is reserved for a sandbox on a node, and since when.
type Reservation struct {
	Size       farm.Capacity
	At         time.Time
	Generation int // of the sandbox
}

// Reservations lists the reservations of a node.
func (s *Store) Reservations(ctx context.Context, node string) (map[farm.Ref]Reservation, error) {
	fields, err := s.Redis.HGetAll(ctx, s.Key(db.SlotCapacity, db.KeyReservations, node)).Result()
	if err != nil {
		return nil, db.Wrap("list reservations", err)
	}
	out := make(map[farm.Ref]Reservation, len(fields))
	for id, text := range fields {
		parts := append(strings.SplitN(text, " ", 5), "", "", "", "", "")
		memory, _ := strconv.Atoi(parts[0])
		cores, _ := strconv.Atoi(parts[1])
		generation, _ := strconv.Atoi(parts[4])
		out[farm.Ref{Tenant: parts[3], ID: id}] = Reservation{
			Size: farm.Capacity{MemoryMB: memory, CPUs: float64(cores) / 1000}, At: db.Moment(parts[2]), Generation: max(generation, 1),
		}
	}
	return out, nil
}

// milli counts cores in thousandths.
func milli(cpus float64) int { return int(math.Round(cpus * 1000)) }

// reserveArgs are the arguments of node_reserve.lua. Cores are in thousandths.
type reserveArgs struct {
	Op             string `lua:"op"`
	Node           string `lua:"node"`
	MemoryCapacity int    `lua:"memory_capacity"`
	CoresCapacity  int    `lua:"cores_capacity"`
	Sandbox        string `lua:"sandbox"`
	Generation     int    `lua:"generation"` // 0: any
	Tenant         string `lua:"tenant"`
	Memory         int    `lua:"memory"`
	Cores          int    `lua:"cores"`
	WaitedLong     bool   `lua:"waited_long"` // it may go first
	FirstMS        int64  `lua:"first_ms"`    // for how long
	Queue          string `lua:"queue"`       // see ReserveRequest
	NodeTTL        int64  `lua:"node_ttl"`    // microseconds
}

func (s *Store) reserve(ctx context.Context, args reserveArgs, capacity farm.Capacity) (string, map[string]NodeCapacity, error) {
	args.FirstMS, args.NodeTTL = firstFor.Milliseconds(), nodeTTL.Microseconds()
	args.MemoryCapacity, args.CoresCapacity = capacity.MemoryMB, milli(capacity.CPUs)
	r, err := s.Run(ctx, args.Op+" capacity of a node", "node_reserve", db.SlotCapacity, args)
	if err != nil {
		return "", nil, err
	}
	nodes := map[string]NodeCapacity{}
	for name, text := range r.Fields(1) {
		var memory, cores, memoryCapacity, coresCapacity, seen int64
		if _, err := fmt.Sscan(text, &memory, &cores, &memoryCapacity, &coresCapacity, &seen); err != nil {
			return "", nil, fmt.Errorf("read capacity of node %s: %w", name, err)
		}
		nodes[name] = NodeCapacity{
			Capacity: farm.Capacity{MemoryMB: int(memoryCapacity), CPUs: float64(coresCapacity) / 1000},
			Reserved: farm.Capacity{MemoryMB: int(memory), CPUs: float64(cores) / 1000},
		}
	}
	return r.Text(0), nodes, nil
}

package store

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Rules of rooms.
const (
	holdAfter = 30 * time.Second // a sandbox that has waited so long for room is not overtaken on one node any more
	holdFor   = 10 * time.Second // since it last asked
	nodeTTL   = 30 * time.Second // a node that was not looked at for so long has no worker
)

// NodeCapacity is a node's room.
type NodeCapacity struct {
	Capacity farm.Capacity
	Reserved farm.Capacity
}

// ReserveRequest asks a node for room for a sandbox.
type ReserveRequest struct {
	Node     string
	Capacity farm.Capacity // of the node
	Sandbox  farm.Ref
	Want     farm.Capacity
	Since    time.Time // when its creation was accepted; zero: it holds back nobody
	Queue    string    // counts as a placement of this queue; "": of none
	Force    bool      // whether there is room or not: the sandbox is there already
}

// Reserve promises a sandbox room on a node, in one step with the look at what is promised already. A promise that the
// sandbox has there is replaced. It reports whether there was room. A sandbox that has waited for half a minute and finds
// none holds back the others on one node until it fits. nodes are the rooms of all nodes that have a worker.
func (s *Store) Reserve(ctx context.Context, r ReserveRequest) (ok bool, nodes map[string]NodeCapacity, err error) {
	op := "reserve"
	if r.Force {
		op = "force"
	}
	waited := !r.Since.IsZero() && s.now().Sub(r.Since) > holdAfter
	verdict, nodes, err := s.room(ctx, op, r.Node, r.Capacity, r.Queue, r.Sandbox.ID, r.Want.MemoryMB, milli(r.Want.CPUs), flag(waited), holdFor.Milliseconds(), flag(r.Queue != ""), r.Sandbox.Tenant)
	return verdict == "ok", nodes, err
}

// Unreserve gives back what a sandbox was promised on a node; it is no error when that is nothing.
func (s *Store) Unreserve(ctx context.Context, node string, capacity farm.Capacity, sandbox farm.Ref) (map[string]NodeCapacity, error) {
	_, nodes, err := s.room(ctx, "release", node, capacity, "", sandbox.ID, 0, 0, "", 0, "", "")
	return nodes, err
}

// Rooms writes down what a node has, keeps it listed for half a minute, and gives the rooms of all nodes.
func (s *Store) ReportCapacity(ctx context.Context, node string, capacity farm.Capacity) (map[string]NodeCapacity, error) {
	_, nodes, err := s.room(ctx, "look", node, capacity, "", "", 0, 0, "", 0, "", "")
	return nodes, err
}

// Reservation is what a sandbox was promised on a node, and when.
type Reservation struct {
	Room farm.Capacity
	At   time.Time
}

// Promises lists what a node has promised.
func (s *Store) Reservations(ctx context.Context, node string) (map[farm.Ref]Reservation, error) {
	fields, err := s.rdb.HGetAll(ctx, s.roomKey("node:"+node)).Result()
	if err != nil {
		return nil, wrap("list promises", err)
	}
	out := make(map[farm.Ref]Reservation, len(fields))
	for id, text := range fields {
		parts := append(strings.SplitN(text, " ", 4), "", "", "", "")
		memory, _ := strconv.Atoi(parts[0])
		cores, _ := strconv.Atoi(parts[1])
		out[farm.Ref{Tenant: parts[3], ID: id}] = Reservation{Room: farm.Capacity{MemoryMB: memory, CPUs: float64(cores) / 1000}, At: moment(parts[2])}
	}
	return out, nil
}

// roomKey names a key of the rooms: all of them are in one slot.
func (s *Store) roomKey(name string) string { return s.prefix + "{room}:" + name }

// milli counts cores in thousandths.
func milli(cpus float64) int { return int(math.Round(cpus * 1000)) }

func (s *Store) room(ctx context.Context, op, node string, capacity farm.Capacity, queue string, args ...any) (string, map[string]NodeCapacity, error) {
	keys := []string{s.roomKey("node:" + node), s.roomKey("nodes"), s.roomKey("hold"), s.roomKey("begun:" + queue)}
	now := s.now()
	argv := append([]any{op, micros(now), node, capacity.MemoryMB, milli(capacity.CPUs)}, args...)
	values, err := s.scripts.room.Run(ctx, s.rdb, keys, argv...).Slice()
	if err != nil {
		return "", nil, wrap("look at the room of a node", err)
	}
	r := reply(values)
	nodes := map[string]NodeCapacity{}
	var gone []string
	for name, text := range r.fields(1) {
		var memory, cores, memoryLimit, coreLimit, seen int64
		if _, err := fmt.Sscan(text, &memory, &cores, &memoryLimit, &coreLimit, &seen); err != nil {
			return "", nil, fmt.Errorf("read room of node %s: %w", name, err)
		}
		if now.Sub(time.UnixMicro(seen)) > nodeTTL {
			gone = append(gone, name)
			continue
		}
		nodes[name] = NodeCapacity{
			Capacity: farm.Capacity{MemoryMB: int(memoryLimit), CPUs: float64(coreLimit) / 1000},
			Reserved: farm.Capacity{MemoryMB: int(memory), CPUs: float64(cores) / 1000},
		}
	}
	if len(gone) > 0 {
		if err := s.rdb.HDel(ctx, keys[1], gone...).Err(); err != nil {
			return "", nil, wrap("forget nodes", err)
		}
	}
	return r.text(0), nodes, nil
}

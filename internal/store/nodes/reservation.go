package nodes

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
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

// GPULease is the lease of one device of a node.
type GPULease struct {
	Device     string
	Sandbox    farm.Ref
	Generation int       // of the sandbox, its fence; 0: the release before made the lease
	Started    bool      // the sandbox's container is about to start with it, or has it, see StartGPUs
	Worker     string    // who leased it; empty: the lease was restored from a container
	At         time.Time // of the lease
}

// GPUs are the leases of a node.
type GPUs struct {
	Open   bool // the reconciler has compared the leases with the node's containers; nothing is leased before
	Leases map[string]GPULease
}

// Of returns the devices of a sandbox by name.
func (g GPUs) Of(sandbox string) (devices []string) {
	for _, device := range slices.Sorted(maps.Keys(g.Leases)) {
		if g.Leases[device].Sandbox.ID == sandbox {
			devices = append(devices, device)
		}
	}
	return devices
}

// GPURequest asks for devices of a node for a sandbox.
type GPURequest struct {
	Node       string
	Sandbox    farm.Ref
	Generation int // of the sandbox
	Worker     string
	Count      int
	Devices    []string  // that it may have, in the order of preference
	Since      time.Time // when its creation was accepted; zero: it never goes first
}

// LeaseGPUs leases devices of a node to a sandbox: all that it asks for or none, and reports whether it did. Devices that the sandbox
// has already stay its own. A sandbox that has waited for half a minute goes first on its node until it has its devices. ErrFenced if a later
// generation of the sandbox has devices here.
func (s *Store) LeaseGPUs(ctx context.Context, r GPURequest) (ok bool, now GPUs, err error) {
	verdict, now, err := s.gpu(ctx, r.Node, gpuArgs{
		Op: "lease", Sandbox: r.Sandbox.ID, Tenant: r.Sandbox.Tenant, Generation: r.Generation, Worker: r.Worker, Count: r.Count, Devices: r.Devices,
		WaitedLong: !r.Since.IsZero() && s.Now().Sub(r.Since) > firstAfter,
	})
	if err == nil && verdict == "fenced" {
		err = fmt.Errorf("lease GPUs to generation %d of sandbox %s: %w", r.Generation, r.Sandbox.ID, db.ErrFenced)
	}
	return verdict == "ok", now, err
}

// StartGPUs notes that a sandbox's container is about to start with devices. ErrFenced if they are not what is leased to this generation of the
// sandbox: then it must not start.
func (s *Store) StartGPUs(ctx context.Context, node string, sandbox farm.Ref, generation int, devices []string) error {
	verdict, _, err := s.gpu(ctx, node, gpuArgs{Op: "start", Sandbox: sandbox.ID, Generation: generation, Devices: devices})
	if err == nil && verdict != "ok" {
		err = fmt.Errorf("start generation %d of sandbox %s with GPUs %s: %w", generation, sandbox.ID, strings.Join(devices, ", "), db.ErrFenced)
	}
	return err
}

// ReturnGPUs ends the leases that a sandbox has on a node since this generation or an earlier one; 0: since any. It is not an error if there are
// none, and ErrFenced if a later generation has them.
func (s *Store) ReturnGPUs(ctx context.Context, node string, sandbox farm.Ref, generation int) (GPUs, error) {
	return s.returnGPUs(ctx, node, sandbox, gpuArgs{Generation: generation})
}

// ReturnGPULease ends the leases of a sandbox on a node if they are still those that were read; ErrFenced if not.
func (s *Store) ReturnGPULease(ctx context.Context, node string, l GPULease) (GPUs, error) {
	return s.returnGPUs(ctx, node, l.Sandbox, gpuArgs{LeasedAt: db.Micros(l.At)})
}

func (s *Store) returnGPUs(ctx context.Context, node string, sandbox farm.Ref, args gpuArgs) (GPUs, error) {
	args.Op, args.Sandbox = "return", sandbox.ID
	verdict, now, err := s.gpu(ctx, node, args)
	if err == nil && verdict != "ok" {
		err = fmt.Errorf("return GPUs of sandbox %s: %w", sandbox.ID, db.ErrFenced)
	}
	return now, err
}

// RestoreGPUs writes the leases of devices that the container of a sandbox's generation has, for a Redis that lost its data. CodeConflict if
// another sandbox has one of them; the others are written all the same.
func (s *Store) RestoreGPUs(ctx context.Context, node string, sandbox farm.Ref, generation int, devices []string) (GPUs, error) {
	verdict, now, err := s.gpu(ctx, node, gpuArgs{Op: "restore", Sandbox: sandbox.ID, Tenant: sandbox.Tenant, Generation: generation, Devices: devices})
	if err == nil && verdict != "ok" {
		err = farm.Conflictf("restore leases of GPUs %s for sandbox %s: another sandbox has one of them", strings.Join(devices, ", "), sandbox.ID)
	}
	return now, err
}

// OpenGPUs allows leases of a node's devices: those of its containers are written.
func (s *Store) OpenGPUs(ctx context.Context, node string) (GPUs, error) {
	_, now, err := s.gpu(ctx, node, gpuArgs{Op: "open"})
	return now, err
}

// GPUs reads the leases of a node.
func (s *Store) GPUs(ctx context.Context, node string) (GPUs, error) {
	_, now, err := s.gpu(ctx, node, gpuArgs{Op: "look"})
	return now, err
}

// gpuArgs are the arguments of gpu.lua.
type gpuArgs struct {
	Op         string   `lua:"op"`
	Node       string   `lua:"node"`
	Sandbox    string   `lua:"sandbox"`
	Tenant     string   `lua:"tenant"`
	Worker     string   `lua:"worker"`
	Count      int      `lua:"count"`
	Devices    []string `lua:"devices"`     // that may be leased, in this order; those of its container
	WaitedLong bool     `lua:"waited_long"` // it may go first
	FirstMS    int64    `lua:"first_ms"`    // for how long
	Generation int      `lua:"generation"`  // 0: any
	LeasedAt   string   `lua:"leased_at"`   // microseconds; empty: any time
}

func (s *Store) gpu(ctx context.Context, node string, args gpuArgs) (verdict string, now GPUs, err error) {
	args.Node, args.FirstMS = node, firstFor.Milliseconds()
	r, err := s.Run(ctx, args.Op+" GPUs", "gpu", db.SlotCapacity, args)
	if err != nil {
		return "", GPUs{}, err
	}
	now.Leases = map[string]GPULease{}
	for device, text := range r.Fields(1) {
		if device == "#" {
			now.Open = true
			continue
		}
		part := strings.SplitN(text, " ", 6)
		if len(part) < 6 {
			return "", GPUs{}, fmt.Errorf("read lease of GPU %s: it is %q", device, text)
		}
		l := GPULease{Device: device, Worker: part[2], At: db.Moment(part[3]), Sandbox: farm.Ref{Tenant: part[5], ID: part[4]}}
		switch part[1] {
		case "leased", "started":
			if l.Generation, err = strconv.Atoi(part[0]); err != nil {
				return "", GPUs{}, fmt.Errorf("read lease of GPU %s: %w", device, err)
			}
			l.Started = part[1] == "started"
		default: // the release before wrote bound, or - for leased
			l.Started = part[1] == "bound"
		}
		if l.Worker == "-" {
			l.Worker = ""
		}
		now.Leases[device] = l
	}
	return r.Text(0), now, nil
}

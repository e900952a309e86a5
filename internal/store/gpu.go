package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// GPULease is the lease of one device of a node.
type GPULease struct {
	Device  string
	Sandbox farm.Ref
	Fence   int64     // rises with every lease of the farm
	Bound   bool      // the sandbox's container is about to start with it, or has it, see BindGPUs
	Worker  string    // who leased it; empty: the lease was restored from a container
	At      time.Time // of the lease
}

// GPUs are the leases of a node.
type GPUs struct {
	Open   bool // the reconciler has compared the leases with the node's containers; nothing is leased before
	Leases map[string]GPULease
}

// Of returns the devices of a sandbox by name, and their fence; 0 if it has none.
func (g GPUs) Of(sandbox string) (devices []string, fence int64) {
	for _, device := range slices.Sorted(maps.Keys(g.Leases)) {
		if l := g.Leases[device]; l.Sandbox.ID == sandbox {
			devices, fence = append(devices, device), l.Fence
		}
	}
	return devices, fence
}

// GPURequest asks for devices of a node for a sandbox.
type GPURequest struct {
	Node    string
	Sandbox farm.Ref
	Worker  string
	Count   int
	Devices []string  // that it may have, in the order of preference
	Since   time.Time // when its creation was accepted; zero: it never goes first
}

// LeaseGPUs leases devices of a node to a sandbox: all that it asks for or none, and reports whether it did. Devices that the sandbox
// has already stay its own, under a new fence. A sandbox that has waited for half a minute goes first on its node until it has its devices.
func (s *Store) LeaseGPUs(ctx context.Context, r GPURequest) (ok bool, now GPUs, err error) {
	verdict, now, err := s.gpu(ctx, r.Node, gpuArgs{
		Op: "lease", Sandbox: r.Sandbox.ID, Tenant: r.Sandbox.Tenant, Worker: r.Worker, Count: r.Count, Devices: r.Devices,
		WaitedLong: !r.Since.IsZero() && s.now().Sub(r.Since) > firstAfter,
	})
	return verdict == "ok", now, err
}

// BindGPUs notes that a sandbox's container is about to start with its devices. ErrFenced if they are no longer leased under this fence:
// then it must not start.
func (s *Store) BindGPUs(ctx context.Context, node string, sandbox farm.Ref, fence int64) error {
	verdict, _, err := s.gpu(ctx, node, gpuArgs{Op: "bind", Sandbox: sandbox.ID, Fence: fence})
	if err == nil && verdict != "ok" {
		err = fmt.Errorf("bind GPUs to sandbox %s: %w", sandbox.ID, ErrFenced)
	}
	return err
}

// ReturnGPUs ends the leases of a sandbox on a node; it is not an error if there are none. With a fence that is not 0 they end only under that
// one, otherwise ErrFenced.
func (s *Store) ReturnGPUs(ctx context.Context, node string, sandbox farm.Ref, fence int64) (GPUs, error) {
	verdict, now, err := s.gpu(ctx, node, gpuArgs{Op: "return", Sandbox: sandbox.ID, Fence: fence})
	if err == nil && verdict != "ok" {
		err = fmt.Errorf("return GPUs of sandbox %s: %w", sandbox.ID, ErrFenced)
	}
	return now, err
}

// RestoreGPUs writes the leases of devices that a sandbox's container has, for a Redis that lost its data. CodeConflict if another sandbox
// has one of them; the others are written all the same.
func (s *Store) RestoreGPUs(ctx context.Context, node string, sandbox farm.Ref, devices []string) (GPUs, error) {
	verdict, now, err := s.gpu(ctx, node, gpuArgs{Op: "restore", Sandbox: sandbox.ID, Tenant: sandbox.Tenant, Devices: devices})
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
	Now        string   `lua:"now"` // microseconds
	Sandbox    string   `lua:"sandbox"`
	Tenant     string   `lua:"tenant"`
	Worker     string   `lua:"worker"`
	Count      int      `lua:"count"`
	Devices    []string `lua:"devices"`     // that may be leased, in this order; those of its container
	WaitedLong bool     `lua:"waited_long"` // it may go first
	FirstMS    int64    `lua:"first_ms"`    // for how long
	Fence      int64    `lua:"fence"`       // 0: any
}

func (s *Store) gpu(ctx context.Context, node string, args gpuArgs) (verdict string, now GPUs, err error) {
	args.Now, args.FirstMS = micros(s.now()), firstFor.Milliseconds()
	keys := []string{s.nodeKey("gpus:" + node), s.nodeKey("gpufence"), s.nodeKey("gpuhold:" + node)}
	result, err := s.scripts.gpu.Run(ctx, s.rdb, keys, values(args)...).Slice()
	if err != nil {
		return "", GPUs{}, wrap(args.Op+" GPUs", err)
	}
	r := reply(result)
	now.Leases = map[string]GPULease{}
	for device, text := range r.fields(2) {
		if device == "#" {
			now.Open = true
			continue
		}
		part := strings.SplitN(text, " ", 6)
		if len(part) < 6 {
			return "", GPUs{}, fmt.Errorf("read lease of GPU %s: it is %q", device, text)
		}
		l := GPULease{Device: device, Bound: part[1] == "bound", Worker: part[2], At: moment(part[3]), Sandbox: farm.Ref{Tenant: part[5], ID: part[4]}}
		if l.Fence, err = strconv.ParseInt(part[0], 10, 64); err != nil {
			return "", GPUs{}, fmt.Errorf("read lease of GPU %s: %w", device, err)
		}
		if l.Worker == "-" {
			l.Worker = ""
		}
		now.Leases[device] = l
	}
	return r.text(0), now, nil
}

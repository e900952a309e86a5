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

// GPULease says who has a device of a node.
type GPULease struct {
	Device  string
	Sandbox farm.Ref
	Fence   int64     // rises with every lease of the farm
	Bound   bool      // the sandbox's container was about to start with it, see BindGPUs
	Worker  string    // who leased it; empty: it was adopted from a container
	At      time.Time // of the lease
}

// GPUs is what is leased on a node.
type GPUs struct {
	Open   bool // somebody has compared the leases with the node's containers: nothing is leased before
	Leases map[string]GPULease
}

// Of gives what a sandbox has, in the order of names, and its fence; 0 when it has nothing.
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
	Devices []string  // that it may have, the first ones first
	Since   time.Time // when its creation was accepted; zero: it holds back nobody
}

// LeaseGPUs gives a sandbox devices of a node for itself, all that it asks for or none, and reports whether it did. What
// it has there already stays its own: then only the fence is new. A sandbox that has waited for half a minute and finds too few holds
// back the others of the node until it has them.
func (s *Store) LeaseGPUs(ctx context.Context, r GPURequest) (ok bool, now GPUs, err error) {
	waited := !r.Since.IsZero() && s.now().Sub(r.Since) > holdAfter
	args := []any{r.Sandbox.Tenant, r.Worker, r.Count, flag(waited), holdFor.Milliseconds()}
	for _, device := range r.Devices {
		args = append(args, device)
	}
	verdict, now, err := s.gpu(ctx, r.Node, "lease", r.Sandbox.ID, args...)
	return verdict == "ok", now, err
}

// BindGPUs notes that a sandbox's container starts with its devices. ErrFenced when they are not leased under this fence
// any more: then it must not start.
func (s *Store) BindGPUs(ctx context.Context, node string, sandbox farm.Ref, fence int64) error {
	verdict, _, err := s.gpu(ctx, node, "bind", sandbox.ID, fence)
	if err == nil && verdict != "ok" {
		err = fmt.Errorf("bind GPUs to sandbox %s: %w", sandbox.ID, ErrFenced)
	}
	return err
}

// ReturnGPUs gives back what a sandbox has of a node; it is no error when that is nothing. With a fence that is not 0, it
// is given back only under that one, else ErrFenced.
func (s *Store) ReturnGPUs(ctx context.Context, node string, sandbox farm.Ref, fence int64) (GPUs, error) {
	verdict, now, err := s.gpu(ctx, node, "return", sandbox.ID, fence)
	if err == nil && verdict != "ok" {
		err = fmt.Errorf("give back GPUs of sandbox %s: %w", sandbox.ID, ErrFenced)
	}
	return now, err
}

// RestoreGPUs writes down that a sandbox's container has devices, for a Redis that has forgotten it. CodeConflict when
// another sandbox has one of them; the others are written all the same.
func (s *Store) RestoreGPUs(ctx context.Context, node string, sandbox farm.Ref, devices []string) (GPUs, error) {
	args := []any{sandbox.Tenant}
	for _, device := range devices {
		args = append(args, device)
	}
	verdict, now, err := s.gpu(ctx, node, "adopt", sandbox.ID, args...)
	if err == nil && verdict != "ok" {
		err = farm.Conflictf("adopt GPUs %s of sandbox %s: another sandbox has one of them", strings.Join(devices, ", "), sandbox.ID)
	}
	return now, err
}

// OpenGPUs lets devices of a node be leased: what its containers have is written down.
func (s *Store) OpenGPUs(ctx context.Context, node string) (GPUs, error) {
	_, now, err := s.gpu(ctx, node, "open", "")
	return now, err
}

// GPUs says what is leased on a node.
func (s *Store) GPUs(ctx context.Context, node string) (GPUs, error) {
	_, now, err := s.gpu(ctx, node, "look", "")
	return now, err
}

// gpu calls the script of leases.
func (s *Store) gpu(ctx context.Context, node, op, sandbox string, args ...any) (verdict string, now GPUs, err error) {
	keys := []string{s.roomKey("gpus:" + node), s.roomKey("gpufence"), s.roomKey("gpuhold:" + node)}
	values, err := s.scripts.gpu.Run(ctx, s.rdb, keys, append([]any{op, micros(s.now()), sandbox}, args...)...).Slice()
	if err != nil {
		return "", GPUs{}, wrap(op+" GPUs", err)
	}
	r := reply(values)
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

package placement

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// errDevicesGone fails a start whose devices another sandbox has. It happens only if Redis lost its data.
var errDevicesGone = farm.Errorf(farm.CodeConflict, "The GPUs of the sandbox were leased to another sandbox while it started. Create it again.")

// FindGPUs finds the devices of this node: those of the setting worker.gpus, or else those of the driver, if the engine can give
// them to containers. An engine that places containers itself has those of the setting, and gives them out itself: there are no leases.
func (p *Placer) FindGPUs(ctx context.Context) error {
	devices, listed, err := listedGPUs(p.cfg.GPUs)
	if err != nil {
		return err
	}
	index := map[string]string{}
	if !listed && p.host != nil {
		found, err := GPUDevices(ctx)
		if err != nil { // jobs without a GPU are served all the same
			p.log.WarnContext(ctx, "no GPU is offered: the driver does not answer (see sandfarm doctor)", "error", err)
			return nil
		}
		for _, d := range found {
			if d.MIG {
				p.log.WarnContext(ctx, "a GPU is cut into MIG instances and not offered: list those in worker.gpus", "device", d.ID)
				continue
			}
			devices, index[d.ID] = append(devices, d.GPUDevice), d.Index
		}
	}
	if len(devices) == 0 {
		return nil
	}
	driver := "the engine's"
	if p.host != nil {
		if devices, driver, err = p.host.OfferGPUs(ctx, devices, index); err != nil {
			return fmt.Errorf("ask the engine for its GPU driver: %w", err)
		}
	}
	if driver == "" || len(devices) == 0 {
		p.log.WarnContext(ctx, "no GPU is offered: the engine cannot give them to containers (see sandfarm doctor)")
		return nil
	}
	p.gpus.set(devices)
	p.log.InfoContext(ctx, "GPUs are offered", "devices", len(devices), "driver", driver)
	return nil
}

// leases reports whether this package gives out devices.
func (p *Placer) leases() bool { return p.host != nil && p.gpus.any() }

// leaseGPUs leases the devices that a new sandbox needs. It reports whether the sandbox has them all.
func (p *Placer) leaseGPUs(ctx context.Context, claim *store.Claim) (bool, error) {
	want := claim.Sandbox.Spec.GPU
	if !want.Wanted() {
		return true, nil
	}
	if p.host == nil {
		p.gpus.resumeQueue(claim.Job.Queue)
		return true, nil
	}
	var ok bool
	var now store.GPUs
	err := p.retry(ctx, func(ctx context.Context) (err error) {
		ok, now, err = p.store.LeaseGPUs(ctx, store.GPURequest{
			Node: p.node.ID(), Sandbox: claim.Sandbox.Ref(), Generation: claim.Sandbox.Generation, Worker: p.deps.WorkerID, Count: want.Count, Devices: p.gpus.of(want.Model), Since: claim.Job.CreatedAt,
		})
		return err
	})
	if err != nil {
		return false, retry.Cause(ctx, err)
	}
	p.gpus.update(now)
	if !ok {
		p.gpus.pauseQueue(claim.Job.Queue)
		// A sandbox that was started on this node cannot move: it fails in AddDevices.
		return claim.Sandbox.Node == p.node.ID(), nil
	}
	p.gpus.keep(claim.Sandbox.ID, now.Of(claim.Sandbox.ID))
	p.gpus.resumeQueue(claim.Job.Queue)
	return true, nil
}

// ReleaseGPUs ends the leases of a sandbox whose container is gone, or was never made. If that fails, the reconciler does it later.
func (p *Placer) ReleaseGPUs(ctx context.Context, s *farm.Sandbox) {
	if !s.Spec.GPU.Wanted() || p.host == nil {
		return
	}
	p.gpus.forget(s.ID)
	ctx, done := retry.Detached(ctx)
	defer done()
	now, err := p.store.ReturnGPUs(ctx, p.node.ID(), s.Ref(), s.Generation)
	p.gpusReturned(ctx, s.ID, now, err)
}

// returnLease ends the leases of a sandbox unless they changed since they were read.
func (p *Placer) returnLease(ctx context.Context, l store.GPULease) {
	ctx, done := retry.Detached(ctx)
	defer done()
	now, err := p.store.ReturnGPULease(ctx, p.node.ID(), l)
	p.gpusReturned(ctx, l.Sandbox.ID, now, err)
}

// gpusReturned takes the answer to a return.
func (p *Placer) gpusReturned(ctx context.Context, sandbox string, now store.GPUs, err error) {
	switch {
	case errors.Is(err, store.ErrFenced): // a later start has them
	case err != nil:
		p.log.WarnContext(ctx, "GPUs of a sandbox are left to the reconciler", "sandbox_id", sandbox, "error", err)
	default:
		p.gpus.update(now)
	}
}

// AddDevices puts a sandbox's devices into the description of its container.
func (p *Placer) AddDevices(s *farm.Sandbox, spec *farm.ContainerSpec) error {
	if !s.Spec.GPU.Wanted() {
		return nil
	}
	if p.host == nil {
		spec.GPU = s.Spec.GPU
		return nil
	}
	if spec.GPUs = p.gpus.kept(s.ID); len(spec.GPUs) == 0 {
		return errDevicesGone
	}
	return nil
}

// CheckDevices decides whether a created container may start with its devices. It runs after the create, so of two containers with
// the same device at least one start sees the other. They must still be what is leased to the sandbox's generation.
func (p *Placer) CheckDevices(ctx context.Context, s *farm.Sandbox) error {
	if !s.Spec.GPU.Wanted() || p.host == nil {
		return nil
	}
	devices := p.gpus.kept(s.ID)
	containers, err := p.engine.List(ctx)
	if err != nil {
		return err
	}
	for _, c := range containers {
		if c.SandboxID == s.ID {
			if !slices.Equal(c.GPUs, devices) {
				err = errDevicesGone // it was made for a lease that has ended
			}
			continue
		}
		for _, id := range c.GPUs {
			if slices.Contains(devices, id) {
				p.log.ErrorContext(ctx, "a GPU is in use that was leased to another sandbox", "device", id, "sandbox_id", s.ID, "other", c.SandboxID)
				err = errDevicesGone
			}
		}
	}
	if err != nil {
		return err
	}
	err = p.retry(ctx, func(ctx context.Context) error {
		return p.store.StartGPUs(ctx, p.node.ID(), s.Ref(), s.Generation, devices)
	})
	if errors.Is(err, store.ErrFenced) {
		return errDevicesGone
	}
	return err
}

// maxGPUMemoryMB is more than any device has, to catch mistakes such as bytes in place of MiB.
const maxGPUMemoryMB = 100 << 20

// listedGPUs reads worker.gpus. A list in the environment is one text with commas, so an item may be any part of a device's
// description; "model=" begins a description. listed is false when the setting is empty and the driver is to be asked.
func listedGPUs(items []string) (devices []farm.GPUDevice, listed bool, err error) {
	if len(items) == 0 {
		return nil, false, nil
	}
	groups, err := gpuGroups(items)
	if err != nil {
		return nil, true, err
	}
	seen := map[string]bool{}
	for _, g := range groups {
		for range g.count {
			d := g.device
			if d.ID == "" {
				d.ID = strconv.Itoa(len(devices))
			}
			if seen[d.ID] {
				return nil, true, fmt.Errorf("worker.gpus names the device %s twice", d.ID)
			}
			seen[d.ID], devices = true, append(devices, d)
		}
	}
	if len(devices) > farm.MaxGPUs {
		return nil, true, fmt.Errorf("worker.gpus lists %d devices; at most %d are allowed", len(devices), farm.MaxGPUs)
	}
	return devices, true, nil
}

// GPUModels are the models of worker.gpus, as they are written there.
func GPUModels(items []string) (models []string, err error) {
	groups, err := gpuGroups(items)
	for _, g := range groups {
		models = append(models, g.model)
	}
	return models, err
}

// gpuGroups reads worker.gpus.
func gpuGroups(items []string) (groups []gpuGroup, err error) {
	text := strings.Join(items, ",")
	if len(items) == 0 || text == "none" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if name == "model" {
			groups = append(groups, gpuGroup{model: value, count: 1})
		}
		if len(groups) == 0 {
			return nil, fmt.Errorf("worker.gpus begins with %q; allowed: none, or model= and then memory_mb=, count= and id= of each device", name)
		}
		if err := groups[len(groups)-1].set(name, value); err != nil {
			return nil, err
		}
	}
	return groups, nil
}

// gpuGroup describes one or more devices of one kind.
type gpuGroup struct {
	device farm.GPUDevice
	model  string // as it is written
	count  int
}

// gpuID matches what an engine accepts as a device: an index, or the UUID of a device or of a MIG instance.
var gpuID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9:/._-]{0,127}$`)

func (g *gpuGroup) set(name, value string) (err error) {
	number := func(limit int) int {
		n, perr := strconv.Atoi(value)
		if perr != nil || n < 1 || n > limit {
			err = fmt.Errorf("worker.gpus: %s is %q; 1 to %d are allowed", name, value, limit)
		}
		return n
	}
	switch name {
	case "model":
		if g.device.Model = farm.NormalGPUModel(value); g.device.Model == "" || len(g.device.Model) > farm.MaxGPUModelBytes {
			return fmt.Errorf("worker.gpus: %q is not a model; write it as in model=A100", value)
		}
	case "memory_mb":
		g.device.MemoryMB = number(maxGPUMemoryMB)
	case "count":
		g.count = number(farm.MaxGPUs)
	case "id":
		if g.device.ID = value; !gpuID.MatchString(value) {
			return fmt.Errorf("worker.gpus: %q is not an id of a device; use the number or the UUID that nvidia-smi shows", value)
		}
	default:
		return fmt.Errorf("worker.gpus holds %q; allowed: none, or model=, memory_mb=, count= and id= of each device", name)
	}
	return err
}

// ReconcileGPUs brings the leases of this node and its containers together: the devices of a container are leased to its sandbox,
// and those of an ended sandbox without a container are free. No device is leased before the first call.
func (p *Placer) ReconcileGPUs(ctx context.Context) error {
	if !p.leases() {
		return nil
	}
	now, err := p.store.GPUs(ctx, p.node.ID()) // before the list, which then has every container that is bound to one of these leases
	if err != nil {
		return err
	}
	containers, err := p.engine.List(ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	// A running container has its devices. One that never started may have been made for the same devices, under a lease that has ended.
	slices.SortStableFunc(containers, runningFirst)
	var errs []error
	contained := map[string]bool{}
	for _, c := range containers {
		contained[c.SandboxID] = true
		errs = append(errs, p.restoreGPUs(ctx, now, c))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for sandbox, l := range sandboxesOf(now) {
		if contained[sandbox.ID] {
			continue
		}
		over, err := p.leaseIsOver(ctx, l)
		errs = append(errs, err)
		if over {
			p.log.InfoContext(ctx, "GPUs of a sandbox that has no container are free", "sandbox_id", sandbox.ID)
			p.returnLease(ctx, l)
		}
	}
	now, err = p.store.OpenGPUs(ctx, p.node.ID())
	if err == nil {
		p.gpus.update(now)
		p.deps.Wake()
	}
	return errors.Join(append(errs, err)...)
}

// runningFirst orders containers: running ones first.
func runningFirst(a, b farm.Container) int {
	switch {
	case a.Running == b.Running:
		return 0
	case a.Running:
		return -1
	default:
		return 1
	}
}

// restoreGPUs records the leases of a container whose leases were lost.
func (p *Placer) restoreGPUs(ctx context.Context, now store.GPUs, c farm.Container) error {
	sandbox := farm.Ref{Tenant: c.Tenant, ID: c.SandboxID}
	missing := false
	for _, id := range c.GPUs {
		missing = missing || now.Leases[id].Sandbox != sandbox
	}
	if !missing {
		return nil
	}
	s, err := p.store.Sandbox(ctx, sandbox)
	if farm.CodeOf(err) == farm.CodeNotFound || err == nil && (s.State == farm.SandboxClosing || s.State.Final()) {
		return nil // it is being removed; until then CheckDevices sees its devices
	}
	if err != nil {
		return fmt.Errorf("read sandbox: %w", err)
	}
	_, err = p.store.RestoreGPUs(ctx, p.node.ID(), sandbox, s.Generation, c.GPUs)
	if farm.CodeOf(err) == farm.CodeConflict && !c.Running { // made for a lease that has ended: CheckDevices does not let it start
		if err := p.engine.Remove(ctx, c.ID); err != nil {
			return fmt.Errorf("remove container: %w", err)
		}
		p.ReleaseGPUs(ctx, s)
		return nil
	}
	return err
}

// leaseIsOver reports whether a lease without a container can end.
func (p *Placer) leaseIsOver(ctx context.Context, l store.GPULease) (bool, error) {
	s, err := p.store.Sandbox(ctx, l.Sandbox)
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound:
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read sandbox: %w", err)
	case s.State.Final(), l.Generation > 0 && l.Generation < s.Generation:
		return true, nil
	case s.Node == p.node.ID():
		return false, nil // its job is starting it here
	case s.Node != "":
		return true, nil // its job moved to another node
	case p.deps.Now().Sub(l.At) > reservationGrace:
		return true, nil
	}
	alive, err := p.store.Alive(ctx, l.Worker) // the job of a dead worker may be taken over on another node
	return err == nil && !alive, err
}

// RefreshGPUs reads the leases, and ends those of dead workers for sandboxes that they did not start.
func (p *Placer) RefreshGPUs(ctx context.Context) error {
	if !p.leases() {
		return nil
	}
	now, err := p.store.GPUs(ctx, p.node.ID())
	if err != nil {
		return err
	}
	p.gpus.update(now)
	for sandbox, l := range sandboxesOf(now) {
		if l.Started || l.Worker == p.deps.WorkerID {
			continue
		}
		alive, err := p.store.Alive(ctx, l.Worker)
		if err != nil {
			return err
		}
		s, err := p.store.Sandbox(ctx, sandbox)
		if !alive && err == nil && s.Node != p.node.ID() {
			p.returnLease(ctx, l)
		}
	}
	return nil
}

// sandboxesOf returns one lease of each sandbox that has any.
func sandboxesOf(now store.GPUs) map[farm.Ref]store.GPULease {
	out := map[farm.Ref]store.GPULease{}
	for _, l := range now.Leases {
		out[l.Sandbox] = l
	}
	return out
}

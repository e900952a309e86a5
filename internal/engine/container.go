package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Create creates a sandbox's container with the hardened profile, without starting it, and returns its id. A second Create for the same
// generation of the sandbox returns the same container. A container of an earlier one is removed: who made it is late. farm.ErrNewer if there is
// one of a later generation. CodeNotFound: no such image or volume.
func (e *Engine) Create(ctx context.Context, of farm.ContainerSpec) (string, error) {
	s := sandboxSpec{ContainerSpec: of, UID: farm.PreferredUID(of.SandboxID), CDI: e.cdiNames(of.GPUs)}
	if err := s.validate(); err != nil {
		return "", err
	}
	cpus, err := e.cores(ctx)
	if err != nil {
		return "", err
	}
	return e.createUnique(ctx, s, cpus)
}

// createOnce is Create with the spec's uid. cpus are the cores of the engine.
func (e *Engine) createOnce(ctx context.Context, s sandboxSpec, cpus int) (string, error) {
	nvidia, name := e.hasNvidia(), e.Name(s.SandboxID)
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	for {
		var made container.CreateResponse
		problem := e.call(ctx, createTimeout, "create container", func(ctx context.Context) error {
			var err error
			facts := e.facts(s, cpus)
			made, err = e.cli.ContainerCreate(ctx, e.containerConfig(s, nvidia), hostConfig(s, facts), nil, nil, name)
			return err
		})
		if problem == nil {
			return made.ID, nil
		}
		if !cerrdefs.IsConflict(problem) {
			return "", problem
		}
		existing, err := e.Inspect(ctx, name)
		if farm.CodeOf(err) == farm.CodeNotFound { // it is being created, and has only its name yet, or it was removed
			select {
			case <-ctx.Done():
				return "", problem
			case <-time.After(createAgain):
			}
			continue
		}
		if err != nil || existing.SandboxID != s.SandboxID || existing.Labels[LabelNamespace] != e.namespace {
			return "", problem
		}
		switch order := cmp.Compare(existing.Generation, max(s.Generation, 1)); {
		case order == 0:
			return existing.ID, nil
		case order > 0:
			return "", fmt.Errorf("create container of sandbox %s: %w", s.SandboxID, farm.ErrNewer)
		}
		e.log.InfoContext(ctx, "container of an earlier generation is removed", "sandbox_id", s.SandboxID)
		if err := e.Remove(ctx, existing.ID); err != nil {
			return "", err
		}
	}
}

// generationOf is the generation of the sandbox that a container was made for. Those of the pool have no label: they are of the first.
func generationOf(labels map[string]string) int {
	n, err := strconv.Atoi(labels[LabelGeneration])
	if err != nil {
		return 1
	}
	return n
}

// facts returns what hostConfig needs to know for a sandbox. cores must have been called before.
func (e *Engine) facts(s sandboxSpec, cpus int) hostFacts {
	gpus := len(s.GPUs) > 0 // NCCL reads the topology of buses
	facts := hostFacts{seccomp: e.seccomp, runtime: e.ownRuntime(), cpus: cpus, devices: hostDevices(deviceTree, gpus)}
	if gpus {
		facts.seccomp = e.seccompGPU
	} else {
		facts.devices = append(facts.devices, driverTree, busTree)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	facts.timestamps, facts.parent = e.timestamps, e.parent.name
	return facts
}

// containerConfig is the container's configuration without its host configuration. nvidia says that the engine has NVIDIA's runtime.
func (e *Engine) containerConfig(s sandboxSpec, nvidia bool) *container.Config {
	stopAtOnce := 0
	labels := maps.Clone(s.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, map[string]string{
		LabelNamespace: e.namespace, LabelRole: RoleSandbox, LabelSandbox: s.SandboxID, LabelTenant: s.Tenant, LabelNode: s.Node,
		LabelUID: strconv.Itoa(s.UID),
	})
	if !s.Deadline.IsZero() {
		labels[LabelDeadline] = strconv.FormatInt(s.Deadline.Unix(), 10)
	}
	if s.Generation > 0 {
		labels[LabelGeneration] = strconv.Itoa(s.Generation)
	}
	if len(s.GPUs) > 0 {
		labels[LabelGPUs] = strings.Join(s.GPUs, ",")
	}
	variables := maps.Clone(s.Env)
	if variables == nil {
		variables = map[string]string{}
	}
	s.gpuEnv(variables, nvidia)
	env := make([]string, 0, len(variables))
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		env = append(env, name+"="+variables[name])
	}
	user := strconv.Itoa(s.UID)
	return &container.Config{
		Hostname:    "sandbox",
		User:        user + ":" + user,
		Env:         env,
		Entrypoint:  s.Command[:1],
		Cmd:         s.Command[1:],
		Image:       s.Image,
		WorkingDir:  farm.Workspace,
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}}, // the image's own check would start processes beside the agent
		Labels:      labels,
		StopTimeout: &stopAtOnce,
	}
}

// Start starts a container. It does nothing if the container runs. CodeNotFound when it is gone.
func (e *Engine) Start(ctx context.Context, id string) error {
	err := e.call(ctx, startTimeout, "start container", func(ctx context.Context) error {
		return e.cli.ContainerStart(ctx, id, container.StartOptions{})
	})
	if err != nil {
		return err
	}
	return errors.Join(e.limitSockets(id), e.limitTerminals(ctx, id))
}

// Remove kills a container and removes it with its anonymous volumes. It waits while another caller removes it, and while its processes do not
// end: those of a container with little CPU time may need many seconds. On return without an error the container no longer exists.
func (e *Engine) Remove(ctx context.Context, id string) error {
	return e.call(ctx, removeTimeout, "remove container", func(ctx context.Context) error {
		var last error
		err := poll(ctx, func() (bool, error) {
			err := e.cli.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
			switch {
			case err == nil || cerrdefs.IsNotFound(err):
				return true, nil
			case cerrdefs.IsConflict(err) || outlivesKill(err):
				last = err
				return false, nil
			}
			return false, err
		})
		if err != nil && last != nil {
			return fmt.Errorf("%w; before that: %v", err, last) //nolint:errorlint // its kind is not that of the call
		}
		return err
	})
}

// outlivesKill reports whether a container was killed and has not ended yet. The engine has no code for that; it says that the container is a
// zombie that cannot be killed, or that no exit event came.
func outlivesKill(err error) bool {
	return cerrdefs.IsInternal(err) && strings.Contains(strings.ToLower(err.Error()), "could not kill")
}

// poll calls look every 50 ms until it is done or fails, for what the engine does not announce.
func poll(ctx context.Context, look func() (done bool, err error)) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if done, err := look(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Inspect describes one container, by its id or name. CodeNotFound when it is gone.
func (e *Engine) Inspect(ctx context.Context, id string) (farm.Container, error) {
	var c farm.Container
	err := e.call(ctx, readTimeout, "inspect container", func(ctx context.Context) error {
		got, err := e.cli.ContainerInspect(ctx, id)
		if err != nil {
			return err
		}
		if got.ContainerJSONBase == nil || got.State == nil || got.HostConfig == nil || got.Config == nil {
			return fmt.Errorf("the engine returned an incomplete description of container %s", id)
		}
		c = fromLabels(got.ID, got.Config.Labels)
		c.Running, c.OOMKilled, c.ExitCode = got.State.Running, got.State.OOMKilled, got.State.ExitCode
		host := got.HostConfig
		c.Resources = farm.Resources{MemoryMB: int(host.Memory >> 20), CPUs: float64(host.NanoCPUs) / 1e9, PIDs: pidsOf(host)}
		c.Runtime = host.Runtime
		return nil
	})
	return c, err
}

// List describes the containers of all sandboxes of this farm in the engine, running or not.
func (e *Engine) List(ctx context.Context) ([]farm.Container, error) {
	found, err := e.containers(ctx, filters.Arg("label", LabelSandbox))
	if err != nil {
		return nil, err
	}
	list := make([]farm.Container, 0, len(found))
	for _, f := range found {
		c := fromLabels(f.ID, f.Labels)
		c.Running = f.State == container.StateRunning
		list = append(list, c)
	}
	return list, nil
}

// containers lists the containers that this farm created.
func (e *Engine) containers(ctx context.Context, more ...filters.KeyValuePair) ([]container.Summary, error) {
	args := filters.NewArgs(append(more, filters.Arg("label", LabelNamespace+"="+e.namespace))...)
	var found []container.Summary
	err := e.call(ctx, readTimeout, "list containers", func(ctx context.Context) error {
		var err error
		found, err = e.cli.ContainerList(ctx, container.ListOptions{All: true, Filters: args})
		return err
	})
	return found, err
}

// fromLabels reads back what Create put into the labels.
func fromLabels(id string, labels map[string]string) farm.Container {
	c := farm.Container{
		ID: id, SandboxID: labels[LabelSandbox], Generation: generationOf(labels), Tenant: labels[LabelTenant], Node: labels[LabelNode], Labels: labels,
	}
	if gpus := labels[LabelGPUs]; gpus != "" {
		c.GPUs = strings.Split(gpus, ",")
	}
	if seconds, err := strconv.ParseInt(labels[LabelDeadline], 10, 64); err == nil {
		c.Deadline = time.Unix(seconds, 0)
	}
	return c
}

// Running reports whether any container runs with all of these labels, each written as name=value. The container may belong to another
// program. At least one label is needed.
func (e *Engine) Running(ctx context.Context, labels ...string) (bool, error) {
	if len(labels) == 0 {
		return false, errors.New("look for containers: at least one label is needed")
	}
	args := filters.NewArgs(filters.Arg("status", container.StateRunning))
	for _, label := range labels {
		args.Add("label", label)
	}
	running := false
	err := e.call(ctx, readTimeout, "look for containers", func(ctx context.Context) error {
		found, err := e.cli.ContainerList(ctx, container.ListOptions{Filters: args, Limit: 1})
		running = len(found) > 0
		return err
	})
	return running, err
}

// updateTimeout bounds an update of limits: the runtime writes a few files of the cgroup.
const updateTimeout = startTimeout

// Update sets the limits of memory, cores and processes of a sandbox's running container; zero fields take the farm's defaults, as with
// Create. The sizes of its writable directories do not change. If more memory is in use than the new limit, the kernel reclaims it, and
// kills processes if it must. runtime is the OCI runtime of the container; empty: that of sandboxes that name none. CodeNotFound when the container is gone,
// CodeConflict when it does not run, or when its runtime is gVisor.
func (e *Engine) Update(ctx context.Context, id, runtime string, r farm.Resources) error {
	cpus, err := e.cores(ctx)
	if err != nil {
		return err
	}
	if farm.GVisor(cmp.Or(runtime, e.ownRuntime())) { // the kernel of the sandbox has read its memory and its limit of processes at its start
		return farm.Conflictf("gVisor cannot change the limits of a running sandbox; create another one")
	}
	r = (&sandboxSpec{ContainerSpec: farm.ContainerSpec{Resources: r}}).resources(cpus)
	return e.call(ctx, updateTimeout, "update container", func(ctx context.Context) error {
		_, err := e.cli.ContainerUpdate(ctx, id, updateConfig(r))
		return err
	})
}

// updateConfig are the new limits of a container. DiskMB has no effect.
func updateConfig(r farm.Resources) container.UpdateConfig {
	pids := int64(r.PIDs)
	return container.UpdateConfig{Resources: container.Resources{
		Memory: int64(r.MemoryMB) << 20, MemorySwap: int64(r.MemoryMB) << 20, NanoCPUs: int64(r.CPUs * 1e9), CPUShares: shares(r.CPUs), PidsLimit: &pids,
	}}
}

// Usage reads the counters of a running container, by its id or name. A container that does not run has none: ok is false.
func (e *Engine) Usage(ctx context.Context, id string) (u farm.ContainerUsage, ok bool, err error) {
	err = e.call(ctx, readTimeout, "read container's counters", func(ctx context.Context) error {
		answer, err := e.cli.ContainerStatsOneShot(ctx, id)
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		var s container.StatsResponse
		if err := json.NewDecoder(answer.Body).Decode(&s); err != nil {
			return fmt.Errorf("decode counters: %w", err)
		}
		idle := s.MemoryStats.Stats["inactive_file"]
		if total, v1 := s.MemoryStats.Stats["total_inactive_file"]; v1 {
			idle = total
		}
		u = farm.ContainerUsage{Container: s.ID, CPU: time.Duration(s.CPUStats.CPUUsage.TotalUsage), Memory: int64(s.MemoryStats.Usage - min(idle, s.MemoryStats.Usage))} //nolint:gosec // bytes of memory
		ok = s.ID != "" && u.CPU > 0
		return nil
	})
	return u, ok, err
}

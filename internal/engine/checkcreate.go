package engine

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Create checks a call that creates a container of this name: that of a sandbox, or a helper.
func (c *Checker) Create(ctx context.Context, name string, body []byte) (CreateCall, error) {
	tree, err := parseJSON(body)
	if err != nil {
		return CreateCall{}, farm.Invalidf("the body: %v", err)
	}
	var got container.CreateRequest
	if err := json.Unmarshal(body, &got); err != nil {
		return CreateCall{}, farm.Invalidf("the body: %v", err)
	}
	switch {
	case got.Config == nil:
		return CreateCall{}, farm.Invalidf("the body has no configuration")
	case got.HostConfig == nil:
		return CreateCall{}, farm.Invalidf("HostConfig is missing")
	case got.Labels[LabelRole] == RoleHelper:
		return c.createHelper(name, tree, got)
	case got.Labels[LabelRole] == RoleBuild:
		return c.createBuildNetwork(ctx, name, tree, got)
	default:
		return c.createSandbox(ctx, name, tree, got)
	}
}

// createSandbox checks the container of a sandbox.
func (c *Checker) createSandbox(ctx context.Context, name string, tree any, got container.CreateRequest) (CreateCall, error) {
	s, e := specOf(got), c.engine
	made := CreateCall{Image: s.Image, Volume: s.Agent}
	switch {
	case !farm.ValidID(farm.SandboxPrefix, s.SandboxID):
		return made, farm.Invalidf("Labels: %s is no id of a sandbox", LabelSandbox)
	case name != e.Name(s.SandboxID):
		return made, farm.Invalidf("the name is not that of the container of sandbox %s", s.SandboxID)
	case !strings.HasPrefix(s.Agent, e.namespace+"-agent-"):
		return made, farm.Invalidf("HostConfig.Mounts[0] is not the agent's volume of this farm at %s", fillMount)
	}
	for _, check := range []error{s.validate(), checkLabels(s.Labels), checkGPUEnv(s)} {
		if check != nil {
			return made, check
		}
	}
	err := c.refreshed(ctx, func(cpus int) (err error) {
		if !c.allowsRuntime(got.HostConfig.Runtime) {
			return farm.Invalidf("HostConfig.Runtime %q is not allowed", farm.Shorten(got.HostConfig.Runtime))
		}
		made.Body, err = compare(tree, container.CreateRequest{Config: e.containerConfig(s, e.hasNvidia()), HostConfig: hostConfig(s, c.factsOf(s, cpus, got))})
		return err
	})
	if err != nil {
		return made, err
	}
	return made, c.checkResources(s.Resources)
}

// allowsRuntime reports whether a sandbox may have an OCI runtime. cores must have been called before.
func (c *Checker) allowsRuntime(name string) bool {
	return name == c.engine.ownRuntime() || slices.Contains(c.rules.Runtimes, name)
}

// createHelper checks a helper: it must be one of those that this package creates.
func (c *Checker) createHelper(name string, tree any, got container.CreateRequest) (made CreateCall, err error) {
	e := c.engine
	made.Image = got.Image
	if name == "" {
		helpers := []container.CreateRequest{e.nvidiaHelper(got.Image), e.quotaHelper(got.Image)}
		if runtime := got.HostConfig.Runtime; runtime != "" && c.allowsRuntime(runtime) {
			helpers = append(helpers, e.runtimeHelper(got.Image, runtime))
		}
		for _, helper := range helpers {
			if made.Body, err = compare(tree, helper); err == nil {
				break
			}
		}
		return made, err
	}
	if name == e.preloadName() {
		made.Body, err = compare(tree, e.preloadHelper(got.Image))
		return made, err
	}
	if mounts := got.HostConfig.Mounts; len(mounts) == 1 {
		made.Volume = mounts[0].Source
	}
	if name != fillName(made.Volume) || !strings.HasPrefix(made.Volume, e.namespace+"-agent-") {
		return made, farm.Invalidf("the name %q is not that of a helper", farm.Shorten(name))
	}
	made.Body, err = compare(tree, e.fillHelper(got.Image, made.Volume))
	return made, err
}

// createBuildNetwork checks the container whose network a build shares.
func (c *Checker) createBuildNetwork(ctx context.Context, name string, tree any, got container.CreateRequest) (made CreateCall, err error) {
	if mounts := got.HostConfig.Mounts; len(mounts) == 1 {
		made.Volume = mounts[0].Source
	}
	switch {
	case c.rules.Build == nil:
		return made, farm.Invalidf("images cannot be built here (engine_proxy.builds), so a build has no network")
	case name != "":
		return made, farm.Invalidf("the network of a build has no name")
	case !slices.Equal(c.rules.Build, slices.Concat(got.Entrypoint, got.Cmd)):
		return made, farm.Invalidf("the command is not that of the network of a build")
	case !strings.HasPrefix(made.Volume, c.engine.namespace+"-agent-"):
		return made, farm.Invalidf("HostConfig.Mounts[0] is not the agent's volume of this farm")
	}
	made.Image = got.Image
	s := buildSpec(made.Volume)
	err = c.refreshed(ctx, func(cpus int) (err error) {
		made.Body, err = compare(tree, c.engine.buildNetwork(got.Image, s, c.factsOf(s, cpus, got), c.rules.Build))
		return err
	})
	return made, err
}

// factsOf are the facts of which a worker makes a container: its process alone knows whether there is a cgroup above all sandboxes.
func (c *Checker) factsOf(s sandboxSpec, cpus int, got container.CreateRequest) hostFacts {
	facts := c.engine.facts(s, cpus)
	facts.parent = ""
	if slices.Contains(c.engine.parentNames(), got.HostConfig.CgroupParent) {
		facts.parent = got.HostConfig.CgroupParent
	}
	return facts
}

// parentNames are the names that the cgroup above all sandboxes can have.
func (e *Engine) parentNames() (names []string) {
	for _, driver := range []string{"cgroupfs", "systemd"} {
		if p, err := newParentCgroup(e.namespace, cgroupRoot, "", driver); err == nil {
			names = append(names, p.name)
		}
	}
	return names
}

// specOf is the inverse of containerConfig and hostConfig: it reads the fields of sandboxSpec from what they made. What is not theirs is ignored
// or makes no sense in the sandboxSpec, so that they make something else of it.
func specOf(got container.CreateRequest) sandboxSpec {
	labels, host := maps.Clone(got.Labels), got.HostConfig
	take := func(name string) string {
		value := labels[name]
		delete(labels, name)
		return value
	}
	for _, name := range []string{LabelNamespace, LabelRole} {
		take(name)
	}
	s := sandboxSpec{ContainerSpec: farm.ContainerSpec{
		SandboxID: take(LabelSandbox), Tenant: take(LabelTenant), Node: take(LabelNode), Image: got.Image,
		Command: slices.Concat(got.Entrypoint, got.Cmd), Env: map[string]string{}, Runtime: host.Runtime,
		Resources: farm.Resources{MemoryMB: int(host.Memory >> 20), CPUs: coresOf(host.NanoCPUs), DiskMB: sizeMB(host.Tmpfs[farm.Workspace])},
	}}
	s.UID, _ = strconv.Atoi(take(LabelUID)) // 0 is refused
	if seconds, err := strconv.ParseInt(take(LabelDeadline), 10, 64); err == nil {
		s.Deadline = time.Unix(seconds, 0)
	}
	s.Generation, _ = strconv.Atoi(take(LabelGeneration)) // 0 makes no label
	if gpus := take(LabelGPUs); gpus != "" {
		s.GPUs = strings.Split(gpus, ",")
	}
	s.Labels = labels
	for _, variable := range got.Env {
		name, value, _ := strings.Cut(variable, "=")
		s.Env[name] = value
	}
	s.Resources.PIDs = pidsOf(host)
	if len(host.Mounts) > 0 && host.Mounts[0].Target == fillMount {
		s.Agent = host.Mounts[0].Source
	}
	if len(host.DeviceRequests) > 0 && host.DeviceRequests[0].Driver == DriverCDI {
		s.CDI = host.DeviceRequests[0].DeviceIDs
	}
	return s
}

// sizeMB reads the size from the options of a tmpfs; 0 if it has none in MiB.
func sizeMB(options string) int {
	for option := range strings.SplitSeq(options, ",") {
		if size, ok := strings.CutPrefix(option, "size="); ok {
			mb, _ := strconv.Atoi(strings.TrimSuffix(size, "m")) // 0 is refused
			return mb
		}
	}
	return 0
}

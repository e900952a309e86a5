package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/system"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Info describes the engine's capabilities.
type Info struct {
	Version         string
	APIVersion      string // negotiated
	OS              string // of the host, such as "Debian GNU/Linux 12 (bookworm)"
	Arch            string // "amd64", "arm64"
	KernelVersion   string
	CgroupVersion   string // "1" or "2"
	StorageDriver   string
	StorageQuota    bool // containers can have a size limit: probed, not guessed
	Runtimes        []string
	DefaultRuntime  string
	CPUs            int
	MemoryBytes     int64
	SecurityOptions []string
	AppArmor        bool
	Rootless        bool
	UserNamespaces  bool // root in a container is not root of the host
}

// Info queries the engine's capabilities. The first call probes a container with a size limit, which takes a moment; the result is kept.
func (e *Engine) Info(ctx context.Context) (Info, error) {
	got, err := e.systemInfo(ctx)
	if err != nil {
		return Info{}, err
	}
	info := Info{
		Version: got.ServerVersion, APIVersion: e.cli.ClientVersion(), OS: got.OperatingSystem, Arch: goArch(got.Architecture),
		KernelVersion: got.KernelVersion, CgroupVersion: got.CgroupVersion, StorageDriver: got.Driver,
		Runtimes: slices.Sorted(maps.Keys(got.Runtimes)), DefaultRuntime: got.DefaultRuntime,
		CPUs: got.NCPU, MemoryBytes: got.MemTotal, SecurityOptions: got.SecurityOptions,
	}
	for _, option := range got.SecurityOptions {
		switch name, _, _ := strings.Cut(strings.TrimPrefix(option, "name="), ","); name {
		case "apparmor":
			info.AppArmor = true
		case "rootless":
			info.Rootless = true
		case "userns":
			info.UserNamespaces = true
		}
	}
	info.StorageQuota, err = e.storageQuota(ctx)
	return info, err
}

// Identify checks that sandboxes can run in the engine, with its default OCI runtime and these, and returns what a worker needs to know of it.
func (e *Engine) Identify(ctx context.Context, runtimes ...string) (id farm.EngineIdentity, err error) {
	if err := e.Ping(ctx); err != nil {
		return id, fmt.Errorf("reach the engine: %w", err)
	}
	if err := e.CheckLimits(ctx); err != nil {
		return id, err
	}
	standard, err := e.CheckRuntimes(ctx, runtimes...)
	if err != nil {
		return id, fmt.Errorf("look for the sandboxes' runtimes: %w", err)
	}
	id.Runtimes = runtimesOf(standard, runtimes)
	for _, name := range id.Runtimes {
		switch err := e.CheckCheckpoints(ctx, name); farm.CodeOf(err) {
		case "":
			id.Hibernates = append(id.Hibernates, name)
		case farm.CodeConflict: // doctor says why
		default:
			return id, fmt.Errorf("ask for checkpoints: %w", err)
		}
	}
	if id.Node, err = e.NodeID(ctx); err != nil {
		return id, fmt.Errorf("read the engine's identity: %w", err)
	}
	got, err := e.systemInfo(ctx)
	id.Arch = goArch(got.Architecture)
	return id, err
}

// runtimesOf lists OCI runtimes, the default first, each once.
func runtimesOf(standard string, chosen []string) []string {
	list := []string{standard}
	for _, name := range chosen {
		if !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

// CheckLimits returns an error when the engine cannot limit what a sandbox uses. It would start containers without their limits and only warn: a
// rootless engine does on cgroup v1, or if the controllers are not delegated to its user.
func (e *Engine) CheckLimits(ctx context.Context) error {
	got, err := e.systemInfo(ctx)
	if err != nil {
		return err
	}
	if missing := missingLimits(got); len(missing) > 0 {
		return farm.Errorf(farm.CodeUnavailable, "the engine cannot limit the %s of sandboxes, so nothing may run in it; a rootless engine needs cgroup v2 with the controllers memory, pids and cpu delegated to its user", strings.Join(missing, ", "))
	}
	return nil
}

// missingLimits names what an engine cannot limit.
func missingLimits(info system.Info) (missing []string) {
	if !info.MemoryLimit {
		missing = append(missing, "memory")
	}
	if !info.PidsLimit {
		missing = append(missing, "processes")
	}
	if !info.CPUCfsQuota {
		missing = append(missing, "cores")
	}
	return missing
}

// CheckRuntimes returns the default runtime of sandboxes, and an error when the engine lacks it or one of the others, or when one of them is gVisor
// under a name that does not say so: the profile goes by the name. A worker checks before it serves: a sandbox must never run with less isolation
// than configured.
func (e *Engine) CheckRuntimes(ctx context.Context, others ...string) (standard string, err error) {
	got, err := e.systemInfo(ctx)
	if err != nil {
		return "", err
	}
	standard = cmp.Or(e.runtime, got.DefaultRuntime, "runc")
	if err := checkNames(got.Runtimes, append([]string{standard}, others...)); err != nil {
		return standard, err
	}
	for _, name := range append([]string{e.runtime}, others...) {
		if _, ok := got.Runtimes[name]; name == "" || ok {
			continue
		}
		return standard, farm.Conflictf("the Docker engine has no runtime %q (it has %s). %s", name, strings.Join(slices.Sorted(maps.Keys(got.Runtimes)), ", "), RuntimeAdvice(name))
	}
	return standard, nil
}

// checkNames refuses the names of runtimes that the engine starts by gVisor's program or shim, and that do not say so.
func checkNames(registered map[string]system.RuntimeWithStatus, names []string) error {
	for _, name := range names {
		program := cmp.Or(registered[name].Type, path.Base(registered[name].Path))
		if farm.GVisor(program) && !farm.GVisor(name) {
			return farm.Conflictf("the Docker engine's runtime %q is gVisor (%s), and its sandboxes would have no limit on processes: register it under a name with runsc or gvisor in it", name, program)
		}
	}
	return nil
}

// RuntimeAdvice says what to do about a runtime of the settings that the engine lacks.
func RuntimeAdvice(name string) string {
	register := "Register it in the engine's daemon.json"
	if farm.GVisor(name) {
		register = "Register it with `make gvisor` on the engine's machine (docs/operations.md)"
	}
	return register + ", or take it out of engine.runtime, engine.runtimes and engine.image_runtimes."
}

func (e *Engine) systemInfo(ctx context.Context) (system.Info, error) {
	var got system.Info
	err := e.call(ctx, readTimeout, "read engine info", func(ctx context.Context) error {
		var err error
		got, err = e.cli.Info(ctx)
		return err
	})
	return got, err
}

// cores returns the number of the engine's cores; it queries the engine once.
func (e *Engine) cores(ctx context.Context) (int, error) {
	e.mu.Lock()
	cpus := e.cpus
	e.mu.Unlock()
	if cpus > 0 {
		return cpus, nil
	}
	got, err := e.systemInfo(ctx)
	if err != nil {
		return 0, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, e.nvidia = got.Runtimes[DriverNvidia]
	e.timestamps = OwnTimestamps(got.KernelVersion)
	e.standard = got.DefaultRuntime
	e.cpus = got.NCPU
	return e.cpus, nil
}

// OwnTimestamps reports whether a kernel, such as "6.12.41+deb13-amd64", has net.core.tstamp_allow_data for each network namespace. It is so since
// Linux 6.13 ("net-timestamp: namespacify the sysctl_tstamp_allow_data"). It is false for an unreadable version.
func OwnTimestamps(kernel string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(kernel, "%d.%d", &major, &minor)
	return n == 2 && (major > 6 || major == 6 && minor >= 13)
}

// hasNvidia reports whether the engine has NVIDIA's runtime. cores must have been called before.
func (e *Engine) hasNvidia() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.nvidia
}

// ownRuntime is the OCI runtime of sandboxes that name none: Config.Runtime, or else the engine's default. It is sent by name, so that the
// profile fits it (gVisor needs another one) even if the engine is restarted with another default. cores must have been called before.
func (e *Engine) ownRuntime() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return cmp.Or(e.runtime, e.standard)
}

// storageQuota probes whether a container can have a size limit, with an empty image, and keeps the result.
func (e *Engine) storageQuota(ctx context.Context) (bool, error) {
	e.mu.Lock()
	known := e.quota
	e.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	ref := e.namespace + "/probe:" + strings.ToLower(farm.NewID(""))
	if err := e.Import(ctx, ref, bytes.NewReader(make([]byte, 1024))); err != nil { // a tar without members
		return false, err
	}
	verdict, err := e.tryQuota(ctx, ref)
	err = errors.Join(err, e.RemoveImage(context.WithoutCancel(ctx), ref))
	if err != nil {
		return false, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.quota = &verdict
	return verdict, nil
}

func (e *Engine) tryQuota(ctx context.Context, ref string) (bool, error) {
	id, err := e.createHelper(ctx, "", e.quotaHelper(ref))
	switch {
	case err == nil:
		return true, e.Remove(context.WithoutCancel(ctx), id)
	case cerrdefs.IsInternal(err), cerrdefs.IsInvalidArgument(err), cerrdefs.IsNotImplemented(err), cerrdefs.IsUnknown(err):
		return false, nil // refused; the code differs between versions
	default:
		return false, err
	}
}

// goArch turns the kernel's name of an architecture into Go's name.
func goArch(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return machine
}

// Capacity is the memory and the cores of the engine's host, as the engine reports them.
func (e *Engine) Capacity(ctx context.Context) (farm.Capacity, error) {
	got, err := e.systemInfo(ctx)
	return farm.Capacity{MemoryMB: int(got.MemTotal >> 20), CPUs: float64(got.NCPU)}, err
}

const (
	tryTimeout = 30 * time.Second // for a program that ends at once
	tryEvery   = 50 * time.Millisecond
)

// TryRuntime runs /bin/true of an image in a container with an OCI runtime, and removes the container. The error says what the engine or the
// program reported.
func (e *Engine) TryRuntime(ctx context.Context, runtime, image string) (err error) {
	id, err := e.createHelper(ctx, "", e.runtimeHelper(image, runtime))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Remove(context.WithoutCancel(ctx), id)) }()
	if err := e.Start(ctx, id); err != nil {
		return err
	}
	ctx, done := context.WithTimeout(ctx, tryTimeout)
	defer done()
	for {
		c, err := e.Inspect(ctx, id)
		switch {
		case err != nil:
			return err
		case !c.Running && c.ExitCode != 0:
			return fmt.Errorf("/bin/true ended with exit code %d", c.ExitCode)
		case !c.Running:
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("/bin/true did not end: %w", ctx.Err())
		case <-time.After(tryEvery):
		}
	}
}

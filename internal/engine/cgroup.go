package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	// initialCgroupNamespace is the kernel's fixed name for the namespace of the host. In another one, paths mean something else to the engine.
	initialCgroupNamespace = "cgroup:[4026531835]"
)

// parentCgroup is the cgroup above all sandboxes of this farm on the engine's host.
type parentCgroup struct {
	name   string // as the engine calls it
	root   string // where cgroups are mounted
	v2     bool
	driver string // of the engine: cgroupfs or systemd
}

// LimitSandboxes puts sandboxes that are created from now on under one cgroup that may use this many bytes of memory and three quarters of
// the host's processes. When all sandboxes together need more, the kernel ends processes of sandboxes, never the engine, Redis or a
// worker. Its CPU weight is half of the default, see halfShares. An error says why it is not possible; then sandboxes lie where the engine puts them, each under its own limits.
func (e *Engine) LimitSandboxes(ctx context.Context, memory int64) error {
	p, err := e.parentCgroup(ctx)
	if err == nil {
		err = p.apply(ctx, memory)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.parent = (parentCgroup{}); err == nil {
		e.parent = p
	}
	return err
}

// halfShares and halfWeight are half of the CPU weight that a cgroup has by default, on versions 1 and 2. With all of it, five sandboxes that printed without
// end kept Redis and everything else on a host of two cores waiting for up to 4 s (Linux 6.18); with half, 0.3 s. With an eighth, on a host whose cores are
// all in use, six wake-ups in a sandbox that mostly sleeps took 40 ms at the 95th percentile instead of 1, so every tenant would pay for the busy one.
const halfShares, halfWeight = 512, 50

// socketBytes is what the sockets of a sandbox may keep on version 1, beside its memory. Beyond it senders wait. Version 2 charges it to the
// sandbox's memory.
const socketBytes = 64 << 20

// limitSockets sets the limit of a container that has just started, in which nothing but the agent runs yet. The kernel counts the sockets of a
// cgroup from then on. The engine has the limit as KernelMemoryTCP, but runc ignores it since 1.0.
func (e *Engine) limitSockets(id string) error {
	e.mu.Lock()
	p := e.parent
	e.mu.Unlock()
	if p.name == "" || p.v2 {
		return nil
	}
	files, _ := filepath.Glob(filepath.Join(p.dir("memory"), "*"+id+"*", "memory.kmem.tcp.limit_in_bytes")) // none on kernels without it
	var errs []error
	for _, file := range files {
		if err := setLimit(file, socketBytes); !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) { // it has ended
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// terminalsMax is how many of the host's pseudo-terminals a sandbox may have: twice as many as its agent lets it have. The agent counts what is in
// /dev/pts, where a terminal is missing once its first end is closed. The kernel counts it until both are.
const terminalsMax = 256

// limitTerminals sets the limit of a container that has just started. gVisor has its own terminals.
func (e *Engine) limitTerminals(ctx context.Context, id string) error {
	e.mu.Lock()
	p := e.parent
	e.mu.Unlock()
	if p.name == "" {
		return nil
	}
	pid, _, err := e.process(ctx, id)
	if errors.Is(err, ErrNotLocal) || farm.CodeOf(err) == farm.CodeConflict { // or it has ended
		return nil
	}
	if err != nil {
		return err
	}
	dir, err := unix.Open(fmt.Sprintf("/proc/%d/root/dev/pts", pid), unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("limit terminals: %w", err)
	}
	defer func() { _ = unix.Close(dir) }()
	var theirs, ours unix.Stat_t
	if err := errors.Join(unix.Fstat(dir, &theirs), unix.Stat("/dev/pts", &ours)); err != nil || theirs.Dev == ours.Dev { // the pid belongs to a process of the host by now
		return err
	}
	change, err := unix.Fspick(dir, "", unix.FSPICK_EMPTY_PATH|unix.FSPICK_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // an old kernel, or not root
		return nil
	}
	if err != nil {
		return fmt.Errorf("limit terminals: %w", err)
	}
	defer func() { _ = unix.Close(change) }()
	for _, option := range [][2]string{{"gid", "5"}, {"mode", "620"}, {"ptmxmode", "666"}, {"max", strconv.Itoa(terminalsMax)}} { // the first three as the engine sets them
		if err := unix.FsconfigSetString(change, option[0], option[1]); err != nil {
			return fmt.Errorf("limit terminals: %w", err)
		}
	}
	if err := unix.FsconfigReconfigure(change); err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("limit terminals: %w", err)
	}
	return nil
}

// CheckLimitSandboxes reports why LimitSandboxes would fail. It changes nothing.
func (e *Engine) CheckLimitSandboxes(ctx context.Context) error {
	p, err := e.parentCgroup(ctx)
	if err != nil {
		return err
	}
	if err := unix.Access(p.dir("memory"), unix.W_OK); err == nil {
		return nil
	}
	if err := unix.Access(filepath.Dir(p.dir("memory")), unix.W_OK); err != nil {
		return farm.Wrap(err, farm.CodeConflict, "this user cannot make a cgroup in %s", filepath.Dir(p.dir("memory")))
	}
	return nil
}

// parentCgroup describes the cgroup; an error says why there can be none.
func (e *Engine) parentCgroup(ctx context.Context) (parentCgroup, error) {
	if host := e.cli.DaemonHost(); !strings.HasPrefix(host, "unix://") {
		return parentCgroup{}, farm.Conflictf("the engine is not on this host")
	}
	info, err := e.systemInfo(ctx)
	if err != nil {
		return parentCgroup{}, err
	}
	if slices.ContainsFunc(info.SecurityOptions, func(o string) bool { return strings.HasPrefix(o, "name=rootless") }) {
		return parentCgroup{}, farm.Conflictf("the engine runs rootless")
	}
	if ns, err := os.Readlink("/proc/self/ns/cgroup"); err != nil || ns != initialCgroupNamespace {
		return parentCgroup{}, farm.Conflictf("this process runs in a container or another cgroup namespace")
	}
	return newParentCgroup(e.namespace, cgroupRoot, info.CgroupVersion, info.CgroupDriver)
}

func newParentCgroup(namespace, root, version, driver string) (parentCgroup, error) {
	p := parentCgroup{name: "/sandboxes-" + namespace, root: root, v2: version == "2", driver: driver}
	switch driver {
	case "cgroupfs":
	case "systemd": // a dash in the name of a slice means a level
		p.name = "sandboxes_" + strings.ReplaceAll(namespace, "-", "_") + ".slice"
	default:
		return p, farm.Conflictf("the engine's cgroup driver is %q; cgroupfs and systemd are supported", driver)
	}
	return p, nil
}

// dir is the directory of a controller.
func (p parentCgroup) dir(controller string) string {
	if p.v2 {
		return filepath.Join(p.root, p.name)
	}
	return filepath.Join(p.root, controller, p.name)
}

// apply makes the cgroup, sets its limits and checks that the kernel has them.
func (p parentCgroup) apply(ctx context.Context, memory int64) error {
	file, processes := "memory.limit_in_bytes", hostProcesses()*3/4
	if p.v2 {
		file = "memory.max"
	}
	if p.driver == "systemd" {
		if err := p.applySlice(ctx, memory, processes); err != nil {
			return err
		}
	} else if err := p.makeDirs(); err != nil {
		return err
	}
	p.weigh()
	if err := setLimit(filepath.Join(p.dir("memory"), file), memory); err != nil {
		return err
	}
	if err := setLimit(filepath.Join(p.dir("pids"), "pids.max"), processes); err != nil {
		return err
	}
	if err := unix.Access(p.dir("memory"), unix.W_OK); err != nil { // another user made it, and this one could not limit what is in it
		return farm.Wrap(err, farm.CodeConflict, "this user cannot write in %s", p.dir("memory"))
	}
	return nil
}

// makeDirs makes the directories of the driver cgroupfs.
func (p parentCgroup) makeDirs() error {
	if p.v2 { // the root may have both processes and controllers for its children
		if err := p.checkControllers(); err != nil {
			return err
		}
		_ = os.WriteFile(filepath.Join(p.root, "cgroup.subtree_control"), []byte("+cpu"), 0o600) // for weigh
		if err := os.WriteFile(filepath.Join(p.root, "cgroup.subtree_control"), []byte("+memory +pids"), 0o600); err != nil {
			return fmt.Errorf("enable controllers: %w", err)
		}
	}
	for _, controller := range []string{"memory", "pids"} {
		if err := os.Mkdir(p.dir(controller), 0o755); err != nil && !errors.Is(err, os.ErrExist) { //nolint:gosec // as the engine makes them
			return fmt.Errorf("make the sandboxes' cgroup: %w", err)
		}
	}
	if p.v2 {
		return nil
	}
	// Kernels before 5.11 charge the memory of children only when asked.
	hierarchy := filepath.Join(p.dir("memory"), "memory.use_hierarchy")
	if data, err := os.ReadFile(hierarchy); err == nil && string(bytes.TrimSpace(data)) == "0" {
		if err := os.WriteFile(hierarchy, []byte("1"), 0o600); err != nil {
			return fmt.Errorf("charge the memory of sandboxes to their cgroup: %w", err)
		}
	}
	return nil
}

// weigh sets the CPU weight with the driver cgroupfs. A host that cannot do that does without.
func (p parentCgroup) weigh() {
	switch {
	case p.driver == "systemd":
	case p.v2:
		_ = os.WriteFile(filepath.Join(p.dir("cpu"), "cpu.weight"), []byte(strconv.Itoa(halfWeight)), 0o600)
	default:
		_ = os.Mkdir(p.dir("cpu"), 0o755) //nolint:gosec // as the engine makes them
		_ = os.WriteFile(filepath.Join(p.dir("cpu"), "cpu.shares"), []byte(strconv.Itoa(halfShares)), 0o600)
	}
}

// checkControllers reports which controllers version 2 lacks: a host that has both versions may have bound them to version 1.
func (p parentCgroup) checkControllers() error {
	data, err := os.ReadFile(filepath.Join(p.root, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("read the controllers of cgroups: %w", err)
	}
	there := strings.Fields(string(data))
	for _, needed := range []string{"memory", "pids"} {
		if !slices.Contains(there, needed) {
			return farm.Conflictf("cgroup version 2 has no controller %q here: it is disabled, or bound to version 1 (cgroup_no_v1=all on the kernel's command line frees it)", needed)
		}
	}
	return nil
}

// applySlice has systemd make the slice, which would overwrite limits that it does not know.
func (p parentCgroup) applySlice(ctx context.Context, memory, processes int64) error {
	property, weight := "MemoryMax", fmt.Sprintf("CPUWeight=%d", halfWeight)
	if !p.v2 {
		property, weight = "MemoryLimit", fmt.Sprintf("CPUShares=%d", halfShares)
	}
	for _, args := range [][]string{
		{"set-property", "--runtime", p.name, fmt.Sprintf("%s=%d", property, memory), fmt.Sprintf("TasksMax=%d", processes), weight},
		{"start", p.name},
	} {
		if out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput(); err != nil { //nolint:gosec // the name is made of the namespace
			return fmt.Errorf("systemctl %s: %w: %s", args[0], err, bytes.TrimSpace(out))
		}
	}
	return nil
}

// setLimit writes a limit unless it is set, and checks that it is. The kernel rounds it to pages.
func setLimit(file string, limit int64) error {
	isSet := func() bool {
		data, err := os.ReadFile(file)
		got, perr := strconv.ParseInt(string(bytes.TrimSpace(data)), 10, 64)
		return err == nil && perr == nil && got <= limit && got > limit-int64(os.Getpagesize())
	}
	if isSet() {
		return nil
	}
	if err := os.WriteFile(file, []byte(strconv.FormatInt(limit, 10)), 0o600); err != nil {
		return fmt.Errorf("limit the sandboxes' cgroup: %w", err)
	}
	if !isSet() {
		return fmt.Errorf("limit the sandboxes' cgroup: the kernel did not take %d for %s", limit, file)
	}
	return nil
}

// hostProcesses is how many processes and threads the host can have.
func hostProcesses() int64 {
	limit := int64(1) << 15 // pid_max of small machines
	for i, name := range []string{"pid_max", "threads-max"} {
		data, err := os.ReadFile("/proc/sys/kernel/" + name)
		if n, perr := strconv.ParseInt(string(bytes.TrimSpace(data)), 10, 64); err == nil && perr == nil && (i == 0 || n < limit) {
			limit = n
		}
	}
	return limit
}

// removeParentCgroup removes the cgroup if it exists and no sandbox is left in it.
func (e *Engine) removeParentCgroup(ctx context.Context) {
	p, err := e.parentCgroup(ctx)
	if err != nil {
		return
	}
	if p.driver == "systemd" {
		_ = exec.CommandContext(ctx, "systemctl", "stop", p.name).Run() //nolint:gosec // the name is made of the namespace
		return
	}
	dirs := []string{p.dir("")}
	if !p.v2 { // the engine makes it for every controller
		dirs, _ = filepath.Glob(filepath.Join(p.root, "*", p.name))
	}
	for _, dir := range dirs {
		_ = os.Remove(dir) // only an empty cgroup is removed
	}
}

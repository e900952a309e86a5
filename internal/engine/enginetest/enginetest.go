// Package enginetest has the suite that every engine of workers passes (Conformance). It also starts additional Docker engines on this machine, for tests of farms with several nodes and of faults that must not
// happen to the machine's own engine. Each has its own network, process and mount namespace, so nothing of it outlives the test. Tests
// that use it need root, dockerd, iproute2 and util-linux.
package enginetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// timeout bounds the start of an engine.
const timeout = time.Minute

// Options are the settings of an engine. The zero value has the defaults.
type Options struct {
	// Path are directories before the PATH of the engine, for example of hooks of its runtime.
	Path []string
	// Args are additional arguments of dockerd.
	Args []string
}

// Daemon is a Docker engine of a test.
type Daemon struct {
	Host string // its address, such as "unix:///tmp/…/docker.sock"
	Tmp  string // the directory of its temporary files, and of its containerd's

	t       *testing.T
	name    string
	dir     string
	options Options
	log     *testbed.Log
	cmd     *exec.Cmd
	exited  chan struct{}
}

// New starts an engine without images. It is removed with everything in it when the test ends.
func New(t *testing.T, o Options) *Daemon {
	t.Helper()
	name := "sft-" + strings.ToLower(rand.Text()[:8])
	dir, err := os.MkdirTemp("", name) // t.TempDir is too long for sockets
	if err == nil {
		err = os.Chmod(dir, 0o711) //nolint:gosec // the root of containers with userns-remap passes through it
	}
	tmp := filepath.Join(dir, "tmp")
	if err == nil {
		err = os.Mkdir(tmp, 0o700)
	}
	if err == nil { // without it the engine reads that of the machine's own, whose runtimes go before the arguments
		err = os.WriteFile(filepath.Join(dir, "daemon.json"), []byte("{}"), 0o600)
	}
	testbed.Must(t, err)
	d := &Daemon{t: t, name: name, dir: dir, options: o, log: &testbed.Log{}, Host: "unix://" + filepath.Join(dir, "docker.sock"), Tmp: tmp}
	t.Cleanup(func() {
		d.Kill()
		_ = exec.Command("ip", "netns", "delete", name).Run()
		d.removeCgroups()
		err := os.RemoveAll(dir)
		testbed.Check(t, err == nil, "remove engine: %v", err)
		if t.Failed() {
			t.Logf("output of engine %s:\n%s", name, d.log.Tail())
		}
	})
	for _, argv := range [][]string{
		{"ip", "netns", "add", name},
		{"nsenter", "--net=/run/netns/" + name, "ip", "link", "set", "lo", "up"},
	} {
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		testbed.Require(t, err == nil, "make a network for an engine: %v: %s", err, out) //nolint:gosec // fixed programs
	}
	d.Start()
	return d
}

// Start starts the engine again after Stop or Kill, on its data, and waits until it answers.
func (d *Daemon) Start() {
	d.t.Helper()
	for _, left := range []string{"docker.pid", "exec"} { // a machine that boots has none: the process ids belong to other processes now
		testbed.Must(d.t, os.RemoveAll(filepath.Join(d.dir, left)))
	}
	argv := append([]string{
		"--net=/run/netns/" + d.name, "unshare", "--pid", "--fork", "--mount-proc", "--kill-child=KILL",
		"dockerd", "--data-root", filepath.Join(d.dir, "data"), "--exec-root", filepath.Join(d.dir, "exec"),
		"--pidfile", filepath.Join(d.dir, "docker.pid"), "--config-file", filepath.Join(d.dir, "daemon.json"), "--host", d.Host, "--cgroup-parent", "/" + d.name, "--log-level", "warn",
	}, append(runtimeArgs(), d.options.Args...)...)
	d.cmd = exec.Command("nsenter", argv...) //nolint:gosec // fixed programs
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	d.cmd.Env = append(os.Environ(), "PATH="+strings.Join(append(d.options.Path, os.Getenv("PATH")), ":"), "TMPDIR="+d.Tmp)
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	begun, exited := make(chan error, 1), make(chan struct{})
	d.exited = exited
	go func(cmd *exec.Cmd) {
		// The Pdeathsig signal comes when the thread that started the process ends, and package engine ends threads.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		begun <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(exited)
	}(d.cmd)
	testbed.Must(d.t, <-begun)
	ctx, done := context.WithTimeout(d.t.Context(), timeout)
	defer done()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for d.command(ctx, "version").Run() != nil {
		select {
		case <-tick.C:
		case <-exited:
			d.t.Fatalf("the engine ended:\n%s", d.log.Tail())
		case <-ctx.Done():
			d.t.Fatalf("the engine does not answer:\n%s", d.log.Tail())
		}
	}
}

// Stop ends the engine in order, as when it is updated: it stops its containers first. Start starts it again.
func (d *Daemon) Stop() {
	d.t.Helper()
	d.signal(syscall.SIGTERM)
	select {
	case <-d.exited:
	case <-time.After(timeout):
		d.t.Errorf("the engine did not stop within %s:\n%s", timeout, d.log.Tail())
	}
	d.Kill()
}

// Kill ends the engine and everything in it at once, as when its machine dies. It may be called again.
func (d *Daemon) Kill() {
	if d.cmd == nil || d.cmd.Process == nil {
		return
	}
	_ = d.cmd.Process.Kill() // nsenter became unshare, whose end is that of its child, and with that of its namespace
	<-d.exited
	d.cmd = nil
}

// Pause stops the engine with SIGSTOP: it accepts calls and answers none. Its containers keep running.
func (d *Daemon) Pause() { d.signal(syscall.SIGSTOP) }

// Resume continues a paused engine.
func (d *Daemon) Resume() { d.signal(syscall.SIGCONT) }

// signal sends a signal to the engine itself.
func (d *Daemon) signal(s syscall.Signal) {
	d.t.Helper()
	pid := strconv.Itoa(d.cmd.Process.Pid)
	children, err := os.ReadFile(filepath.Join("/proc", pid, "task", pid, "children"))
	testbed.Must(d.t, err)
	for child := range strings.FieldsSeq(string(children)) {
		number, err := strconv.Atoi(child)
		if err == nil {
			err = syscall.Kill(number, s)
		}
		testbed.Must(d.t, err)
	}
}

// Docker runs a command of the Docker client on the engine and returns its output.
func (d *Daemon) Docker(args ...string) string {
	d.t.Helper()
	out, err := d.command(d.t.Context(), args...).CombinedOutput()
	if err != nil {
		d.t.Fatalf("docker %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (d *Daemon) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "docker", append([]string{"--host", d.Host}, args...)...) //nolint:gosec // a fixed program
}

// Load copies images from the machine's own engine.
func (d *Daemon) Load(refs ...string) {
	d.t.Helper()
	save := exec.CommandContext(d.t.Context(), "docker", append([]string{"save"}, refs...)...) //nolint:gosec // a fixed program
	load := d.command(d.t.Context(), "load")
	var failed bytes.Buffer
	save.Stderr = &failed
	pipe, err := save.StdoutPipe()
	testbed.Must(d.t, err)
	load.Stdin = pipe
	testbed.Must(d.t, save.Start())
	out, err := load.CombinedOutput()
	werr := save.Wait()
	testbed.Require(d.t, err == nil && werr == nil, "copy images %v: %v, %v: %s%s", refs, err, werr, out, &failed)
}

// removeCgroups removes empty cgroups.
func (d *Daemon) removeCgroups() {
	tops, _ := filepath.Glob("/sys/fs/cgroup/*/" + d.name)
	for _, top := range append(tops, "/sys/fs/cgroup/"+d.name) {
		inner, _ := filepath.Glob(filepath.Join(top, "*"))
		for _, dir := range append(inner, top) {
			_ = os.Remove(dir) // files of the kernel refuse, groups are removed
		}
	}
}

// GPUs is a fake of NVIDIA's hook: Options.Path of the engine must name its directory. The hook gives a container no devices, and records
// which devices the container should have.
type GPUs struct {
	Dir string

	log string
}

// Hooked is one container that was started with devices.
type Hooked struct {
	Container string
	At        time.Time // when, by the machine's clock
	Devices   []string  // of NVIDIA_VISIBLE_DEVICES; nil when it was not set
}

// NewGPUs creates a hook.
func NewGPUs(t *testing.T) *GPUs {
	t.Helper()
	dir := t.TempDir()
	g := &GPUs{Dir: dir, log: filepath.Join(dir, "log")}
	// The state of the container is on standard input: its id, and the bundle with its configuration. A short line is
	// written at once, however many hooks write.
	script := fmt.Sprintf(`#!/bin/sh
state=$(cat)
id=$(printf %%s "$state" | sed 's/.*"id":"\([^"]*\)".*/\1/')
bundle=$(printf %%s "$state" | sed 's/.*"bundle":"\([^"]*\)".*/\1/')
devices=$(tr '[]' '\n\n' <"$bundle/config.json" | tr ',' ' ' | tr '"' '\n' | sed -n 's/^NVIDIA_VISIBLE_DEVICES=//p' | tail -n 1 | tr ' ' ',')
echo "$1 $id ${devices:-none} $(date +%%s%%N)" >>%s
`, g.log)
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "nvidia-container-runtime-hook"), []byte(script), 0o755)) //nolint:gosec // a program
	testbed.Must(t, os.WriteFile(g.log, nil, 0o644))                                                          //nolint:gosec // a log of a test
	return g
}

// Seen lists the containers that were started with devices, in the order of their starts.
func (g *GPUs) Seen(t *testing.T) (all []Hooked) {
	t.Helper()
	text, err := os.ReadFile(g.log)
	testbed.Must(t, err)
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		testbed.Require(t, len(words) == 4 && words[0] == "prestart", "the hook wrote %q", line)
		nanos, err := strconv.ParseInt(words[3], 10, 64)
		testbed.Require(t, err == nil, "the hook wrote %q: %v", line, err)
		h := Hooked{Container: words[1], At: time.Unix(0, nanos)}
		if words[2] != "none" {
			h.Devices = strings.Split(words[2], ",")
		}
		all = append(all, h)
	}
	return all
}

// Runtime is the OCI runtime of sandboxes in tests: that of the setting engine.runtime, as for the farms that tests start (`make
// test-integration RUNTIME=runsc`). Empty: the engine's default.
func Runtime() string { return os.Getenv("SANDFARM_ENGINE_RUNTIME") }

// GVisor reports whether sandboxes in tests run under gVisor, where some things differ (docs/security.md, "Under gVisor").
func GVisor() bool { return farm.GVisor(Runtime()) }

// runtimeArgs registers that runtime in an engine. SANDFARM_TEST_RUNSC names the program.
func runtimeArgs() []string {
	if program := os.Getenv("SANDFARM_TEST_RUNSC"); GVisor() && program != "" {
		return []string{"--add-runtime", Runtime() + "=" + program}
	}
	return nil
}

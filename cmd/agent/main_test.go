package main_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// setup builds the agent, starts it as init with more flags, and dials it.
func setup(t *testing.T, flags ...string) (*client.Client, *os.Process) {
	t.Helper()
	binary, socket, init := launch(t, flags...)
	dial := exec.Command(binary, "dial", "-socket", socket)
	in, err := dial.StdinPipe()
	testbed.Must(t, err)
	out, err := dial.StdoutPipe()
	testbed.Must(t, err)
	testbed.Must(t, dial.Start())
	c, err := client.New(stream{out, in}, client.Options{})
	testbed.Must(t, err)
	t.Cleanup(func() {
		_ = c.Close()
		_ = dial.Wait()
	})
	return c, init
}

// launch builds the agent and starts it as init.
func launch(t *testing.T, flags ...string) (binary, socket string, process *os.Process) {
	t.Helper()
	dir, err := os.MkdirTemp("", "init")
	testbed.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	testbed.Must(t, os.Chmod(dir, 0o755)) //nolint:gosec // others are to dial
	binary = filepath.Join(dir, "agent")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	args := []string{"init", "-socket", filepath.Join(dir, "s")}
	for flag, name := range map[string]string{"-workspace": "w", "-run": "r", "-home": "h", "-tmp": "t"} {
		testbed.Must(t, os.Mkdir(filepath.Join(dir, name), 0o755)) //nolint:gosec // a test's own
		args = append(args, flag, filepath.Join(dir, name))
	}
	init := exec.Command(binary, append(args, flags...)...)
	init.Stderr = os.Stderr
	testbed.Must(t, init.Start())
	t.Cleanup(func() {
		_ = init.Process.Kill()
		_ = init.Wait()
	})
	return binary, filepath.Join(dir, "s"), init.Process
}

func TestOnlyTheDiallerAndRootMaySpeak(t *testing.T) {
	t.Parallel()
	binary, socket, _ := launch(t)
	dial := exec.CommandContext(t.Context(), binary, "dial", "-socket", socket)
	if os.Getuid() == 0 { // any other uid must be refused
		dial.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	in, err := dial.StdinPipe()
	testbed.Must(t, err)
	out, err := dial.StdoutPipe()
	testbed.Must(t, err)
	testbed.Must(t, dial.Start())
	c, err := client.New(stream{out, in}, client.Options{})
	testbed.Must(t, err)
	defer func() {
		_ = c.Close()
		_ = dial.Wait()
	}()
	if info, err := c.Info(t.Context()); err == nil {
		t.Fatalf("another uid got an answer: %+v", info)
	}
}

type stream struct {
	io.Reader
	io.WriteCloser
}

func TestInitReapsOrphansAndKeepsExitCodes(t *testing.T) {
	t.Parallel()
	c, init := setup(t)
	for range 20 { // orphans exit at the same time as the agent's own children
		ran := agenttest.Run(t, c, agenttest.Commands("for i in 1 2 3 4 5; do (sh -c 'sleep 0.0$$' &) ; done; exit 7"))
		if ran.Outcome.ExitCode != 7 {
			t.Fatalf("outcome = %+v", ran.Outcome)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		left := children(t, init.Pid)
		if len(left) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("left: %v", left)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// children lists the children of a process, zombies too.
func children(t *testing.T, pid int) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	testbed.Must(t, err)
	var all []string
	for _, path := range paths {
		raw, _ := os.ReadFile(path)
		all = append(all, strings.Fields(string(raw))...)
	}
	return all
}

// What the agent starts has its limit of processes, and cannot raise it.
func TestInitLimitsProcesses(t *testing.T) {
	t.Parallel()
	c, _ := setup(t, "-pids", "4000")
	if ran := agenttest.Run(t, c, agenttest.Commands("ulimit -Su; ulimit -Hu")); ran.Stdout != "4000\n4000\n" {
		t.Errorf("the limits are %q: %s", ran.Stdout, ran.Stderr)
	}
}

func TestInitOutlivesEverySignal(t *testing.T) {
	t.Parallel()
	c, init := setup(t)
	if _, err := c.Info(t.Context()); err != nil { // the agent is up; no user code runs before that
		t.Fatal(err)
	}
	for n := 1; n <= 64; n++ {
		switch s := syscall.Signal(n); s {
		case syscall.SIGKILL, syscall.SIGSTOP, 32, 33, 34: // cannot be caught, or used by the C library: PID 1 does not receive them
		default:
			testbed.Must(t, init.Signal(s))
		}
	}
	ran := agenttest.Run(t, c, agenttest.Commands("kill -TERM $PPID; kill -HUP $PPID; kill -INT $PPID; kill -KILL $PPID; kill -STOP $PPID; python3 -c 'import signal; print(signal.getsignal(signal.SIGINT))'"))
	if !strings.Contains(ran.Stdout, "default_int_handler") {
		t.Fatalf("an ignored signal was inherited: %+v", ran)
	}
	_, err := c.Info(t.Context())
	testbed.Must(t, err)
}

func TestInitIsSmall(t *testing.T) {
	t.Parallel()
	c, init := setup(t)
	_, err := c.Info(t.Context())
	testbed.Must(t, err)
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(init.Pid) + "/status")
	testbed.Must(t, err)
	for row := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(row, "VmRSS:"); ok {
			t.Logf("resident: %s", strings.TrimSpace(rest))
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			testbed.Must(t, err)
			if kib > 15<<10 {
				t.Errorf("%d KiB are resident, want at most 15 MiB", kib)
			}
		}
	}
}

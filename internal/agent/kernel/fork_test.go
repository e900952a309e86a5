//go:build integration

package kernel_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
)

// What the code has printed without a newline is not lost, and precedes what a child prints, however the child is started or ends.
func TestKernelWritesBeforeAChild(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	for name, c := range map[string]struct{ code, want string }{
		"subprocess":     {`subprocess.run(["echo", "b"])`, "ab\n"},
		"os.system":      {`os.system("echo b")`, "ab\n"},
		"os.posix_spawn": {`os.waitpid(os.posix_spawnp("echo", ["echo", "b"], os.environ), 0)`, "ab\n"},
		"os.fork":        {"if os.fork() == 0:\n    print('b'); os._exit(0)\nos.wait()", "ab\n"},
		"os.exec":        {"if os.fork() == 0:\n    print('b', end=''); os.execlp('echo', 'echo', 'c')\nos.wait()", "abc\n"},
		"os._exit":       {"if os.fork() == 0:\n    print('b', end=''); os._exit(0)\nos.wait()", "ab"},
		"SIGKILL":        {"if os.fork() == 0:\n    print('b'); print('c'); os.kill(os.getpid(), 9)\nos.wait()", "ab\nc\n"},
	} {
		ran := agenttest.Run(t, a.Client, agenttest.Code("import os, subprocess\nprint('a', end='')\n"+c.code+"\nNone"))
		if ran.Stdout != c.want || ran.Outcome.Error != nil {
			t.Errorf("%s: stdout %q, want %q; stderr %q, %+v", name, ran.Stdout, c.want, ran.Stderr, ran.Outcome.Error)
		}
	}
}

// A fork while another thread prints: the child does not wait for a lock that the other thread held, and does not write that thread's
// output again.
func TestKernelForksWhileAThreadPrints(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	spec := agenttest.Code(`
import os, sys, threading
sys.setswitchinterval(1e-6) # the other thread runs at any moment
forked = threading.Event()
def count():
    n = 0
    while not forked.is_set():
        print(n)
        n += 1
thread = threading.Thread(target=count)
thread.start()
for _ in range(20):
    if os.fork() == 0:
        print("child", flush=True)
        os._exit(0)
    os.wait()
forked.set()
thread.join()
`)
	spec.Timeout = time.Minute
	ran := agenttest.Run(t, a.Client, spec)
	if n := strings.Count(ran.Stdout, "child\n"); n != 20 || ran.Outcome.Error != nil {
		t.Fatalf("%d of 20 children printed; %+v %+v", n, ran.Outcome, ran.Outcome.Error)
	}
	for i, line := range strings.Fields(strings.ReplaceAll(ran.Stdout, "child\n", "")) {
		if line != strconv.Itoa(i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
}

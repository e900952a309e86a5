//go:build integration

package kernel_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestKernelCatchesOutputOfChildrenAndC(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	ran := agenttest.Run(t, a.Client, agenttest.Code(`
import os, subprocess, sys, ctypes
print("python", end="")
subprocess.run(["sh", "-c", "echo child; echo error >&2"])
sys.stdout.flush(); os.write(1, b"raw\n")
ctypes.CDLL(None).printf(b"printed in C\n")
sys.stdout.buffer.write(b"bytes\n")
if os.fork() == 0:
    print("fork", flush=True)
    os._exit(0)
os.wait()
print("\ud800")
`))
	if want := "pythonchild\nraw\nprinted in C\nbytes\nfork\n\\ud800\n"; ran.Stdout != want || ran.Stderr != "error\n" {
		t.Fatalf("stdout = %q, want %q; stderr = %q; %+v", ran.Stdout, want, ran.Stderr, ran.Outcome.Error)
	}
}

func TestKernelDropsLateOutput(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	flag := a.Workspace + "/flag"
	first := agenttest.Run(t, a.Client, agenttest.Code(fmt.Sprintf(`
import threading, time, os, subprocess
def late():
    while not os.path.exists(%q): time.sleep(0.01)
    for _ in range(20): print("late thread"); time.sleep(0.01)
    open(%q + ".thread", "w").close()
threading.Thread(target=late).start()
subprocess.Popen(["sh", "-c", "while ! [ -e %[1]s ]; do sleep 0.01; done; for i in 1 2 3 4 5; do echo late child; sleep 0.02; done; touch %[1]s.child"])
print("first")
`, flag, flag)))
	testbed.Require(t, first.Stdout == "first\n", "first = %+v %+v", first, first.Outcome.Error)
	second := agenttest.Run(t, a.Client, agenttest.Code(fmt.Sprintf(`
import os, time
open(%q, "w").close()
print("second")
while not (os.path.exists(%[1]q + ".thread") and os.path.exists(%[1]q + ".child")): time.sleep(0.01)
print("end")
`, flag)))
	testbed.Require(t, second.Stdout == "second\nend\n" && second.Stderr == "", "second = %+v %+v", second, second.Outcome.Error)
}

// Regression: ipykernel flushes sys.stdout before it answers; a stream that could not be flushed blocked every later answer.
func TestKernelPrintsAfterStdoutWasReplaced(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	for _, code := range []string{
		"import sys; sys.stdout = None; sys.stderr = 7",
		"import io, sys\nwith io.StringIO() as s: sys.stdout = s",
		"import io, sys; sys.stdout = io.StringIO(); print('caught')",
		"import sys; del sys.stdout",
		"import os; os.close(1); os.close(2)",
		"import sys; sys.stdout.close(); sys.__stdout__.close()",
	} {
		ran := agenttest.Run(t, a.Client, agenttest.Code(code))
		testbed.Require(t, !ran.Outcome.Restarted, "%s: %+v", code, ran.Outcome)
		spec := agenttest.Code("import sys; print('out'); print('err', file=sys.stderr)")
		spec.Timeout = time.Minute
		ran = agenttest.Run(t, a.Client, spec)
		testbed.Check(t, ran.Stdout == "out\n" && ran.Stderr == "err\n", "after %s: %+v %+v", code, ran, ran.Outcome)
	}
}

// Output in buffers of the code's own is written at the end of the cell.
func TestKernelFlushesOtherStreams(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	for _, code := range []string{
		"import io, sys; sys.stdout = io.TextIOWrapper(sys.stdout.buffer); print('out')",
		"import io, sys; sys.stderr = io.TextIOWrapper(sys.stdout.buffer); print('out', file=sys.stderr)",
		"import sys; print('out', file=sys.__stdout__)",
	} {
		ran := agenttest.Run(t, a.Client, agenttest.Code(code))
		testbed.Check(t, ran.Stdout == "out\n" && ran.Outcome.Error == nil, "%s: stdout %q, %+v", code, ran.Stdout, ran.Outcome.Error)
	}
}

// The socket to the agent is not passed to children, whatever they inherit.
func TestKernelChildrenHaveNoSocket(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	code := "import subprocess\nprint(subprocess.run('ls -l /proc/self/fd | grep -c socket:', shell=True, close_fds=False, capture_output=True, text=True).stdout)"
	ran := agenttest.Run(t, a.Client, agenttest.Code(code))
	testbed.Check(t, ran.Stdout == "0\n\n", "a child has sockets: %q %q", ran.Stdout, ran.Stderr)
}

func TestKernelPoolOutputBelongsToItsExecution(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	agenttest.Run(t, a.Client, agenttest.Code("from concurrent.futures import ThreadPoolExecutor\np = ThreadPoolExecutor(1)\np.submit(print, 'one').result()"))
	ran := agenttest.Run(t, a.Client, agenttest.Code("p.submit(print, 'two').result()"))
	testbed.Require(t, ran.Stdout == "two\n", "ran = %+v", ran)
}

func TestKernelDisplays(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	ran := agenttest.Run(t, a.Client, agenttest.Code(`
import pandas as pd, matplotlib.pyplot as plt
print("a")
display(pd.DataFrame({"n": [1]}))
print("b")
plt.plot([1, 2]); plt.show()
print("c")
from IPython.display import JSON
display(JSON({"k": 1}))
pd.DataFrame({"m": [2]})
`))
	testbed.Require(t, len(ran.Displays) == 4 && ran.Stdout == "a\nb\nc\n", "ran = %+v %+v", ran, ran.Outcome.Error)
	var order []agent.FrameType
	for _, f := range ran.Frames {
		if f.Type != agent.FrameStderr { // matplotlib may report there that it builds its font cache
			order = append(order, f.Type)
		}
	}
	want := fmt.Sprint([]agent.FrameType{1, 3, 1, 3, 1, 3, 3, 6})
	testbed.Diff(t, fmt.Sprintf("order = %v", order), want, fmt.Sprint(order))
	d := ran.Displays[0].Data
	testbed.Check(t, strings.Contains(d["text/html"], "<table") && strings.Contains(d["text/plain"], "n"), "table = %v", d)
	png := ran.Displays[1].Data["image/png"]
	testbed.Check(t, strings.HasPrefix(png, "iVBOR"), "figure = %.40q", png)
	testbed.Diff(t, "json", `{"k": 1}`, ran.Displays[2].Data["application/json"])
	testbed.Check(t, strings.Contains(ran.Displays[3].Data["text/html"], "<table"), "result = %v", ran.Displays[3].Data)
}

func TestKernelEnvironmentIsPerExecution(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	spec := agenttest.Code("import os; print(os.environ['SECRET'], os.environ['FARM'], os.environ['HOME'] != '/root', os.getcwd().endswith('workspace'))")
	spec.Env = map[string]string{"SECRET": "s", "FARM": "other"}
	ran := agenttest.Run(t, a.Client, spec)
	testbed.Require(t, ran.Stdout == "s other True True\n", "first = %+v", ran)
	ran = agenttest.Run(t, a.Client, agenttest.Code("import os; print(os.environ.get('SECRET'), os.environ['FARM'])"))
	testbed.Require(t, ran.Stdout == "None yes\n", "second = %+v", ran)
}

// User code reads in /proc what the kernel was started with.
func TestKernelEnvironmentNamesNoDescriptor(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	ran := agenttest.Run(t, a.Client, agenttest.Code(`
names = [entry.partition("=")[0] for entry in open("/proc/self/environ").read().split("\0")]
print([name for name in names if "FD" in name or name.startswith("SANDFARM")], "SBX_KERNEL" in names)
`))
	testbed.Check(t, ran.Stdout == "[] True\n", "environment: %q %q", ran.Stdout, ran.Stderr)
}

func TestKernelLogIsReadAgainFromItsStartWhileItRuns(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	id := agenttest.NewID()
	testbed.Must(t, a.Start(t.Context(), id, agenttest.Code("import time\nfor i in range(30): print(i); time.sleep(0.02)")))
	frames, err := a.Frames(t.Context(), id, 1)
	testbed.Must(t, err)
	for range 3 {
		_, err = frames.Next()
		testbed.Must(t, err)
	}
	testbed.Must(t, frames.Close())
	testbed.Must(t, a.Client.Close()) // the worker crashes
	again := agenttest.Connect(t, a.Server)
	testbed.Must(t, again.Start(t.Context(), id, agenttest.Code("print('not again')")))
	ran := agenttest.Read(t, again, id)
	var want strings.Builder
	for i := range 30 {
		fmt.Fprintln(&want, i)
	}
	testbed.Require(t, ran.Stdout == want.String(), "stdout = %q", ran.Stdout)
}

func TestKernelRestart(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	testbed.Must(t, a.StartKernel(t.Context(), "default", "python"))
	id := agenttest.NewID()
	testbed.Must(t, a.Start(t.Context(), id, agenttest.Code("print('begun')\nimport time; time.sleep(999)")))
	frames, err := a.Frames(t.Context(), id, 1)
	testbed.Must(t, err)
	_, err = frames.Next()
	testbed.Must(t, err)
	testbed.Must(t, frames.Close())
	testbed.Must(t, a.RestartKernel(t.Context(), ""))
	ran := agenttest.Read(t, a.Client, id)
	if !ran.Outcome.Restarted || ran.Outcome.Error == nil || ran.Outcome.Error.Name != farm.ErrorKernelDied || ran.Outcome.TimedOut {
		t.Fatalf("outcome = %+v", ran.Outcome)
	}
	next := agenttest.Run(t, a.Client, agenttest.Code("print(1)"))
	testbed.Require(t, next.Stdout == "1\n", "next = %+v", next)
	info, err := a.Info(t.Context())
	testbed.Must(t, err)
	testbed.Require(t, len(info.Kernels) == 1 && info.Kernels[0].Language == "python" && !info.Kernels[0].Busy, "info = %+v", info)
}

func TestKernelOutputWaitsForItsReader(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	id := agenttest.NewID()
	progress := a.Workspace + "/progress"
	testbed.Must(t, a.Start(t.Context(), id, agenttest.Code(fmt.Sprintf("for i in range(100):\n  print('x' * (1 << 20))\n  open(%q, 'w').write(str(i))", progress))))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var kept uint64
	for still := 0; still < 20; { // the log is full once it has stopped growing
		list, err := a.Executions(ctx)
		testbed.Must(t, err)
		if still++; list[0].LastSeq != kept || kept == 0 {
			kept, still = list[0].LastSeq, 0
		}
		tick(ctx, t)
	}
	done, _ := os.ReadFile(progress)
	testbed.Require(t, len(done) <= 2 && kept <= 400, "the code kept running without a reader: %s MiB, %d frames", done, kept)
	ran := agenttest.Read(t, a.Client, id)
	testbed.Require(t, len(ran.Stdout) == 100*(1<<20+1), "got %d bytes", len(ran.Stdout))
}

func tick(ctx context.Context, t *testing.T) {
	t.Helper()
	select {
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	case <-time.After(20 * time.Millisecond):
	}
}

func BenchmarkKernel(b *testing.B) {
	a := agenttest.Start(b, agenttest.KernelPath(b), nil)
	for name, c := range map[string]struct {
		code  string
		bytes int
	}{
		"print":          {"print(1)", 2},
		"100MB":          {"print('x' * 100_000_000)", 100_000_001},
		"200000Lines":    {"for i in range(200_000): print(i)", 1_288_890},
		"10MiBOfComment": {"#" + strings.Repeat("x", 10<<20), 0},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				ran := agenttest.Run(b, a.Client, agenttest.Code(c.code))
				testbed.Require(b, len(ran.Stdout) == c.bytes && ran.Outcome.ExitCode == 0, "got %d bytes, %+v", len(ran.Stdout), ran.Outcome)
			}
		})
	}
}

// Code that prints without end is stopped at its limit, and the kernel lives; without that it runs on, and its head and tail are kept.
func TestKernelOutputLimit(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	spec := agenttest.Code("x = 1\nwhile True: print('line', x); x += 1")
	spec.MaxOutput, spec.StopAtMaxOutput = 1<<20, true
	ran := agenttest.Run(t, a.Client, spec)
	if !ran.Outcome.StoppedAtMaxOutput || ran.Outcome.ExitCode != 137 || ran.Outcome.Restarted || len(ran.Stdout) > 1<<20 || len(ran.Dropped) != 1 {
		t.Fatalf("outcome %+v, %d bytes, dropped %+v", ran.Outcome, len(ran.Stdout), ran.Dropped)
	}
	spec = agenttest.Code("import sys\nfor i in range(100_000): print('line', x + i); print('e', file=sys.stderr)\nprint('end')")
	spec.MaxOutput = 100_000
	ran = agenttest.Run(t, a.Client, spec)
	if ran.Outcome.ExitCode != 0 || ran.Outcome.Error != nil || !strings.HasPrefix(ran.Stdout, "line ") || !strings.HasSuffix(ran.Stdout, "\nend\n") {
		t.Fatalf("outcome %+v, stdout ends with %q", ran.Outcome, ran.Stdout[max(0, len(ran.Stdout)-50):])
	}
	if len(ran.Dropped) != 1 || ran.Dropped[0].Stdout == 0 || ran.Dropped[0].Stderr == 0 || len(ran.Stdout) > 100_000 || len(ran.Stderr) > 100_000 {
		t.Errorf("dropped %+v, %d and %d bytes", ran.Dropped, len(ran.Stdout), len(ran.Stderr))
	}
}

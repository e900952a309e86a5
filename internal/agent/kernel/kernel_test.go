//go:build integration

package kernel_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestKernelPrintsAndKeepsItsState(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	first := agenttest.Run(t, a.Client, agenttest.Code("x = 41\nprint('hé')\nimport sys; print('oops', file=sys.stderr)"))
	if first.Stdout != "hé\n" || first.Stderr != "oops\n" || first.Outcome.Error != nil || first.Outcome.ExecutionCount != 1 {
		t.Fatalf("first = %+v", first)
	}
	second := agenttest.Run(t, a.Client, agenttest.Code("x + 1"))
	if len(second.Displays) != 1 || second.Displays[0].Data["text/plain"] != "42" || second.Outcome.ExecutionCount != 2 {
		t.Fatalf("second = %+v", second)
	}
	spec := agenttest.Code("print('x' in globals())")
	spec.Context = "other"
	if other := agenttest.Run(t, a.Client, spec); other.Stdout != "False\n" {
		t.Fatalf("another context sees the variable: %+v", other)
	}
}

func TestKernelEnds(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	for name, c := range map[string]struct {
		code      string
		exit      int
		err       string
		restarted bool
	}{
		"exception":      {"1/0", 1, "ZeroDivisionError", false},
		"syntax error":   {"def f(:", 1, "SyntaxError", false},
		"huge exception": {"raise ValueError('x' * (80 << 20))", 1, "ValueError", false},
		"exit 3":         {"import sys; sys.exit(3)", 3, "", false},
		"exit none":      {"import sys; sys.exit()", 0, "", false},
		"exit text":      {"import sys; sys.exit('bad')", 1, "", false},
		"exit()":         {"exit()", 0, "", false},
		"quit(5)":        {"quit(5)", 5, "", false},
		"input":          {"input()", 1, "StdinNotImplementedError", false},
		"getpass":        {"import getpass; getpass.getpass()", 1, "StdinNotImplementedError", false},
		"os._exit":       {"import os; os._exit(3)", 3, farm.ErrorKernelDied, true},
		"kill":           {"import os; os.kill(os.getpid(), 9)", 137, farm.ErrorKernelDied, true},
		"await and exit": {"import asyncio, sys\nawait asyncio.sleep(0.01)\nsys.exit(4)", 4, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			spec := agenttest.Code("print('before')\n" + c.code)
			if c.err == "SyntaxError" {
				spec.Code = c.code
			}
			ran := agenttest.Run(t, a.Client, spec)
			got := ""
			if ran.Outcome.Error != nil {
				got = ran.Outcome.Error.Name
				if text := strings.Join(ran.Outcome.Error.Traceback, "\n"); strings.Contains(text, "\x1b") {
					t.Errorf("the traceback has colours: %q", text)
				}
			}
			if ran.Outcome.ExitCode != c.exit || got != c.err || ran.Outcome.Restarted != c.restarted {
				t.Errorf("outcome = %+v, error %+v; want exit %d, error %q, restarted %v", ran.Outcome, ran.Outcome.Error, c.exit, c.err, c.restarted)
			}
			if c.err != "SyntaxError" && ran.Stdout != "before\n" {
				t.Errorf("stdout = %q", ran.Stdout)
			}
			if name == "exit text" && ran.Stderr != "bad\n" || name == "exit 3" && ran.Stderr != "" {
				t.Errorf("stderr = %q", ran.Stderr)
			}
			if next := agenttest.Run(t, a.Client, agenttest.Code("print('alive')")); next.Stdout != "alive\n" || next.Outcome.Restarted {
				t.Errorf("next = %+v", next)
			}
		})
	}
}

func TestKernelStops(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code   string
		killed bool
	}{
		"busy loop": {"print('begun')\nwhile True: pass", false},
		"sleep":     {"print('begun')\nimport time; time.sleep(999)", false},
		"catches":   {"print('begun')\nimport time\nwhile True:\n  try:\n    time.sleep(9)\n  except KeyboardInterrupt:\n    print('no')", true},
		"ignores":   {"print('begun')\nimport signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", true},
		"child":     {"print('begun')\nimport subprocess; subprocess.run(['setsid', 'sleep', '998'])", false},
		"printing":  {"print('begun')\nwhile True: print('y' * 1000)", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := agenttest.StartWithKernel(t)
			agenttest.Run(t, a.Client, agenttest.Code("x = 1"))
			spec := agenttest.Code(c.code)
			spec.Timeout, spec.Grace = 2*time.Second, time.Minute
			if c.killed {
				spec.Grace = 300 * time.Millisecond
			}
			ran := agenttest.Run(t, a.Client, spec)
			if !ran.Outcome.TimedOut || ran.Outcome.Restarted != c.killed || !strings.HasPrefix(ran.Stdout, "begun\n") {
				t.Errorf("outcome = %+v %+v, stdout %.40q", ran.Outcome, ran.Outcome.Error, ran.Stdout)
			}
			if next := agenttest.Run(t, a.Client, agenttest.Code("print('x' in globals())")); (next.Stdout == "True\n") == c.killed {
				t.Errorf("next = %+v", next)
			}
		})
	}
}

func TestKernelStopByRequest(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	for reason, canceled := range map[agent.StopReason]bool{agent.StopInterrupt: false, agent.StopCancel: true} {
		id, queued := agenttest.NewID(), agenttest.NewID()
		agenttest.Must(t, a.Start(t.Context(), id, agenttest.Code("print('begun')\nimport time; time.sleep(999)")))
		frames, err := a.Frames(t.Context(), id, 1)
		agenttest.Must(t, err)
		if f, err := frames.Next(); err != nil || string(f.Payload) != "begun\n" {
			t.Fatalf("frame = %q, %v", f.Payload, err)
		}
		agenttest.Must(t, frames.Close())
		agenttest.Must(t, a.Start(t.Context(), queued, agenttest.Code("print('never')")))
		agenttest.Must(t, a.Stop(t.Context(), queued, reason))
		if ran := agenttest.Read(t, a.Client, queued); ran.Stdout != "" || ran.Outcome.Canceled != canceled {
			t.Errorf("queued = %+v", ran)
		}
		agenttest.Must(t, a.Stop(t.Context(), id, reason))
		ran := agenttest.Read(t, a.Client, id)
		if ran.Outcome.Canceled != canceled || ran.Outcome.Error == nil || ran.Outcome.Error.Name != "KeyboardInterrupt" {
			t.Errorf("%s: outcome = %+v %+v", reason, ran.Outcome, ran.Outcome.Error)
		}
	}
}

// The kernels of a sandbox come and go; which executions ran in it does not change.
func TestRestartOfAKernelForgetsNoExecution(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	forgotten, kept := agenttest.NewID(), agenttest.NewID()
	code := agenttest.Code("open('count', 'a').write('x')\nprint('ran')")
	for _, id := range []string{forgotten, kept} {
		agenttest.Must(t, a.Start(t.Context(), id, code))
		agenttest.Read(t, a.Client, id)
	}
	agenttest.Must(t, a.Forget(t.Context(), forgotten))
	agenttest.Must(t, a.RestartKernel(t.Context(), ""))
	for _, id := range []string{forgotten, kept} {
		agenttest.Must(t, a.Start(t.Context(), id, code))
	}
	if again := agenttest.Read(t, a.Client, kept); again.Stdout != "ran\n" {
		t.Errorf("kept = %+v", again)
	}
	if known, err := a.Execution(t.Context(), forgotten); err != nil || known == nil || !known.Done {
		t.Errorf("forgotten = %+v, %v", known, err)
	}
	if ran := agenttest.Run(t, a.Client, agenttest.Code("print(open('count').read())")); ran.Stdout != "xx\n" {
		t.Errorf("they ran %q", ran.Stdout)
	}
}

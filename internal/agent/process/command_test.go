package process_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/agent/server"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestCommandsRunInOrderUntilOneFails(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	for name, c := range map[string]struct {
		commands []string
		goOn     bool
		stdout   string
		stderr   string
		exits    []int
	}{
		"all":       {[]string{"echo a", "echo b >&2"}, false, "a\n", "b\n", []int{0, 0}},
		"stops":     {[]string{"echo a", "exit 3", "echo c"}, false, "a\n", "", []int{0, 3}},
		"continues": {[]string{"exit 3", "echo c"}, true, "c\n", "", []int{3, 0}},
		"signal":    {[]string{"kill -KILL $$"}, false, "", "", []int{137}},
		"stdin":     {[]string{"cat; echo end"}, false, "end\n", "", []int{0}},
		"quotes":    {[]string{`printf '%s|' "a b" 'c"d'`}, false, `a b|c"d|`, "", []int{0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := agenttest.Commands(c.commands...)
			spec.ContinueOnError = c.goOn
			ran := agenttest.Run(t, a.Client, spec)
			var exits []int
			for i, m := range ran.Commands {
				testbed.Diff(t, "index of a command", i, m.Index)
				exits = append(exits, m.ExitCode)
			}
			testbed.Diff(t, "exits", c.exits, exits)
			if ran.Stdout != c.stdout || ran.Stderr != c.stderr {
				t.Errorf("stdout %q, stderr %q; want %q, %q", ran.Stdout, ran.Stderr, c.stdout, c.stderr)
			}
		})
	}
}

func TestCommandDirectoryAndEnvironment(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	testbed.Must(t, a.Mkdir(t.Context(), "deep/er"))
	spec := agenttest.Commands("pwd; echo $FARM $OWN $LANG; test $HOME != /root && echo home")
	spec.Cwd, spec.Env = "deep/er", map[string]string{"OWN": "mine"}
	ran := agenttest.Run(t, a.Client, spec)
	testbed.Diff(t, "stdout", filepath.Join(a.Workspace, "deep/er")+"\nyes mine C.UTF-8\nhome\n", ran.Stdout)
	spec.Cwd = "missing"
	ran = agenttest.Run(t, a.Client, spec)
	if ran.Outcome.ExitCode != 1 || !strings.Contains(ran.Stderr, "no such directory") || len(ran.Commands) != 1 {
		t.Errorf("missing directory: %+v", ran)
	}
}

func TestCommandDoesNotWaitForBackgroundProcesses(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	ran := agenttest.Run(t, a.Client, agenttest.Commands(
		"(while ! [ -e go ]; do sleep 0.02; done; yes | head -c 1000000; echo done >finished) & echo left"))
	testbed.Require(t, ran.Stdout == "left\n", "ran = %+v", ran)
	next := agenttest.Run(t, a.Client, agenttest.Commands("touch go; while ! [ -e finished ]; do sleep 0.02; done; echo next"))
	testbed.Require(t, next.Stdout == "next\n", "next = %+v", next)
}

func TestCommandTimeoutKillsAllItsProcesses(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	for name, command := range map[string]string{
		"foreground": "echo begun; sleep 901",
		"session":    "setsid sh -c 'echo begun; sleep 902' & sleep 903",
		"stubborn":   "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo begun; while :; do sleep 0.1; done' & while :; do sleep 0.1; done",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			untilBegun(t, func(timeout time.Duration) (begun bool) {
				id := agenttest.NewID()
				spec := agenttest.Commands(command, "echo never")
				spec.Timeout, spec.Grace = timeout, 200*time.Millisecond
				testbed.Must(t, a.Start(t.Context(), id, spec))
				ran := agenttest.Read(t, a.Client, id)
				testbed.Check(t, ran.Outcome.TimedOut && ran.Outcome.ExitCode >= 128 && !strings.Contains(ran.Stdout, "never"), "ran = %+v", ran)
				left := agenttest.Processes(t, "SBX_EXEC="+id)
				testbed.Check(t, len(left) == 0, "processes are left: %v", left)
				return ran.Stdout == "begun\n"
			})
		})
	}
}

// untilBegun calls try with longer and longer timeouts, until what it runs begins within one: a busy machine needs more time.
func untilBegun(t *testing.T, try func(timeout time.Duration) (begun bool)) {
	t.Helper()
	for timeout := 200 * time.Millisecond; !try(timeout); timeout *= 2 {
		testbed.Require(t, timeout <= time.Minute, "it does not begin within %s", timeout)
	}
}

func TestStartRefuses(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	for name, spec := range map[string]agent.Spec{
		"no command":       {Kind: farm.KindCommand},
		"kind":             {Kind: farm.KindCreate},
		"unknown language": {Kind: farm.KindExecute, Language: "cobol", Code: "x"},
		"context":          {Kind: farm.KindExecute, Context: "*", Code: "x"},
		"no install":       {Kind: farm.KindInstall},
		"manager":          {Kind: farm.KindInstall, Install: &agent.Install{Manager: "apt", Packages: []string{"x"}}},
		"no package":       {Kind: farm.KindInstall, Install: &agent.Install{Manager: farm.ManagerPip}},
		"many packages":    {Kind: farm.KindInstall, Install: &agent.Install{Manager: farm.ManagerPip, Packages: make([]string, 1001)}},
	} {
		err := a.Start(t.Context(), agenttest.NewID(), spec)
		testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "%s: %v", name, err)
	}
}

func TestFreshProcesses(t *testing.T) {
	t.Parallel()
	a := agenttest.Start(t, plainPython(t), nil)
	testbed.Must(t, os.WriteFile(filepath.Join(a.Workspace, "mine.py"), []byte("y = 7"), 0o600))
	ran := agenttest.Run(t, a.Client, agenttest.Code("import mine, sys\nprint(mine.y)\nprint('e', file=sys.stderr)"))
	testbed.Check(t, ran.Stdout == "7\n" && ran.Stderr == "e\n" && ran.Outcome.FreshProcess, "ran = %+v", ran)
	ran = agenttest.Run(t, a.Client, agenttest.Code("def f(): raise ValueError('no: way')\nf()"))
	want := &farm.CodeError{Name: "ValueError", Value: "no: way"}
	diff := cmp.Diff(want, ran.Outcome.Error, cmpopts.IgnoreFields(farm.CodeError{}, "Traceback"))
	testbed.Check(t, diff == "" && ran.Outcome.ExitCode == 1, "outcome = %+v (-want +got):\n%s", ran.Outcome, diff)
	file := filepath.Join(a.Workspace, "plot.py")
	named := agenttest.Code("import sys\nprint(__file__ == sys.argv[0], sys.argv)\n1/0")
	named.Filename = "plot.py"
	ran = agenttest.Run(t, a.Client, named)
	if ran.Stdout != "True ['"+file+"']\n" || ran.Outcome.Error == nil || !strings.Contains(strings.Join(ran.Outcome.Error.Traceback, "\n"), `File "`+file+`", line 3`) {
		t.Errorf("code from a file = %+v, error %+v", ran, ran.Outcome.Error)
	}
	spec := agenttest.Code("echo $0 >/dev/null; echo shell; exit 4")
	spec.Language = "bash"
	ran = agenttest.Run(t, a.Client, spec)
	testbed.Check(t, ran.Stdout == "shell\n" && ran.Outcome.ExitCode == 4 && ran.Outcome.Error == nil, "bash = %+v", ran)
}

// As with a kernel, stderr has what the code writes, and the error has the traceback, without what runs the code.
func TestErrorsOfFreshProcesses(t *testing.T) {
	t.Parallel()
	a := agenttest.Start(t, plainPython(t), nil)
	const hook = "import sys\ndef hook(kind, value, tb):\n    print('hook', value, tb.tb_lineno, file=sys.stderr)\nsys.excepthook = hook\n"
	for name, c := range map[string]struct {
		code, stdout, stderr, error string // error: its name and value
		exit, frames                int
	}{
		"raises":         {"import sys\nprint('a')\nprint('b', file=sys.stderr)\ndef f(): 1/0\nf()", "a\n", "b\n", "ZeroDivisionError: division by zero", 1, 2},
		"lines":          {"raise ValueError('a\\nb\\0c')", "", "", "ValueError: a\nb\x00c", 1, 1},
		"class":          {"class E(Exception): pass\nraise E", "", "", "E: ", 1, 1},
		"no text":        {"class E(Exception):\n    def __str__(self): 1/0\nraise E", "", "", "E: <exception str() failed>", 1, 1},
		"syntax":         {"print('a')\na b", "", "", "SyntaxError: invalid syntax", 1, 1},
		"exit":           {"import sys\nprint('a')\nsys.exit(3)", "a\n", "", "", 3, 0},
		"exit with text": {"import sys; sys.exit('why')", "", "why\n", "", 1, 0},
		"interrupt":      {"raise KeyboardInterrupt", "", "", "KeyboardInterrupt: ", 130, 1},
		"hook":           {hook + "1/0", "", "hook division by zero 5\n", "ZeroDivisionError: division by zero", 1, 1},
		"printed":        {"import sys, traceback\ntry: 1/0\nexcept Exception as e: print('Traceback (most recent call last):\\nE: x', file=sys.stderr)\nsys.exit(1)", "", "Traceback (most recent call last):\nE: x\n", "", 1, 0},
		"at exit":        {"import atexit; atexit.register(print, 'last')\n1/0", "last\n", "", "ZeroDivisionError: division by zero", 1, 1},
		"in a fork":      {"import os, sys\nsys.excepthook = lambda kind, value, tb: print('fork', value, file=sys.stderr)\nif os.fork() == 0: 1/0\nos.wait()", "", "fork division by zero\n", "", 0, 0},
		"no place":       {"import glob, os, sys\nos.remove([a for a in open('/proc/self/cmdline').read().split('\\0') if a.endswith('.error')][0])\nsys.__excepthook__ = sys.excepthook = lambda *a: print('shown', file=sys.stderr)\n1/0", "", "shown\n", "", 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ran := agenttest.Run(t, a.Client, agenttest.Code(c.code))
			got, trace := "", ""
			if e := ran.Outcome.Error; e != nil {
				got, trace = e.Name+": "+e.Value, strings.Join(e.Traceback, "\n")
			}
			if ran.Stdout != c.stdout || ran.Stderr != c.stderr || got != c.error || ran.Outcome.ExitCode != c.exit || strings.Count(trace, `  File "`) != c.frames || strings.Contains(trace, "<string>") {
				t.Errorf("stdout %q, stderr %q, error %q, exit code %d, traceback:\n%s", ran.Stdout, ran.Stderr, got, ran.Outcome.ExitCode, trace)
			}
		})
	}
}

// plainPython returns a PATH whose Python has no kernel: a script that hides this machine's packages.
func plainPython(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "python3"), []byte("#!/bin/sh\nexec /usr/bin/env -u PYTHONHOME PATH=\"${PATH#*:}\" python3 -S \"$@\"\n"), 0o755)) //nolint:gosec // it is to be run
	return dir + ":" + os.Getenv("PATH")
}

func TestReportsChangedFiles(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	for _, name := range []string{"same", "changed", "gone", "sub/touched"} {
		_, err := a.Write(t.Context(), name, strings.NewReader("old"))
		testbed.Must(t, err)
	}
	spec := agenttest.Commands("echo new >new; echo newer >changed; rm gone; mkdir d; echo x >d/x; ln -s new link; mkfifo pipe; touch -d 2001-01-01 sub/touched; echo big-one >d/big; mv same moved")
	spec.MaxFileBytes = 6
	ran := agenttest.Run(t, a.Client, spec)
	want := []agent.ChangedFile{{Path: "changed", Size: 6}, {Path: "d/x", Size: 2}, {Path: "moved", Size: 3}, {Path: "new", Size: 4}, {Path: "sub/touched", Size: 3}}
	diff := cmp.Diff(want, ran.Outcome.Files)
	testbed.Check(t, diff == "" && ran.Outcome.Skipped == 1, "skipped %d; files (-want +got):\n%s", ran.Outcome.Skipped, diff)
	_, err := a.Write(t.Context(), "uploaded", strings.NewReader("between"))
	testbed.Must(t, err)
	ran = agenttest.Run(t, a.Client, agenttest.Commands("true"))
	testbed.Check(t, len(ran.Outcome.Files) == 0, "files of a command that did nothing: %v", ran.Outcome.Files)
}

// At Limits.MaxArtifacts and limits.max_artifact_bytes, one below and one beyond: what is beyond stays in the workspace, and is counted.
func TestLimitsOfChangedFiles(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	const limit = 3
	for files, skipped := range map[int]int{limit - 1: 0, limit: 0, limit + 1: 1} {
		spec := agenttest.Commands(fmt.Sprintf("for i in $(seq %d); do echo x >of%d-$i; done", files, files))
		spec.MaxFiles = limit
		ran := agenttest.Run(t, a.Client, spec)
		testbed.Check(t, len(ran.Outcome.Files) == files-skipped && ran.Outcome.Skipped == skipped, "%d of %d files: %+v", files, limit, ran.Outcome)
	}
	for size, skipped := range map[int]int{limit - 1: 0, limit: 0, limit + 1: 1} {
		spec := agenttest.Commands(fmt.Sprintf("head -c %d /dev/zero >size%d", size, size))
		spec.MaxFileBytes = limit
		if ran := agenttest.Run(t, a.Client, spec); len(ran.Outcome.Files) != 1-skipped || ran.Outcome.Skipped != skipped {
			t.Errorf("a file of %d of %d bytes: %+v", size, limit, ran.Outcome)
		}
	}
}

func TestFullLogBlocksTheProducer(t *testing.T) {
	t.Parallel()
	a := agenttest.Start(t, "/usr/bin:/bin", func(c *server.Config) { c.LogBytes = 1 << 20 })
	id := agenttest.NewID()
	testbed.Must(t, a.Start(t.Context(), id, agenttest.Commands("yes | head -c 20000000; echo end >&2")))
	frames, err := a.Frames(t.Context(), id, 1)
	testbed.Must(t, err)
	var got int
	var seq uint64
	for got < 1<<20-256<<10 {
		f, err := frames.Next()
		testbed.Must(t, err)
		got, seq = got+len(f.Payload), f.Seq
	}
	list, err := a.Executions(t.Context())
	testbed.Must(t, err)
	testbed.Require(t, !list[0].Done, "it ended without acknowledgements")
	testbed.Must(t, frames.Close())
	testbed.Must(t, a.Ack(t.Context(), id, seq))
	if _, err := a.Frames(t.Context(), id, seq); farm.CodeOf(err) != farm.CodeConflict {
		t.Fatalf("dropped frames: %v", err)
	}
	frames, err = a.Frames(t.Context(), id, seq+1)
	testbed.Must(t, err)
	defer func() { _ = frames.Close() }()
	for {
		f, err := frames.Next()
		testbed.Must(t, err)
		if f.Type == agent.FrameStdout {
			got += len(f.Payload)
		}
		if f.Type == agent.FrameFinal {
			break
		}
		testbed.Must(t, a.Ack(t.Context(), id, f.Seq))
	}
	testbed.Require(t, got >= 20_000_000 && got <= 20_000_000+100, "got %d bytes", got)
}

func TestStopOfAFullLogEndsIt(t *testing.T) {
	t.Parallel()
	const size = 1 << 16
	a := agenttest.Start(t, "/usr/bin:/bin", func(c *server.Config) { c.LogBytes = size })
	untilBegun(t, func(timeout time.Duration) (full bool) {
		id := agenttest.NewID()
		spec := agenttest.Commands("yes")
		spec.Timeout, spec.Grace = timeout, 200*time.Millisecond
		testbed.Must(t, a.Start(t.Context(), id, spec))
		for done := false; !done; { // nobody reads
			list, err := a.Executions(t.Context())
			testbed.Must(t, err)
			done = list[0].Done
		}
		ran := agenttest.Read(t, a.Client, id)
		testbed.Check(t, ran.Outcome.TimedOut, "outcome = %+v with %d bytes", ran.Outcome, len(ran.Stdout))
		testbed.Must(t, a.Forget(t.Context(), id))
		return len(ran.Stdout) >= size
	})
}

// Output beyond its limit leaves the sandbox as head and tail; the commands run to their end.
func TestCommandsBeyondTheirOutputLimitRunOn(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	spec := agenttest.Commands("echo first; yes | head -c 50000000; echo last; touch ran", "echo next")
	spec.MaxOutput = 1 << 20
	ran := agenttest.Run(t, a.Client, spec)
	if len(ran.Commands) != 2 || ran.Outcome.ExitCode != 0 || ran.Outcome.StoppedAtMaxOutput {
		t.Fatalf("commands %+v, outcome %+v", ran.Commands, ran.Outcome)
	}
	if len(ran.Dropped) != 1 || ran.Dropped[0].Stdout < 49_000_000-1<<20 || ran.Dropped[0].Stderr != 0 || len(ran.Stdout) > 1<<20 {
		t.Errorf("dropped %+v, %d bytes sent", ran.Dropped, len(ran.Stdout))
	}
	if !strings.HasPrefix(ran.Stdout, "first\ny\n") || !strings.HasSuffix(ran.Stdout, "y\nlast\nnext\n") || strings.Count(ran.Stdout, "bytes of stdout were dropped here") != 1 {
		t.Errorf("stdout begins with %.20q and ends with %q", ran.Stdout, ran.Stdout[len(ran.Stdout)-20:])
	}
	_, err := os.Stat(filepath.Join(a.Workspace, "ran"))
	testbed.Must(t, err)
}

func TestCommandIsStoppedAtItsOutputLimit(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	for name, command := range map[string]string{"": "yes", "ignores": "trap '' TERM; while :; do yes | head -c 1000000; done", "in the background": "yes & wait"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := agenttest.Commands(command, "echo next")
			spec.MaxOutput, spec.StopAtMaxOutput, spec.Grace = 1<<20, true, 100*time.Millisecond
			ran := agenttest.Run(t, a.Client, spec)
			if len(ran.Commands) != 1 || ran.Outcome.ExitCode < 128 || !ran.Outcome.StoppedAtMaxOutput || ran.Outcome.TimedOut || ran.Outcome.Canceled {
				t.Errorf("commands %+v, outcome %+v", ran.Commands, ran.Outcome)
			}
			testbed.Check(t, len(ran.Stdout) <= 1<<20 && len(ran.Dropped) == 1, "%d bytes, dropped %+v", len(ran.Stdout), ran.Dropped)
		})
	}
}

// A command whose shell cannot be started is refused, as a program is.
func TestStartOfWhatIsNoProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "bash"), []byte{0}, 0o700)) //nolint:gosec // it must be executable
	reaper := process.NewReaper(false)
	t.Cleanup(reaper.Close)
	c := process.Commands{Reaper: reaper, Workspace: dir, Image: []string{"PATH=" + dir}, Env: []string{"PATH=" + dir}}
	for what, spec := range map[string]farm.ProcessSpec{"The shell": {Command: "pwd"}, `"bash"`: {Argv: []string{"bash"}}} {
		_, err := c.Start(execution.New(farm.NewID(farm.ProcessPrefix), agent.Spec{}, 1<<16, time.Now()), spec, nil)
		testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid && strings.HasPrefix(farm.MessageOf(err), what), "%s: %v", what, err)
	}
}

func TestForgetKillsRunningExecution(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	id := agenttest.NewID()
	testbed.Must(t, a.Start(t.Context(), id, agenttest.Commands("echo $$; sleep 904")))
	frames, err := a.Frames(t.Context(), id, 1)
	testbed.Must(t, err)
	defer func() { _ = frames.Close() }()
	for range 2 {
		_, err = frames.Next()
		testbed.Must(t, err)
	}
	testbed.Must(t, a.Forget(t.Context(), id))
	testbed.Must(t, a.Forget(t.Context(), id))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for len(agenttest.Processes(t, id)) > 0 {
		select {
		case <-ctx.Done():
			t.Fatal("the command still runs")
		case <-time.After(10 * time.Millisecond):
		}
	}
	_, err = a.Frames(t.Context(), id, 1)
	testbed.Require(t, farm.CodeOf(err) == farm.CodeConflict, "frames of a forgotten execution: %v", err)
	_, outcome := lastFrame(t, a.Client, id, 1000)
	testbed.Check(t, outcome.Canceled && outcome.OutputGone, "outcome of a forgotten execution: %+v", outcome)
}

func TestStartIsIdempotent(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	id := agenttest.NewID()
	for range 3 {
		testbed.Must(t, a.Start(t.Context(), id, agenttest.Commands("echo x >>count")))
	}
	agenttest.Read(t, a.Client, id)
	ran := agenttest.Run(t, a.Client, agenttest.Commands("cat count"))
	testbed.Require(t, ran.Stdout == "x\n", "it ran more than once: %q", ran.Stdout)
	list, err := a.Executions(t.Context())
	testbed.Must(t, err)
	testbed.Require(t, len(list) == 1 && list[0].ID == id && list[0].Done && list[0].FirstSeq == 1, "executions = %+v", list)
}

// lastFrame reads the frame that is the answer to a number beyond the end.
func lastFrame(t *testing.T, c *client.Client, id string, from uint64) (uint64, agent.Outcome) {
	t.Helper()
	frames, err := c.Frames(t.Context(), id, from)
	testbed.Must(t, err)
	defer func() { _ = frames.Close() }()
	f, err := frames.Next()
	testbed.Must(t, err)
	var outcome agent.Outcome
	testbed.Must(t, json.Unmarshal(f.Payload, &outcome))
	_, err = frames.Next()
	testbed.Check(t, f.Type == agent.FrameFinal && errors.Is(err, io.EOF), "frame %d of type %d, then %v", f.Seq, f.Type, err)
	return f.Seq, outcome
}

// A job that the farm has ended comes back when Redis loses its newest writes. Its code must not run twice, and how it ended must be known,
// however often it is asked for.
func TestForgottenExecutionNeverRunsAgain(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	id, spec := agenttest.NewID(), agenttest.Commands("echo x >>count; exit 7")
	spec.MaxFiles, spec.MaxFileBytes = 10, 1000
	testbed.Must(t, a.Start(t.Context(), id, spec))
	whole := agenttest.Read(t, a.Client, id)
	last := whole.Frames[len(whole.Frames)-1].Seq
	for range 3 {
		if seq, outcome := lastFrame(t, a.Client, id, last+1); seq != last || outcome.ExitCode != 7 || outcome.OutputGone || len(outcome.Files) != 1 {
			t.Errorf("after the end: frame %d, %+v", seq, outcome)
		}
	}
	testbed.Must(t, a.ForgetAll(t.Context(), id, agenttest.NewID()))
	for from := range uint64(3) {
		testbed.Must(t, a.Start(t.Context(), id, spec))
		seq, outcome := lastFrame(t, a.Client, id, last+from)
		if seq != last || outcome.ExitCode != 7 || !outcome.OutputGone || len(outcome.Files) != 0 || outcome.Skipped != 1 || outcome.RunMS != whole.Outcome.RunMS {
			t.Errorf("after it was forgotten: frame %d, %+v", seq, outcome)
		}
		known, err := a.Execution(t.Context(), id)
		testbed.Must(t, err)
		testbed.Check(t, known != nil && known.Done && known.FirstSeq == last && known.LastSeq == last, "execution = %+v", known)
		testbed.Must(t, a.Stop(t.Context(), id, agent.StopCancel))
		testbed.Must(t, a.Ack(t.Context(), id, last))
		testbed.Must(t, a.Forget(t.Context(), id))
	}
	count, err := os.ReadFile(filepath.Join(a.Workspace, "count"))
	testbed.Check(t, string(count) == "x\n", "it ran %q, %v", count, err)
	known, err := a.Execution(t.Context(), agenttest.NewID())
	testbed.Check(t, known == nil && err == nil, "an unknown execution = %+v, %v", known, err)
}

// A worker that was held up may start an execution after another worker has ended the job.
func TestExecutionForgottenBeforeItsStartNeverStarts(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	id := agenttest.NewID()
	testbed.Must(t, a.Forget(t.Context(), id))
	testbed.Must(t, a.Start(t.Context(), id, agenttest.Commands("echo x >>count")))
	seq, outcome := lastFrame(t, a.Client, id, 1)
	testbed.Check(t, seq == 1 && outcome.Canceled, "frame %d, %+v", seq, outcome)
	ran := agenttest.Run(t, a.Client, agenttest.Commands("ls"))
	testbed.Check(t, ran.Stdout == "", "it ran: %q", ran.Stdout)
}

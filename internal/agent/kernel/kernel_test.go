//go:build integration

package kernel_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
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
	other := agenttest.Run(t, a.Client, spec)
	testbed.Require(t, other.Stdout == "False\n", "another context sees the variable: %+v", other)
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
		"huge display":   {"display({'text/plain': 'x' * (49 << 20)}, raw=True)", 0, "", false},
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
				text := strings.Join(ran.Outcome.Error.Traceback, "\n")
				testbed.Check(t, !strings.Contains(text, "\x1b"), "the traceback has colours: %q", text)
			}
			if ran.Outcome.ExitCode != c.exit || got != c.err || ran.Outcome.Restarted != c.restarted {
				t.Errorf("outcome = %+v, error %+v; want exit %d, error %q, restarted %v", ran.Outcome, ran.Outcome.Error, c.exit, c.err, c.restarted)
			}
			testbed.Check(t, c.err == "SyntaxError" || ran.Stdout == "before\n", "stdout = %q", ran.Stdout)
			if name == "exit text" && ran.Stderr != "bad\n" || name == "exit 3" && ran.Stderr != "" {
				t.Errorf("stderr = %q", ran.Stderr)
			}
			if shown := fmt.Sprint(ran.Displays); (name == "huge display") != strings.Contains(shown, "was left out: at most 50331648 fit") {
				t.Errorf("displayed %.100q", shown)
			}
			next := agenttest.Run(t, a.Client, agenttest.Code("print('alive')"))
			testbed.Check(t, next.Stdout == "alive\n" && !next.Outcome.Restarted, "next = %+v", next)
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
			next := agenttest.Run(t, a.Client, agenttest.Code("print('x' in globals())"))
			testbed.Check(t, (next.Stdout == "True\n") != c.killed, "next = %+v", next)
		})
	}
}

func TestKernelStopByRequest(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	for reason, canceled := range map[agent.StopReason]bool{agent.StopInterrupt: false, agent.StopCancel: true} {
		id, queued := agenttest.NewID(), agenttest.NewID()
		testbed.Must(t, a.Start(t.Context(), id, agenttest.Code("print('begun')\nimport time; time.sleep(999)")))
		frames, err := a.Frames(t.Context(), id, 1)
		testbed.Must(t, err)
		f, err := frames.Next()
		testbed.Require(t, err == nil && string(f.Payload) == "begun\n", "frame = %q, %v", f.Payload, err)
		testbed.Must(t, frames.Close())
		testbed.Must(t, a.Start(t.Context(), queued, agenttest.Code("print('never')")))
		testbed.Must(t, a.Stop(t.Context(), queued, reason))
		if ran := agenttest.Read(t, a.Client, queued); ran.Stdout != "" || ran.Outcome.Canceled != canceled {
			t.Errorf("queued = %+v", ran)
		}
		testbed.Must(t, a.Stop(t.Context(), id, reason))
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
		testbed.Must(t, a.Start(t.Context(), id, code))
		agenttest.Read(t, a.Client, id)
	}
	testbed.Must(t, a.Forget(t.Context(), forgotten))
	testbed.Must(t, a.RestartKernel(t.Context(), ""))
	for _, id := range []string{forgotten, kept} {
		testbed.Must(t, a.Start(t.Context(), id, code))
	}
	again := agenttest.Read(t, a.Client, kept)
	testbed.Check(t, again.Stdout == "ran\n", "kept = %+v", again)
	known, err := a.Execution(t.Context(), forgotten)
	testbed.Check(t, err == nil && known != nil && known.Done, "forgotten = %+v, %v", known, err)
	ran := agenttest.Run(t, a.Client, agenttest.Code("print(open('count').read())"))
	testbed.Check(t, ran.Stdout == "xx\n", "they ran %q", ran.Stdout)
}

// Scripts run unchanged, although the kernel runs its own event loop and has its own arguments.
func TestKernelRunsScripts(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	const main = "import asyncio\nasync def main():\n    await asyncio.sleep(0.01)\n    return 'done'\n"
	for _, test := range []struct{ name, code, stdout, err string }{
		{"AsyncioRun", main + "print(asyncio.run(main()))", "done\n", ""},
		{"Twice", "print(asyncio.run(main()), asyncio.run(main(), debug=False))", "done done\n", ""},
		{"AwaitInACell", "print(await main())", "done\n", ""},
		{"TasksOfTheCell", "t = asyncio.create_task(main())\nprint(asyncio.run(main()))\nprint(await t)", "done\ndone\n", ""},
		{"Raised", "async def bad(): raise KeyError('k')\nasyncio.run(bad())", "", "KeyError"},
		{"AfterAnError", "print(asyncio.run(main()))", "done\n", ""},
		{"InALoopOfItsOwn", "async def nested():\n    c = main()\n    try: asyncio.run(c)\n    except RuntimeError: c.close(); return 'refused'\nprint(asyncio.run(nested()))", "refused\n", ""},
		{"TheTaskGoesOn", "t = asyncio.current_task()\nasyncio.run(main())\nprint(asyncio.current_task() is t)\nawait asyncio.sleep(0)", "True\n", ""},
		{"TheLoopGoesOn", "asyncio.run(main())\nprint(asyncio.get_event_loop_policy().get_event_loop() is asyncio.get_running_loop())", "True\n", ""},
		{"NoCoroutine", "asyncio.run(7)", "", "Error"}, // ValueError or TypeError, by the version
		{"Arguments", "import argparse, sys\nprint(argparse.ArgumentParser(prog='x').parse_args(), sys.argv)", "Namespace() ['']\n", ""},
	} {
		got := agenttest.Run(t, a.Client, agenttest.Code(test.code))
		name := ""
		if got.Outcome.Error != nil {
			name = got.Outcome.Error.Name
		}
		if got.Stdout != test.stdout || (name == "") != (test.err == "") || !strings.Contains(name, test.err) {
			t.Errorf("%s: %q %q %+v", test.name, got.Stdout, got.Stderr, got.Outcome.Error)
		}
	}
}

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
	n := strings.Count(ran.Stdout, "child\n")
	testbed.Require(t, n == 20 && ran.Outcome.Error == nil, "%d of 20 children printed; %+v %+v", n, ran.Outcome, ran.Outcome.Error)
	for i, line := range strings.Fields(strings.ReplaceAll(ran.Stdout, "child\n", "")) {
		testbed.Require(t, line == strconv.Itoa(i), "line %d is %q", i, line)
	}
}

// fingerprint prints the state that code finds at its start.
const fingerprint = `import os
print(sorted(globals()), In[:-1], Out, os.getcwd(), sorted(os.environ), os.listdir('.'), get_ipython().history_manager.input_hist_raw[:-1])`

// Preloaded modules are available at once and leave no other trace: no names, no history, no count.
func TestWarmKernelLooksFresh(t *testing.T) {
	t.Parallel()
	cold, warm := agenttest.StartWithKernel(t), agenttest.StartWithKernel(t)
	for _, a := range []*agenttest.Agent{cold, warm} {
		testbed.Must(t, a.StartKernel(t.Context(), "default", "python"))
	}
	loaded, err := warm.WarmKernel(t.Context(), "default", "numpy", "pandas", "matplotlib.pyplot", "no_such_module_at_all")
	if want := []string{"matplotlib.pyplot", "numpy", "pandas"}; err != nil || !slices.Equal(loaded, want) {
		t.Fatalf("WarmKernel = %v, %v; want %v", loaded, err, want)
	}
	want, got := agenttest.Run(t, cold.Client, agenttest.Code(fingerprint)), agenttest.Run(t, warm.Client, agenttest.Code(fingerprint))
	strip := func(text string, a *agenttest.Agent) string { return strings.ReplaceAll(text, a.Workspace, "W") }
	testbed.Check(t, strip(got.Stdout, warm) == strip(want.Stdout, cold), "a warm kernel prints\n%s\na cold one\n%s", got.Stdout, want.Stdout)
	testbed.Check(t, got.Stderr == "" && got.Outcome.ExecutionCount == 1 && got.Outcome.Error == nil, "first execution = %+v", got)
	for code, stdout := range map[string]string{
		"import sys\nprint(*(n in sys.modules for n in ('numpy', 'pandas', 'matplotlib.pyplot')))": "True True True\n",
		"try:\n    np\nexcept NameError:\n    print('no np')":                                      "no np\n",
	} {
		ran := agenttest.Run(t, warm.Client, agenttest.Code(code))
		testbed.Check(t, ran.Stdout == stdout, "%s gives %+v", code, ran)
	}
	plot := agenttest.Run(t, warm.Client, agenttest.Code("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"))
	if len(plot.Displays) != 1 || plot.Displays[0].Data["image/png"] == "" {
		t.Errorf("a plot gives %d displays, %+v", len(plot.Displays), plot.Outcome)
	}
}

func TestWarmRefusesInvalidModuleNames(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	loaded, err := a.WarmKernel(t.Context(), "default", "numpy")
	testbed.Check(t, err == nil && len(loaded) == 0, "without a kernel: %v, %v", loaded, err)
	for _, name := range []string{"", "os;x", "a b", "a..b", "../x"} {
		_, err := a.WarmKernel(t.Context(), "default", name)
		testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "module %q: %v", name, err)
	}
	many := slices.Repeat([]string{"numpy"}, 33)
	_, err = a.WarmKernel(t.Context(), "default", many...)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "33 modules: %v", err)
	_, err = a.WarmKernel(t.Context(), "default", many[:32]...)
	testbed.Check(t, err == nil, "32 modules: %v", err)
}

func TestInterruptReachesOnlyRunningExecutions(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	id, next := agenttest.NewID(), agenttest.NewID()
	testbed.Must(t, a.Start(t.Context(), id, agenttest.Code("print('begun')\nimport time; time.sleep(999)")))
	frames, err := a.Frames(t.Context(), id, 1)
	testbed.Must(t, err)
	_, err = frames.Next()
	testbed.Must(t, err)
	testbed.Must(t, frames.Close())
	testbed.Must(t, a.Start(t.Context(), next, agenttest.Code("print('next')")))
	testbed.Must(t, a.Interrupt(t.Context(), "another"))
	testbed.Must(t, a.Interrupt(t.Context(), ""))
	if ran := agenttest.Read(t, a.Client, id); ran.Outcome.Error == nil || ran.Outcome.Error.Name != "KeyboardInterrupt" || ran.Outcome.Restarted {
		t.Errorf("interrupted = %+v", ran.Outcome)
	}
	ran := agenttest.Read(t, a.Client, next)
	testbed.Check(t, ran.Stdout == "next\n", "next = %+v", ran)
}

func TestContextsHaveDirectories(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	live := a.Live()
	where := func(name, language string) string {
		t.Helper()
		code := map[string]string{"python": "import os; print(os.getcwd())", "bash": "pwd"}[language]
		spec := agenttest.Code(code)
		spec.Context, spec.Language = name, language
		return agenttest.Run(t, a.Client, spec).Stdout
	}
	home := strings.TrimSpace(where("first", "python"))
	agenttest.Run(t, a.Client, agenttest.Code("import os; os.makedirs('sub/deep', exist_ok=True); open('file', 'w')"))
	for _, c := range []struct{ name, language, cwd, want string }{
		{"whole", "python", home + "/sub", home + "/sub"},
		{"relative", "python", "sub/deep", home + "/sub/deep"},
		{"none", "python", "", home},
		{"shell", "bash", "sub", home + "/sub"},
	} {
		made, err := live.CreateContext(t.Context(), farm.CodeContext{Name: c.name, Language: c.language, Cwd: c.cwd})
		want := (farm.CodeContext{Name: c.name, Language: c.language, Cwd: c.want})
		testbed.Check(t, err == nil && made == want, "CreateContext = %+v, %v; want %+v", made, err, want)
		got := where(c.name, c.language)
		testbed.Check(t, got == c.want+"\n", "%s: code runs in %q, want %s", c.name, got, c.want)
	}
	testbed.Must(t, a.RestartKernel(t.Context(), "whole"))
	testbed.Diff(t, "after a restart code runs in", home+"/sub\n", where("whole", "python"))
	_, err := live.CreateContext(t.Context(), farm.CodeContext{Name: "whole", Cwd: "sub"})
	testbed.Check(t, err == nil, "the same again: %v", err)
	for name, c := range map[string]struct {
		context farm.CodeContext
		code    farm.Code
	}{
		"OtherDirectory": {farm.CodeContext{Name: "whole"}, farm.CodeConflict},
		"Missing":        {farm.CodeContext{Name: "x", Cwd: "nowhere"}, farm.CodeInvalid},
		"File":           {farm.CodeContext{Name: "x", Cwd: "file"}, farm.CodeInvalid},
		"Language":       {farm.CodeContext{Name: "x", Language: "cobol"}, farm.CodeInvalid},
		"Name":           {farm.CodeContext{Name: "*"}, farm.CodeInvalid},
	} {
		_, err := live.CreateContext(t.Context(), c.context)
		testbed.Check(t, farm.CodeOf(err) == c.code, "%s: %v, want code %s", name, err, c.code)
	}
	var names []string
	list, err := live.Contexts(t.Context())
	testbed.Must(t, err)
	for _, c := range list {
		names = append(names, c.Name)
	}
	testbed.Diff(t, "contexts by age", []string{"first", "default", "whole", "relative", "none", "shell"}, names)
}

// One context less than there may be, as many, and one more, made by code and by a call. One more takes the place of the one that was idle for
// longest, whose next code is told that its variables are lost; the default context and those in which code runs stay.
func TestLimitOfContexts(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	testbed.Diff(t, "GET /v1/limits: the agent has", agent.MaxContexts, farm.DefaultLimits().MaxContexts)
	live := a.Live()
	start := func(context, language string, code map[string]string) (string, error) {
		spec, id := agenttest.Code(code[language]), agenttest.NewID()
		spec.Context, spec.Language = context, language
		return id, a.Start(t.Context(), id, spec)
	}
	short := map[string]string{"python": "x = 1", "bash": "true"}
	long := map[string]string{"python": "print('begun'); import time; time.sleep(999)", "bash": "echo begun; sleep 999"}
	run := func(context, language string) agenttest.Ran {
		id, err := start(context, language, short)
		testbed.Must(t, err)
		return agenttest.Read(t, a.Client, id)
	}
	name := func(n int) string { return fmt.Sprintf("c%d", n) }
	has := func(when string, limit int, want ...string) {
		t.Helper()
		list, err := live.Contexts(t.Context())
		testbed.Must(t, err)
		var names []string
		for _, c := range list {
			names = append(names, c.Name)
		}
		if len(list) != limit || !slices.Equal(names[:len(want)], want) {
			t.Errorf("%s: contexts %v, want %d beginning with %v", when, names, limit, want)
		}
	}
	run("default", "python")
	run("first", "python")
	for n := 2; n < agent.MaxContexts-1; n++ {
		run(name(n), "bash")
	}
	has("one less", agent.MaxContexts-1, "default", "first", "c2")
	_, err := live.CreateContext(t.Context(), farm.CodeContext{Name: "full", Language: "bash"})
	testbed.Must(t, err)
	has("as many", agent.MaxContexts, "default", "first", "c2")
	run("c2", "bash")
	run("by-code", "bash")
	has("one more by code", agent.MaxContexts, "default", "c2", "c3")
	_, err = live.CreateContext(t.Context(), farm.CodeContext{Name: "by-call", Language: "bash"})
	testbed.Must(t, err)
	has("one more by a call", agent.MaxContexts, "default", "c2", "c4")
	got := run("first", "python")
	testbed.Check(t, got.Outcome.Restarted, "the evicted context: %+v, want the word that its variables are lost", got.Outcome)
	got = run("first", "python")
	testbed.Check(t, !got.Outcome.Restarted, "the evicted context was told twice")

	list, err := live.Contexts(t.Context())
	testbed.Must(t, err)
	for _, c := range list[1:] { // all but the default context
		id, err := start(c.Name, c.Language, long)
		testbed.Must(t, err)
		frames, err := a.Frames(t.Context(), id, 1)
		testbed.Must(t, err)
		_, err = frames.Next()
		testbed.Must(t, err)
		testbed.Must(t, frames.Close())
	}
	_, byCode := start("more", "bash", short)
	_, byCall := live.CreateContext(t.Context(), farm.CodeContext{Name: "more", Language: "bash"})
	for by, err := range map[string]error{"a call": byCall, "code": byCode} {
		if farm.CodeOf(err) != farm.CodeExhausted || !strings.Contains(farm.MessageOf(err), fmt.Sprint(agent.MaxContexts)) {
			t.Errorf("one more by %s while code runs in all: %v", by, err)
		}
	}
	testbed.Must(t, live.RemoveContext(t.Context(), "c5", "bash"))
	run("more", "bash")
	err = a.RestartKernel(t.Context(), "none")
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "restart of an unknown context: %v", err)
}

// What runs in a context that is removed ends, what waits for it does not run, and neither leaves a kernel behind.
func TestContextIsRemoved(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	live := a.Live()
	running, waiting := agenttest.NewID(), agenttest.NewID()
	in := func(code string) agent.Spec {
		spec := agenttest.Code(code)
		spec.Context = "gone"
		return spec
	}
	testbed.Must(t, a.Start(t.Context(), running, in("x = 1; print('begun')\nimport time; time.sleep(999)")))
	frames, err := a.Frames(t.Context(), running, 1)
	testbed.Must(t, err)
	_, err = frames.Next()
	testbed.Must(t, err)
	testbed.Must(t, frames.Close())
	testbed.Must(t, a.Start(t.Context(), waiting, in("print('ran')")))
	testbed.Must(t, live.RemoveContext(t.Context(), "gone", "python"))
	ran := agenttest.Read(t, a.Client, running)
	testbed.Check(t, ran.Outcome.Error != nil && ran.Outcome.Error.Name == farm.ErrorKernelDied, "the code that ran: %+v", ran.Outcome)
	if ran := agenttest.Read(t, a.Client, waiting); ran.Stdout != "" || ran.Outcome.Error == nil || ran.Outcome.Error.Name != "NotAvailable" {
		t.Errorf("the code that waited: %q, %+v", ran.Stdout, ran.Outcome)
	}
	for range 2 {
		err := live.RemoveContext(t.Context(), "gone", "python")
		testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "removed again: %v", err)
	}
	list, err := live.Contexts(t.Context())
	info, infoErr := a.Info(t.Context())
	if err != nil || infoErr != nil || len(list) != 0 || len(info.Kernels) != 0 {
		t.Errorf("contexts %v, kernels %v, %v, %v", list, info.Kernels, err, infoErr)
	}
	ran = agenttest.Run(t, a.Client, in("x"))
	testbed.Check(t, ran.Outcome.Error != nil && ran.Outcome.Error.Name == "NameError", "the same name again: %+v", ran.Outcome)
}

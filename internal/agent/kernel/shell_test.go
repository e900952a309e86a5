//go:build integration

package kernel_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const bad = "class Bad:\n    def __repr__(self): raise ValueError('bad repr')\n"

// IPython shows errors beside the cell's own: they are on stderr, and the cell has succeeded.
func TestKernelShowsErrorsBesideTheCells(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	for _, c := range []struct{ name, code, stdout, stderr string }{
		{"Repr", bad + "display(Bad())\nprint('after')", "after\n", "ValueError: bad repr\n"},
		{"RunCell", "r = get_ipython().run_cell('1/0')\nprint('after')", "after\n", "ZeroDivisionError: division by zero\n"},
		{"Capture", "%%capture\nget_ipython().run_cell('1/0')", "", "ZeroDivisionError: division by zero\n"},
		{"Run", "open('raises.py', 'w').write('raise KeyError(3)');\n%run raises.py", "", "KeyError: 3\n"},
		{"ShowTraceback", "try: 1/0\nexcept ZeroDivisionError: get_ipython().showtraceback()", "", "ZeroDivisionError: division by zero\n"},
		{"AddHook", "def hook(*_): raise RuntimeError('in a hook')\nget_ipython().events.register('pre_run_cell', hook)", "", ""},
		{"Hook", "get_ipython().events.unregister('pre_run_cell', hook)", "Error in callback", "RuntimeError: in a hook\n"},
	} {
		got := agenttest.Run(t, a.Client, agenttest.Code(c.code))
		if !strings.HasPrefix(got.Stdout, c.stdout) || !strings.HasSuffix(got.Stderr, c.stderr) || got.Outcome.Error != nil || got.Outcome.ExitCode != 0 {
			t.Errorf("%s: %q %q %+v", c.name, got.Stdout, got.Stderr, got.Outcome.Error)
		}
		if c.stderr != "" && !strings.Contains(got.Stderr, "Traceback (most recent call last)") {
			t.Errorf("%s: no traceback in %q", c.name, got.Stderr)
		}
	}
}

// The value of an error is whole up to its bound: clients of Jupyter carry answers in it.
func TestKernelReportsLongErrorsWhole(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	for n, want := range map[int]int{farm.MaxErrorValueBytes: farm.MaxErrorValueBytes, farm.MaxErrorValueBytes + 1: farm.MaxErrorValueBytes + len("…")} {
		got := agenttest.Run(t, a.Client, agenttest.Code(fmt.Sprintf("raise ValueError('é' * (%d // 2) + 'x' * (%d %% 2))", n, n)))
		if e := got.Outcome.Error; e == nil {
			t.Errorf("%d bytes: no error", n)
		} else if e.Name != "ValueError" || len(e.Value) != want {
			t.Errorf("%d bytes: the error is %.60q of %d bytes, want %d", n, e.Value, len(e.Value), want)
		}
	}
}

// The cell's own error is in the outcome and not on stderr as well.
func TestKernelReportsTheCellsError(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	for _, c := range []struct{ name, code, err, text string }{
		{"Exception", "1/0", "ZeroDivisionError", "division by zero"},
		{"Syntax", "def f(:", "SyntaxError", "invalid syntax"},
		{"Unclosed", "print((1, 2", "SyntaxError", "'(' was never closed"},
		{"NoBlock", "for i in range(3):", "IndentationError", "expected an indented block after 'for' statement on line 1"},
		{"Recursion", "def f(): return f()\nf()", "RecursionError", "maximum recursion depth exceeded"},
		{"LastValue", bad + "Bad()", "ValueError", "bad repr"},
		{"HTMLOfTheLastValue", "class BadHTML:\n    def _repr_html_(self): raise ValueError('bad html')\n    def __repr__(self): return 'plain'\nBadHTML()", "ValueError", "bad html"},
		{"Magic", "%no_such_magic", "UsageError", "not found"},
		{"Await", "import asyncio\nawait asyncio.sleep(0)\n1/0", "ZeroDivisionError", "division by zero"},
		{"SetHandler", "get_ipython().set_custom_exc((KeyError,), lambda *a, **k: print('handled'))", "", ""},
		{"Handled", "raise KeyError('k')", "KeyError", "'k'"},
		{"SetFailingHandler", "get_ipython().set_custom_exc((KeyError,), lambda *a, **k: 1/0)", "", ""},
		{"FailingHandler", "raise KeyError('k')", "KeyError", "'k'"},
	} {
		got := agenttest.Run(t, a.Client, agenttest.Code(c.code))
		name, value := "", ""
		if got.Outcome.Error != nil {
			name, value = got.Outcome.Error.Name, got.Outcome.Error.Value
			for _, line := range got.Outcome.Error.Traceback {
				if strings.Contains(line, "launcher.py") || strings.Contains(line, "sandfarm_") {
					t.Errorf("%s: the traceback has code of the kernel: %s", c.name, line)
				}
			}
			if len(got.Outcome.Error.Traceback) == 0 != (c.name == "Magic" || strings.HasSuffix(c.name, "Hand"+"ler") || c.name == "Handled") {
				t.Errorf("%s: traceback = %q", c.name, got.Outcome.Error.Traceback)
			}
		}
		if name != c.err || !strings.Contains(value, c.text) || (got.Outcome.ExitCode == 0) != (c.err == "") {
			t.Errorf("%s: %s: %s, outcome %+v", c.name, name, value, got.Outcome)
		}
		testbed.Check(t, !strings.Contains(got.Stderr, "Traceback"), "%s: stderr = %q", c.name, got.Stderr)
		if c.name == "HTMLOfTheLastValue" && (len(got.Displays) != 1 || got.Displays[0].Data["text/plain"] != "plain") {
			t.Errorf("%s: displays = %+v", c.name, got.Displays)
		}
	}
}

// What IPython shows in a pager is printed.
func TestKernelPrintsPages(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	agenttest.Run(t, a.Client, agenttest.Code("text = 'a text'\ndef own():\n    'Docs of own.'\n    return 42\nopen('file.txt', 'w').write('in a file');"))
	for code, want := range map[string]string{
		"own?": "Docs of own.", "own??": "return 42", "%pinfo own": "Docs of own.", "%pinfo2 own": "return 42", "%psource own": "return 42",
		"%pdoc own": "Docs of own.", "%page text": "a text", "%less file.txt": "in a file", "%quickref": "Quick Reference",
	} {
		if got := agenttest.Run(t, a.Client, agenttest.Code(code)); !strings.Contains(got.Stdout, want) || got.Outcome.Error != nil {
			t.Errorf("%s: %q %q %+v", code, got.Stdout, got.Stderr, got.Outcome.Error)
		}
	}
}

// Libraries find out that they run in a notebook as they do in Jupyter's kernel.
func TestKernelLooksLikeANotebook(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	for code, want := range map[string]string{
		"type(get_ipython()).__name__":                                                    "'ZMQInteractiveShell'",
		"'IPKernelApp' in get_ipython().config":                                           "True",
		"get_ipython().kernel.get_parent()['header']['msg_type']":                         "'execute_request'",
		"get_ipython().kernel.shell is get_ipython()":                                     "True",
		"from pandas.io.formats.console import in_ipython_frontend as f; f()":             "True",
		"import matplotlib; 'inline' in matplotlib.get_backend()":                         "True",
		"import sys; sorted({'zmq', 'tornado', 'ipykernel', 'sqlite3'} & {*sys.modules})": "[]",
		"__name__":                       "'__main__'",
		"type(get_ipython()).__module__": "'ipykernel.zmqshell'",
		"'ipykernel.zmqshell' in __import__('sys').modules": "True",
		"In[1:2] == [1]": "False",
	} {
		got := agenttest.Run(t, a.Client, agenttest.Code(code))
		testbed.Check(t, len(got.Displays) == 1 && got.Displays[0].Data["text/plain"] == want, "%s: %+v %+v", code, got.Displays, got.Outcome.Error)
	}
	got := agenttest.Run(t, a.Client, agenttest.Code("%connect_info"))
	testbed.Check(t, strings.Contains(got.Stdout, "has no connection file"), "%%connect_info: %+v", got)
}

// Displayed values have their names, their metadata, and the order to clear what was displayed.
func TestKernelDisplaysWithNamesAndMetadata(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	got := agenttest.Run(t, a.Client, agenttest.Code(`
from IPython.display import Image, clear_output, display, update_display
display(1, display_id="one")
update_display(2, display_id="one")
clear_output(wait=True)
clear_output()
display({"text/html": "<b>"}, metadata={"text/html": {"isolated": True}}, raw=True)
class Own:
    def _repr_mimebundle_(self, **_): return {"text/plain": "own", "application/json": {"a": float("nan")}}, {"width": 3}
Own()
`))
	want := []agent.Display{
		{Number: 1, ID: "one", Data: map[string]string{"text/plain": "1"}},
		{Number: 1, ID: "one", Update: true, Data: map[string]string{"text/plain": "2"}},
		{Clear: agent.ClearWait},
		{Clear: agent.ClearNow},
		{Number: 2, Data: map[string]string{"text/html": "<b>"}, Metadata: []byte(`{"text/html":{"isolated":true}}`)},
		{Number: 3, Data: map[string]string{"text/plain": "own", "application/json": `{"a": "nan"}`}, Metadata: []byte(`{"width":3}`), Result: true},
	}
	diff := cmp.Diff(want, got.Displays)
	testbed.Check(t, diff == "", "displays (-want +got):\n%s\n%+v", diff, got.Outcome.Error)
}

// Tasks go on between cells, and code that awaits can be interrupted while it computes.
func TestKernelRunsTasksBetweenCells(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	agenttest.Run(t, a.Client, agenttest.Code("import asyncio, os\nasync def later():\n    await asyncio.sleep(0.05)\n    open('flag', 'w').close()\ntask = asyncio.create_task(later())"))
	got := agenttest.Run(t, a.Client, agenttest.Code("import time\nfor _ in range(1000):\n    if task.done(): break\n    await asyncio.sleep(0.01)\nprint(os.path.exists('flag'))"))
	testbed.Check(t, got.Stdout == "True\n", "task: %+v %+v", got, got.Outcome.Error)
	for _, code := range []string{
		"print('begun')\nawait asyncio.sleep(999)",
		"await asyncio.sleep(0)\nprint('begun')\nwhile True: pass",
		"async def spin():\n    print('begun')\n    while True: pass\nt = asyncio.create_task(spin())\nawait asyncio.sleep(999)",
	} {
		id := agenttest.NewID()
		testbed.Must(t, a.Start(t.Context(), id, agenttest.Code(code)))
		frames, err := a.Frames(t.Context(), id, 1)
		testbed.Must(t, err)
		_, err = frames.Next()
		testbed.Must(t, err)
		testbed.Must(t, frames.Close())
		testbed.Must(t, a.Stop(t.Context(), id, agent.StopInterrupt))
		if got := agenttest.Read(t, a.Client, id); got.Outcome.Restarted || got.Outcome.Error == nil ||
			got.Outcome.Error.Name != "KeyboardInterrupt" && got.Outcome.Error.Name != "CancelledError" { // it ran, or it awaited
			t.Errorf("%s: %+v", code, got.Outcome)
		}
	}
	got = agenttest.Run(t, a.Client, agenttest.Code("print(os.path.exists('flag'))"))
	testbed.Check(t, got.Stdout == "True\n" && !got.Outcome.Restarted, "afterwards: %+v", got)
}

// A fork that runs to the end of its cell ends there: it does not answer for the kernel.
func TestKernelSurvivesAForkThatFinishesItsCell(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	got := agenttest.Run(t, a.Client, agenttest.Code("import os\nchild = os.fork()\nif child == 0:\n    1/0\nprint(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"))
	if got.Stdout != "1\n" || !strings.HasSuffix(got.Stderr, "ZeroDivisionError: division by zero\n") || got.Outcome.Error != nil {
		t.Errorf("got %+v %+v", got, got.Outcome.Error)
	}
	got = agenttest.Run(t, a.Client, agenttest.Code("print(child != 0)"))
	testbed.Check(t, got.Stdout == "True\n", "next = %+v", got)
}

// Code that came from a file finds itself there, as long as it runs: newcomers' scripts read what is beside them.
func TestCodeFromAFile(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	file := filepath.Join(a.Workspace, "sub", "plot.py")
	run := func(filename, code string) agenttest.Ran {
		spec := agenttest.Code(code)
		spec.Filename = filename
		return agenttest.Run(t, a.Client, spec)
	}
	const names = "import sys; print(globals().get('__file__'), sys.argv)"
	for _, c := range []struct{ filename, code, stdout, trace string }{
		{"", names, "None ['']\n", ""},
		{"sub/plot.py", names + "; __file__, sys.argv = 'x', ['y']", file + " ['" + file + "']\n", ""},
		{"", names, "None ['']\n", ""},
		{"", "__file__ = 'mine'; sys.argv.append('a')", "", ""},
		{"sub/plot.py", "def f():\n    1/0\nf()", "", "File " + file + ":2"},
		{"", names, "mine ['', 'a']\n", ""},
		{"", "f()", "", "File " + file + ":2"}, // which the file defined
		{"", "1/0", "", "Cell In[8], line 1"},
		{"sub/plot.py", "\n \n1/0", "", "File " + file + ":3"},
		{"sub/plot.py", "\n\ndef f(:", "", "File " + file + ":3"},
		{"sub/plot.py", "get_ipython().run_cell('print(__file__)\\n1/0')", file + "\n", ""}, // a cell within the file's code
	} {
		ran := run(c.filename, c.code)
		trace := ""
		if ran.Outcome.Error != nil {
			trace = strings.Join(ran.Outcome.Error.Traceback, "\n")
		}
		if ran.Stdout != c.stdout || !strings.Contains(trace, c.trace) || c.trace == "" && trace != "" {
			t.Errorf("%s as %q: stdout %q, error:\n%s", c.code, c.filename, ran.Stdout, trace)
		}
	}
	const spawn = `import multiprocessing as m
def double(x):
    return 2 * x
if __name__ == "__main__":
    with m.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [21]))
`
	testbed.Must(t, os.Mkdir(filepath.Dir(file), 0o700))
	testbed.Must(t, os.WriteFile(file, []byte(spawn), 0o600))
	ran := run("sub/plot.py", spawn)
	testbed.Check(t, ran.Stdout == "[42]\n" && len(ran.Outcome.Files) == 0, "a child that reads the file gives %+v", ran)
}

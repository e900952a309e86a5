//go:build integration

package kernel_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/kernel"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// sent is a message for notebooks.
type sent struct {
	kind, parent string
	content      map[string]any
}

// heard reads n messages after a number.
func heard(t *testing.T, ks *kernel.Kernels, after uint64, n int) []sent {
	t.Helper()
	var out []sent
	for len(out) < n {
		list, err := ks.Messages(t.Context(), kernel.DefaultContext, after, time.Minute)
		testbed.Must(t, err)
		testbed.Require(t, len(list) != 0, "%d of %d messages came: %v", len(out), n, out)
		for _, m := range list {
			one := sent{kind: m.Kind, parent: m.Parent}
			testbed.Must(t, json.Unmarshal(m.Content, &one.content))
			out, after = append(out, one), m.Seq
		}
	}
	return out
}

// notebook starts a kernel without a server, which passes on no notebook's questions yet. run runs code and returns its error.
func notebook(t *testing.T) (ks *kernel.Kernels, run func(code string, cell ...*farm.Cell) *farm.CodeError) {
	t.Helper()
	dir, env := t.TempDir(), []string{"PATH=" + agenttest.KernelPath(t), "HOME=" + t.TempDir()}
	reaper := process.NewReaper(false)
	t.Cleanup(reaper.Close)
	life, end := context.WithCancel(context.Background())
	ks = kernel.New(life, kernel.Config{
		RunDir: dir, TmpDir: dir, Workspace: dir, Image: env, Env: env, Reaper: reaper, Installed: func() int64 { return 0 },
		Measure: func(e *execution.Execution, body func(*execution.Execution) agent.Outcome) agent.Outcome {
			return body(e)
		},
	})
	t.Cleanup(func() {
		end()
		ks.Close()
	})
	run = func(code string, cell ...*farm.Cell) *farm.CodeError {
		spec := agenttest.Code(code)
		spec.Cell = &farm.Cell{}
		if len(cell) > 0 {
			spec.Cell = cell[0]
		}
		e := execution.New(agenttest.NewID(), spec, 1<<20, time.Now())
		ks.Run(e)
		return e.Outcome().Error
	}
	return ks, run
}

// ask asks a question and returns the answer.
func ask(t *testing.T, ks *kernel.Kernels, kind kernel.Kind, content map[string]any) map[string]any {
	t.Helper()
	raw, err := ks.AskNotebook(kernel.DefaultContext, kind, content, "asked")
	testbed.Must(t, err)
	var answer map[string]any
	testbed.Must(t, json.Unmarshal(raw, &answer))
	return answer
}

func TestKernelAnswersNotebooks(t *testing.T) {
	t.Parallel()
	ks, run := notebook(t)
	_, err := ks.AskNotebook(kernel.DefaultContext, kernel.Complete, map[string]any{"code": "pri"}, "")
	testbed.Check(t, farm.CodeOf(err) == farm.CodeUnavailable, "without a kernel: %v", err)
	for _, code := range []string{"def greet(name):\n    'Greets.'", "number = 41\nnumber + 1"} {
		if err := run(code); err != nil {
			t.Fatal(err)
		}
	}
	completed := ask(t, ks, kernel.Complete, map[string]any{"code": "x = gre", "cursor_pos": 7})
	if matches, _ := completed["matches"].([]any); !slices.Contains(matches, any("greet")) || completed["cursor_start"] != 4.0 || completed["cursor_end"] != 7.0 {
		t.Errorf("complete: %v", completed)
	}
	inspected := ask(t, ks, kernel.Inspect, map[string]any{"code": "greet", "cursor_pos": 3, "detail_level": 0})
	data, _ := inspected["data"].(map[string]any)
	text, _ := data["text/plain"].(string)
	testbed.Check(t, inspected["found"] == true && strings.Contains(text, "Greets."), "inspect: %v", inspected)
	want := map[string]any{"status": "ok", "found": false, "data": map[string]any{}, "metadata": map[string]any{}}
	testbed.Diff(t, "inspect an unknown name", want, ask(t, ks, kernel.Inspect, map[string]any{"code": "nobody", "cursor_pos": 3}))
	for code, want := range map[string]map[string]any{
		"x = 1":    {"status": "complete"},
		"if True:": {"status": "incomplete", "indent": "    "},
		"x = = 1":  {"status": "invalid"},
	} {
		testbed.Diff(t, code, want, ask(t, ks, kernel.IsComplete, map[string]any{"code": code}))
	}
	input := "number = 41\nnumber + 1"
	for _, c := range []struct {
		content map[string]any
		want    []any
	}{
		{map[string]any{"hist_access_type": "tail", "n": 1, "output": false, "raw": true}, []any{[]any{0.0, 2.0, input}}},
		{map[string]any{"hist_access_type": "range", "session": 0, "start": 2, "stop": 3, "output": true, "raw": true}, []any{[]any{0.0, 2.0, []any{input, "42"}}}},
		{map[string]any{"hist_access_type": "search", "pattern": "number*", "n": 5, "unique": true}, []any{[]any{0.0, 2.0, input}}},
	} {
		testbed.Diff(t, fmt.Sprintf("history %v", c.content), map[string]any{"status": "ok", "history": c.want}, ask(t, ks, kernel.History, c.content))
	}
	failed := ask(t, ks, kernel.Complete, map[string]any{"no_such": 1})
	testbed.Check(t, failed["status"] == "error" && failed["ename"] == "TypeError", "a wrong question: %v", failed)
	if err := run("assert number == 41 and In[-1].startswith('assert')"); err != nil { // the answers left no trace
		t.Error(err)
	}
}

// A widget opens a comm, updates its state, and is told of changes in the notebook, as ipywidgets does it.
func TestKernelCarriesComms(t *testing.T) {
	t.Parallel()
	ks, run := notebook(t)
	if err := run(`
from comm import create_comm, get_comm_manager
state = {"_model_name": "IntSliderModel", "value": 3}
widget = create_comm(target_name="jupyter.widget", comm_id="w1", data={"state": state, "buffer_paths": [["b"]]}, metadata={"version": "2.1.0"}, buffers=[b"\x00\xff"])
widget.send({"method": "update", "state": {"value": 4}, "buffer_paths": []})
heard = []
widget.on_msg(lambda message: heard.append((message["content"]["data"], message["buffers"])))
get_comm_manager().register_target("from.notebook", lambda comm, message: heard.append(message["content"]["data"]))
`, &farm.Cell{Session: "s", Message: "cell"}); err != nil {
		t.Fatal(err)
	}
	want := []sent{
		{"comm_open", "cell", map[string]any{
			"comm_id": "w1", "target_name": "jupyter.widget", "target_module": nil, "metadata": map[string]any{"version": "2.1.0"}, "buffers": []any{"AP8="},
			"data": map[string]any{"state": map[string]any{"_model_name": "IntSliderModel", "value": 3.0}, "buffer_paths": []any{[]any{"b"}}},
		}},
		{"comm_msg", "cell", map[string]any{"comm_id": "w1", "data": map[string]any{"method": "update", "state": map[string]any{"value": 4.0}, "buffer_paths": []any{}}}},
	}
	testbed.Diff(t, "comms", want, heard(t, ks, 0, 2), cmp.AllowUnexported(sent{}))
	info := ask(t, ks, kernel.CommInfo, map[string]any{"target_name": "jupyter.widget"})
	testbed.Diff(t, "comm_info", map[string]any{"status": "ok", "comms": map[string]any{"w1": map[string]any{"target_name": "jupyter.widget"}}}, info)
	ask(t, ks, kernel.CommMsg, map[string]any{"comm_id": "w1", "data": map[string]any{"method": "update", "state": map[string]any{"value": 5}}, "buffers": []string{"AQI="}})
	ask(t, ks, kernel.CommOpen, map[string]any{"comm_id": "n1", "target_name": "from.notebook", "data": map[string]any{"hello": 1}})
	ask(t, ks, kernel.CommClose, map[string]any{"comm_id": "n1", "data": map[string]any{}})
	if err := run(`assert heard == [({"method": "update", "state": {"value": 5}}, [b"\x01\x02"]), {"hello": 1}], heard`); err != nil {
		t.Error(err)
	}
}

// What the handler of a comm prints and displays belongs to the message that it handles: interact of ipywidgets needs it.
func TestHandlersOfCommsPrint(t *testing.T) {
	t.Parallel()
	ks, run := notebook(t)
	if err := run(`
from comm import create_comm
from IPython.display import HTML, clear_output, display
import sys
widget = create_comm(target_name="t", comm_id="w1")
def handle(message):
    clear_output(wait=True)
    print("out")
    display(HTML("<b>"), display_id="d")
    print("err", file=sys.stderr)
    print(get_ipython().kernel.get_parent()["header"]["msg_id"])
    raise ValueError("wrong")
widget.on_msg(handle)
`); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, ks, kernel.CommMsg, map[string]any{"comm_id": "w1", "data": map[string]any{}}); got["status"] != "ok" {
		t.Errorf("answer %v", got)
	}
	got := heard(t, ks, 1, 5)
	kinds := ""
	for _, m := range got {
		kinds += " " + m.kind
		testbed.Check(t, m.parent == "asked", "%+v does not belong to the message", m)
	}
	want := " clear_output stream display_data stream stream"
	testbed.Check(t, strings.HasPrefix(kinds, want), "messages%s, want%s: %v", kinds, want, got)
	text := ""
	for _, m := range got {
		if m.kind == "stream" {
			text += m.content["name"].(string) + ":" + m.content["text"].(string)
		}
	}
	if !strings.Contains(text, "stdout:out\n") || !strings.Contains(text, "asked\n") || !strings.Contains(text, "stderr:err\n") || !strings.Contains(text, "ValueError") {
		t.Errorf("printed %q", text)
	}
	if err := run("print('still here')"); err != nil {
		t.Error(err)
	}
}

// Code asks for input only of a notebook that has said that it answers, and an interrupt ends the wait.
func TestCodeAsksForInput(t *testing.T) {
	t.Parallel()
	ks, run := notebook(t)
	for _, code := range []string{"input('name? ')", "import getpass; getpass.getpass()"} {
		err := run(code)
		testbed.Check(t, err != nil && err.Name == "StdinNotImplementedError", "%s without a notebook: %v", code, err)
	}
	cell := &farm.Cell{Session: "s", Message: "cell", Input: true}
	done := make(chan *farm.CodeError, 1)
	go func() {
		done <- run("import getpass\nassert input('name? ') == 'Ada'\nassert getpass.getpass() == 'x'", cell)
	}()
	for i, want := range []map[string]any{{"prompt": "name? ", "password": false}, {"prompt": "Password: ", "password": true}} {
		list, err := ks.Messages(t.Context(), kernel.DefaultContext, uint64(i), time.Minute)
		testbed.Must(t, err)
		testbed.Require(t, len(list) == 1 && list[0].Kind == "input_request" && list[0].Parent == "cell", "messages %+v", list)
		var content map[string]any
		testbed.Must(t, json.Unmarshal(list[0].Content, &content))
		testbed.Diff(t, "", want, content)
		testbed.Must(t, ks.Answer(kernel.DefaultContext, list[0].Number+7, "not asked for"))
		testbed.Must(t, ks.Answer(kernel.DefaultContext, list[0].Number, []string{"Ada", "x"}[i]))
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Cells that are not to be stored are not counted, and silent ones show no value.
func TestUncountedCells(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	for i, c := range []struct {
		cell         farm.Cell
		count, shown int
	}{
		{farm.Cell{}, 1, 1},
		{farm.Cell{NoHistory: true}, 1, 1},
		{farm.Cell{NoHistory: true, Silent: true}, 1, 0},
		{farm.Cell{Silent: true}, 1, 0},
		{farm.Cell{}, 2, 1},
	} {
		c.cell.Message = "m"
		spec := agenttest.Code("6 * 7")
		spec.Cell = &c.cell
		if ran := agenttest.Run(t, a.Client, spec); ran.Outcome.ExecutionCount != c.count || len(ran.Displays) != c.shown {
			t.Errorf("cell %d has count %d and shows %v, want %d and %d values", i, ran.Outcome.ExecutionCount, ran.Displays, c.count, c.shown)
		}
	}
}

func TestMessagesForNotebooksAreBounded(t *testing.T) {
	t.Parallel()
	ks, run := notebook(t)
	if err := run("from comm import create_comm\nc = create_comm(target_name='t')\nfor i in range(5099): c.send({'i': i})"); err != nil {
		t.Fatal(err)
	}
	list, err := ks.Messages(t.Context(), kernel.DefaultContext, 0, 0)
	testbed.Must(t, err)
	if len(list) == 0 || list[0].Seq != 5100-kernel.MaxMessages+1 {
		t.Errorf("the first of %d messages has the number %d", len(list), list[0].Seq)
	}
	if err := run("c.send({'x': 'x' * (5 << 20)}); c.send({})"); err != nil {
		t.Fatal(err)
	}
	if list, err = ks.Messages(t.Context(), kernel.DefaultContext, 0, 0); err != nil || len(list) != 1 || list[0].Seq != 5102 {
		t.Errorf("behind a long message %d are kept: %v", len(list), err)
	}
}

// Notebooks are told of executions that are no cells: of cells they know.
func TestMessagesNameExecutionsOfOthers(t *testing.T) {
	t.Parallel()
	ks, run := notebook(t)
	if err := run("x = 1"); err != nil {
		t.Fatal(err)
	}
	e := execution.New(agenttest.NewID(), agenttest.Code("assert x == 1"), 1<<20, time.Now())
	ks.Run(e)
	list, err := ks.Messages(t.Context(), kernel.DefaultContext, 0, 0)
	testbed.Must(t, err)
	want := []agent.Message{{Seq: 1, Kind: kernel.KindExecution, Content: json.RawMessage("{}"), Execution: e.ID}}
	diff := cmp.Diff(want, list)
	testbed.Check(t, diff == "" && e.Outcome().Error == nil, "messages (-want +got):\n%s", diff)
}

// Notebooks are told that a restart was asked for, before the kernel ends and whether it runs something or not: that is no crash.
func TestMessagesTellRestartsFromCrashes(t *testing.T) {
	t.Parallel()
	ks, run := notebook(t)
	var after uint64
	messages := func() (contents []string) {
		list, err := ks.Messages(t.Context(), kernel.DefaultContext, after, 0)
		testbed.Must(t, err)
		for _, m := range list {
			after = m.Seq
			if m.Kind == kernel.KindEnded {
				contents = append(contents, string(m.Content))
			}
		}
		return contents
	}
	const asked = `{"asked":true}`
	if err := run("x = 1"); err != nil {
		t.Fatal(err)
	}
	testbed.Must(t, ks.Restart(t.Context(), kernel.DefaultContext))
	if err := run("assert 'x' not in globals()"); err != nil {
		t.Fatal(err)
	}
	got := messages()
	testbed.Check(t, slices.Equal(got, []string{asked}), "after the restart of an idle kernel: %q", got)
	spec := agenttest.Code("open('begun', 'w').close()\nimport time\ntime.sleep(999)")
	spec.Cell = &farm.Cell{}
	e := execution.New(agenttest.NewID(), spec, 1<<20, time.Now())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ks.Run(e)
	}()
	for busy := false; !busy; {
		busy = slices.ContainsFunc(ks.Running(), func(k agent.Kernel) bool { return k.Busy })
	}
	testbed.Must(t, ks.Restart(t.Context(), kernel.DefaultContext))
	<-ended
	got = messages()
	testbed.Check(t, slices.Equal(got, []string{asked}) && e.Outcome().Error != nil, "after the restart of a busy kernel: %q", got)
	err := run("import os\nos._exit(1)")
	testbed.Check(t, err != nil, "a kernel that died is said to have run its cell")
	got = messages()
	testbed.Check(t, len(got) == 0, "after a crash: %q", got)
}

// Messages keep their place among the output of the cell that sends them: what is printed into a widget is what comes between two of them.
func TestMessagesKnowTheirPlaceInTheOutput(t *testing.T) {
	t.Parallel()
	ks, _ := notebook(t)
	spec := agenttest.Code("from comm import create_comm\nc = create_comm(target_name='t')\nprint('a', end='')\nc.send({})\nc.send({})\nprint('b', end='')\nc.send({})")
	spec.Cell = &farm.Cell{}
	e := execution.New(agenttest.NewID(), spec, 1<<20, time.Now())
	ks.Run(e)
	list, err := ks.Messages(t.Context(), kernel.DefaultContext, 0, 0)
	testbed.Must(t, err)
	var after []uint64
	for _, m := range list {
		testbed.Check(t, m.Execution == e.ID, "%+v does not name its execution", m)
		after = append(after, m.After)
	}
	texts := map[uint64]string{}
	frames, err := e.Log.Next(t.Context(), 1)
	testbed.Must(t, err)
	for _, f := range frames {
		if f.Type == agent.FrameStdout {
			texts[f.Seq] = string(f.Payload)
		}
	}
	if len(after) != 4 || after[0] != 0 || texts[after[1]] != "a" || after[1] != after[2] || texts[after[3]] != "b" || texts[after[1]+1] != "" {
		t.Errorf("messages after %v of %v", after, texts)
	}
}

// The farm keeps answers in the memory of its API, so they are small: a long docstring is cut, and what cannot be cut is refused.
func TestAnswersToNotebooksAreBounded(t *testing.T) {
	t.Parallel()
	ks, run := notebook(t)
	if err := run("def big(): pass\nbig.__doc__ = 'x' * 40_000_000"); err != nil {
		t.Fatal(err)
	}
	inspected := ask(t, ks, kernel.Inspect, map[string]any{"code": "big", "cursor_pos": 3, "detail_level": 0})
	data, _ := inspected["data"].(map[string]any)
	if text, _ := data["text/plain"].(string); inspected["found"] != true || len(text) < 256<<10 || len(text) > agent.MaxAnswerBytes/2 || !strings.Contains(text, "is left out") {
		t.Errorf("inspect: found %v, %d bytes", inspected["found"], len(text))
	}
	const around = len(`{"status":"ok","values":{"a":{"status":"ok","data":{"text/plain":"''"},"metadata":{}}}}`)
	for name, fits := range map[string]bool{
		fmt.Sprintf("'x' * %d", agent.MaxAnswerBytes-around): true, fmt.Sprintf("'x' * %d", agent.MaxAnswerBytes-around+1): false,
		fmt.Sprintf("'<' * %d", agent.MaxAnswerBytes/6): false, // as it is sent, < takes six bytes
	} {
		raw, err := ks.AskNotebook(kernel.DefaultContext, kernel.Expressions, map[string]any{"expressions": map[string]string{"a": name}}, "")
		if fits && (err != nil || len(raw) > agent.MaxAnswerBytes) || !fits && farm.CodeOf(err) != farm.CodeTooLarge {
			t.Errorf("%s: %d bytes, %v", name, len(raw), err)
		}
	}
}

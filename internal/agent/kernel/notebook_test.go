//go:build integration

package kernel_test

import (
	"context"
	"encoding/json"
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
)

// sent is a message of a comm.
type sent struct {
	kind    string
	content map[string]any
}

// notebook starts a kernel without a server, which passes on no notebook's questions yet. run runs code and returns its error.
func notebook(t *testing.T) (ks *kernel.Kernels, comms <-chan sent, run func(code string) *farm.CodeError) {
	t.Helper()
	dir, env := t.TempDir(), []string{"PATH=" + agenttest.KernelPath(t), "HOME=" + t.TempDir()}
	reaper := process.NewReaper(false)
	t.Cleanup(reaper.Close)
	messages := make(chan sent, 100)
	life, end := context.WithCancel(context.Background())
	ks = kernel.New(life, kernel.Config{
		RunDir: dir, TmpDir: dir, Workspace: dir, Image: env, Env: env, Reaper: reaper, Installed: func() int64 { return 0 },
		Measure: func(e *execution.Execution, body func(*execution.Execution) agent.Outcome) agent.Outcome {
			return body(e)
		},
		Comm: func(_, kind string, content json.RawMessage) {
			message := sent{kind: kind}
			if json.Unmarshal(content, &message.content) == nil {
				messages <- message
			}
		},
	})
	t.Cleanup(func() {
		end()
		ks.Close()
	})
	run = func(code string) *farm.CodeError {
		e := execution.New(agenttest.NewID(), agenttest.Code(code), 1<<20, time.Now())
		ks.Run(e)
		return e.Outcome().Error
	}
	return ks, messages, run
}

// ask asks a question and returns the answer.
func ask(t *testing.T, ks *kernel.Kernels, kind kernel.Kind, content map[string]any) map[string]any {
	t.Helper()
	raw, err := ks.AskNotebook(kernel.DefaultContext, kind, content)
	agenttest.Must(t, err)
	var answer map[string]any
	agenttest.Must(t, json.Unmarshal(raw, &answer))
	return answer
}

func TestKernelAnswersNotebooks(t *testing.T) {
	t.Parallel()
	ks, _, run := notebook(t)
	if _, err := ks.AskNotebook(kernel.DefaultContext, kernel.Complete, map[string]any{"code": "pri"}); farm.CodeOf(err) != farm.CodeUnavailable {
		t.Errorf("without a kernel: %v", err)
	}
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
	if text, _ := data["text/plain"].(string); inspected["found"] != true || !strings.Contains(text, "Greets.") {
		t.Errorf("inspect: %v", inspected)
	}
	want := map[string]any{"status": "ok", "found": false, "data": map[string]any{}, "metadata": map[string]any{}}
	if diff := cmp.Diff(want, ask(t, ks, kernel.Inspect, map[string]any{"code": "nobody", "cursor_pos": 3})); diff != "" {
		t.Errorf("inspect an unknown name (-want +got):\n%s", diff)
	}
	for code, want := range map[string]map[string]any{
		"x = 1":    {"status": "complete"},
		"if True:": {"status": "incomplete", "indent": "    "},
		"x = = 1":  {"status": "invalid"},
	} {
		if diff := cmp.Diff(want, ask(t, ks, kernel.IsComplete, map[string]any{"code": code})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", code, diff)
		}
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
		if diff := cmp.Diff(map[string]any{"status": "ok", "history": c.want}, ask(t, ks, kernel.History, c.content)); diff != "" {
			t.Errorf("history %v (-want +got):\n%s", c.content, diff)
		}
	}
	if failed := ask(t, ks, kernel.Complete, map[string]any{"no_such": 1}); failed["status"] != "error" || failed["ename"] != "TypeError" {
		t.Errorf("a wrong question: %v", failed)
	}
	if err := run("assert number == 41 and In[-1].startswith('assert')"); err != nil { // the answers left no trace
		t.Error(err)
	}
}

// A widget opens a comm, updates its state, and is told of changes in the notebook, as ipywidgets does it.
func TestKernelCarriesComms(t *testing.T) {
	t.Parallel()
	ks, comms, run := notebook(t)
	if err := run(`
from comm import create_comm, get_comm_manager
state = {"_model_name": "IntSliderModel", "value": 3}
widget = create_comm(target_name="jupyter.widget", comm_id="w1", data={"state": state, "buffer_paths": [["b"]]}, metadata={"version": "2.1.0"}, buffers=[b"\x00\xff"])
widget.send({"method": "update", "state": {"value": 4}, "buffer_paths": []})
heard = []
widget.on_msg(lambda message: heard.append((message["content"]["data"], message["buffers"])))
get_comm_manager().register_target("from.notebook", lambda comm, message: heard.append(message["content"]["data"]))
`); err != nil {
		t.Fatal(err)
	}
	want := []sent{
		{"comm_open", map[string]any{
			"comm_id": "w1", "target_name": "jupyter.widget", "target_module": nil, "metadata": map[string]any{"version": "2.1.0"}, "buffers": []any{"AP8="},
			"data": map[string]any{"state": map[string]any{"_model_name": "IntSliderModel", "value": 3.0}, "buffer_paths": []any{[]any{"b"}}},
		}},
		{"comm_msg", map[string]any{"comm_id": "w1", "data": map[string]any{"method": "update", "state": map[string]any{"value": 4.0}, "buffer_paths": []any{}}}},
	}
	for _, w := range want {
		if diff := cmp.Diff(w, <-comms, cmp.AllowUnexported(sent{})); diff != "" {
			t.Errorf("comm (-want +got):\n%s", diff)
		}
	}
	info := ask(t, ks, kernel.CommInfo, map[string]any{"target_name": "jupyter.widget"})
	if diff := cmp.Diff(map[string]any{"status": "ok", "comms": map[string]any{"w1": map[string]any{"target_name": "jupyter.widget"}}}, info); diff != "" {
		t.Errorf("comm_info (-want +got):\n%s", diff)
	}
	ask(t, ks, kernel.CommMsg, map[string]any{"comm_id": "w1", "data": map[string]any{"method": "update", "state": map[string]any{"value": 5}}, "buffers": []string{"AQI="}})
	ask(t, ks, kernel.CommOpen, map[string]any{"comm_id": "n1", "target_name": "from.notebook", "data": map[string]any{"hello": 1}})
	ask(t, ks, kernel.CommClose, map[string]any{"comm_id": "n1", "data": map[string]any{}})
	if err := run(`assert heard == [({"method": "update", "state": {"value": 5}}, [b"\x01\x02"]), {"hello": 1}], heard`); err != nil {
		t.Error(err)
	}
}

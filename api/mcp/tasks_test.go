package mcp_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mcpgo "github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestLongCallsAreTasksForCallersWhoDeclareThem(t *testing.T) {
	t.Parallel()
	for kind, tool := range taskKinds() {
		t.Run(tool.name, func(t *testing.T) {
			t.Parallel()
			b := newTaskBench(t, &taskFake{job: taskJob(kind, farm.JobQueued)})
			got := b.call(tool, tasksDeclared).Result
			delete(got, "_meta")
			created := b.fake.job.CreatedAt.Format(time.RFC3339Nano)
			want := map[string]any{
				"resultType": "task", "taskId": "job_1", "status": "working", "statusMessage": "Waiting for sandbox sbx_task.",
				"createdAt": created, "lastUpdatedAt": created, "ttlMs": float64(3_600_000), "pollIntervalMs": float64(5000),
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			plain := b.call(tool, `{}`)
			if plain.Result["taskId"] != nil || plain.Result["resultType"] != "complete" || plain.Result["content"] == nil {
				t.Errorf("without the extension: %+v", plain)
			}
			legacy := b.post(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"`+tool.name+`","arguments":`+tool.args+
				`,"_meta":{"io.modelcontextprotocol/clientCapabilities":`+tasksDeclared+`}}}`, map[string]string{"MCP-Protocol-Version": "2025-11-25"})
			if legacy.Result["taskId"] != nil || legacy.Result["resultType"] != nil || legacy.Result["content"] == nil {
				t.Errorf("of an older revision: %+v", legacy)
			}
			if w := b.fake.waits; len(w) != 3 || w[0] != 0 || w[1] < 40*time.Second || w[2] < 40*time.Second {
				t.Errorf("waits %v", w)
			}
		})
	}
}

func TestACallWithProgressIsATaskAtOnce(t *testing.T) {
	t.Parallel()
	b := newTaskBench(t, &taskFake{job: taskJob(farm.KindExecute, farm.JobQueued)})
	got := b.post(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"execute_python_code","arguments":{"sandbox_id":"sbx_task","code":"1"},
		"_meta":{"progressToken":"p","io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":`+tasksDeclared+`}}}`,
		map[string]string{"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "execute_python_code"})
	if got.Result["resultType"] != "task" || slices.ContainsFunc(b.fake.waits, func(wait time.Duration) bool { return wait > 0 }) {
		t.Errorf("waits %v: %+v", b.fake.waits, got)
	}
}

func TestShortCallsAreNeverTasks(t *testing.T) {
	t.Parallel()
	b := newTaskBench(t, &taskFake{})
	if got := b.call(taskTool{"list_sandboxes", `{}`}, tasksDeclared); got.Result["resultType"] != "complete" || got.Result["taskId"] != nil {
		t.Errorf("%+v", got)
	}
}

func TestACallThatStartsNothingIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	b := newTaskBench(t, &taskFake{err: farm.NotFoundf("There is no sandbox sbx_task.")})
	for _, args := range []string{`{"sandbox_id":"sbx_task","code":"1"}`, `{"sandbox_id":"sbx_task"}`} {
		got := b.call(taskTool{"execute_python_code", args}, tasksDeclared)
		if got.Result["resultType"] != "complete" || got.Result["isError"] != true || got.Result["taskId"] != nil {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

func TestATaskHasTheResultOfItsTool(t *testing.T) {
	t.Parallel()
	for kind, tool := range taskKinds() {
		for _, state := range []farm.JobState{farm.JobCompleted, farm.JobFailed, farm.JobTimedOut, farm.JobLost} {
			t.Run(tool.name+"/"+string(state), func(t *testing.T) {
				t.Parallel()
				b := newTaskBench(t, &taskFake{job: taskJob(kind, state)})
				want := b.call(tool, `{}`).Result
				task := b.task("tasks/get").Result
				got, _ := task["result"].(map[string]any)
				if task["status"] != "completed" || task["resultType"] != "complete" || got == nil {
					t.Fatalf("%+v", task)
				}
				delete(want, "_meta")
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-tool +task)\n%s", diff)
				}
				if finished := b.fake.job.FinishedAt.Format(time.RFC3339Nano); task["lastUpdatedAt"] != finished {
					t.Errorf("lastUpdatedAt %v, the job finished at %v", task["lastUpdatedAt"], finished)
				}
			})
		}
	}
}

func TestAClosedSandboxIsNotTheResultOfItsTask(t *testing.T) {
	t.Parallel()
	b := newTaskBench(t, &taskFake{job: taskJob(farm.KindCreate, farm.JobCompleted)})
	b.fake.boxes = nil
	result, _ := b.task("tasks/get").Result["result"].(map[string]any)
	if result["isError"] != true || result["structuredContent"] != nil {
		t.Errorf("%+v", result)
	}
}

func TestATaskShowsTheStateOfItsJob(t *testing.T) {
	t.Parallel()
	for state, want := range map[farm.JobState][2]string{
		farm.JobQueued:   {"working", "Waiting in sandbox sbx_task, at position 3 of its queue."},
		farm.JobRunning:  {"working", "Running for 59s in sandbox sbx_task."},
		farm.JobCanceled: {"cancelled", "Job job_1 in sandbox sbx_task: canceled. It went wrong."},
	} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			b := newTaskBench(t, &taskFake{job: taskJob(farm.KindExecute, state)})
			if state == farm.JobQueued {
				b.fake.job.Position = 3
			}
			got := b.task("tasks/get").Result
			if got["status"] != want[0] || got["statusMessage"] != want[1] || got["result"] != nil || got["error"] != nil {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestATaskIsUnknownToOthersAndUnderOtherIDs(t *testing.T) {
	t.Parallel()
	b := newTaskBench(t, &taskFake{job: taskJob(farm.KindExecute, farm.JobRunning)})
	other := func(h http.Header) { h.Set("Caller", "other") }
	for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
		if got := b.task(method, other); got.Error.Code != mcpgo.INVALID_PARAMS || got.status != http.StatusBadRequest {
			t.Errorf("%s of another caller: %+v", method, got)
		}
		if got := b.ask(method, "job_2", `"taskId":"job_2"`, tasksDeclared); got.Error.Code != mcpgo.INVALID_PARAMS {
			t.Errorf("%s of another id: %+v", method, got)
		}
	}
	b.fake.job.Kind = string(farm.KindFile)
	if got := b.task("tasks/get"); got.Error.Code != mcpgo.INVALID_PARAMS {
		t.Errorf("a job that no tool starts: %+v", got)
	}
	if b.fake.canceled != nil {
		t.Errorf("canceled %v", b.fake.canceled)
	}
}

func TestCancelAndUpdateOnlyAcknowledge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		method string
		state  farm.JobState
		err    error
		cancel int // number of cancels that reach the farm
	}{
		"Cancel":              {"tasks/cancel", farm.JobRunning, nil, 1},
		"CancelWhileItEnds":   {"tasks/cancel", farm.JobRunning, farm.Conflictf("It has ended."), 1},
		"CancelAfterItsEnd":   {"tasks/cancel", farm.JobCompleted, nil, 0},
		"UpdateNobodyAsksFor": {"tasks/update", farm.JobRunning, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTaskBench(t, &taskFake{job: taskJob(farm.KindExecute, c.state), cancelErr: c.err})
			got := b.ask(c.method, "job_1", `"taskId":"job_1","inputResponses":{"k":{"action":"accept"}}`, tasksDeclared)
			if _, ok := got.Result["_meta"]; !ok || len(got.Result) != 2 || got.Result["resultType"] != "complete" {
				t.Errorf("%+v", got)
			}
			if len(b.fake.canceled) != c.cancel {
				t.Errorf("canceled %v", b.fake.canceled)
			}
		})
	}
}

func TestAKeyThatMayOnlyReadCancelsNoTask(t *testing.T) {
	t.Parallel()
	b := newTaskBench(t, &taskFake{job: taskJob(farm.KindExecute, farm.JobRunning), cancelErr: farm.Errorf(farm.CodeUnauthorized, "This needs another key.")})
	if got := b.ask("tasks/cancel", "job_1", `"taskId":"job_1"`, tasksDeclared); got.Error.Code != mcpgo.INVALID_REQUEST || got.Error.Message != "This needs another key." {
		t.Errorf("%+v", got)
	}
}

func TestRequestsThatBreakTheRulesAreRefused(t *testing.T) {
	t.Parallel()
	set := func(name, value string) func(http.Header) { return func(h http.Header) { h.Set(name, value) } }
	get := `"taskId":"job_1"`
	for name, c := range map[string]struct {
		params, capabilities string
		change               func(http.Header)
		code                 int
	}{
		"OtherName":       {get, tasksDeclared, set("Mcp-Name", "job_2"), mcpgo.HEADER_MISMATCH},
		"NoName":          {get, tasksDeclared, set("Mcp-Name", ""), mcpgo.HEADER_MISMATCH},
		"OtherMethod":     {get, tasksDeclared, set("Mcp-Method", "tasks/cancel"), mcpgo.HEADER_MISMATCH},
		"OtherVersion":    {get, tasksDeclared, set("MCP-Protocol-Version", "2025-11-25"), mcpgo.HEADER_MISMATCH},
		"Undeclared":      {get, `{}`, func(http.Header) {}, mcpgo.MISSING_REQUIRED_CLIENT_CAPABILITY},
		"NoCapabilities":  {get, `null`, func(http.Header) {}, mcpgo.INVALID_PARAMS},
		"NoTask":          {`"x":1`, tasksDeclared, func(http.Header) {}, mcpgo.INVALID_PARAMS},
		"TaskOfWrongType": {`"taskId":5`, tasksDeclared, func(http.Header) {}, mcpgo.INVALID_PARAMS},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTaskBench(t, &taskFake{job: taskJob(farm.KindExecute, farm.JobRunning)})
			got := b.ask("tasks/get", "job_1", c.params, c.capabilities, c.change)
			if got.Error.Code != c.code || got.status != http.StatusBadRequest || got.Result != nil {
				t.Errorf("%+v", got)
			}
			if c.code == mcpgo.MISSING_REQUIRED_CLIENT_CAPABILITY {
				want := map[string]any{"extensions": map[string]any{mcp.TasksExtension: map[string]any{}}}
				if diff := cmp.Diff(want, got.Error.Data["requiredCapabilities"]); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			}
		})
	}
}

func TestACallWhoseHeadersDifferStartsNothing(t *testing.T) {
	t.Parallel()
	b := newTaskBench(t, &taskFake{job: taskJob(farm.KindExecute, farm.JobQueued)})
	got := b.call(taskKinds()[farm.KindExecute], tasksDeclared, func(h http.Header) { h.Set("Mcp-Name", "list_sandboxes") })
	if got.Error.Code != mcpgo.HEADER_MISMATCH || got.status != http.StatusBadRequest || b.fake.waits != nil {
		t.Errorf("%+v, started %d", got, len(b.fake.waits))
	}
}

func TestErrorsOfTheFarmAreNotShown(t *testing.T) {
	t.Parallel()
	b := newTaskBench(t, &taskFake{job: taskJob(farm.KindExecute, farm.JobRunning), err: errors.New("dial redis 10.0.0.1: refused")})
	got := b.task("tasks/get")
	if got.Error.Code != mcpgo.INTERNAL_ERROR || strings.Contains(got.Error.Message, "redis") {
		t.Errorf("%+v", got)
	}
}

func TestTheExtensionIsAdvertisedWhereThereAreTasks(t *testing.T) {
	t.Parallel()
	b := newTaskBench(t, &taskFake{})
	got := b.ask("server/discover", "", `"x":1`, `{}`)
	capabilities, _ := got.Result["capabilities"].(map[string]any)
	extensions, _ := capabilities["extensions"].(map[string]any)
	if _, ok := extensions[mcp.TasksExtension]; !ok || capabilities["tasks"] != nil {
		t.Errorf("%+v", got)
	}
}

func TestACallOutsideTheExtensionBecomesNoTask(t *testing.T) {
	t.Parallel()
	if mcp.MayBecomeTask(t.Context()) || mcp.BecomeTask(t.Context(), mcp.Task{}) {
		t.Error("a call without the extension has become a task")
	}
}

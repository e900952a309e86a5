//go:build integration

package main_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/mcp"
)

// taskAnswer is the part of a task's or a tool's result that the tests read.
type taskAnswer struct {
	ResultType string `json:"resultType"`
	TaskID     string `json:"taskId"`
	Status     string `json:"status"`
	Message    string `json:"statusMessage"`
	TTL        int64  `json:"ttlMs"`
	Poll       int64  `json:"pollIntervalMs"`
	Result     *struct {
		IsError    bool           `json:"isError"`
		Structured map[string]any `json:"structuredContent"`
		Content    []struct {
			Type string `json:"type"`
			Text string `json:"text"`
		} `json:"content"`
	} `json:"result"`
}

// askTask sends a request of revision 2026-07-28 that declares the Tasks extension.
func askTask(t *testing.T, url, method, name string, params map[string]any) (taskAnswer, int) {
	t.Helper()
	params["_meta"] = map[string]any{
		"io.modelcontextprotocol/protocolVersion":    "2026-07-28",
		"io.modelcontextprotocol/clientCapabilities": map[string]any{"extensions": map[string]any{mcp.TasksExtension: map[string]any{}}},
	}
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/mcp", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	for header, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name,
	} {
		r.Header.Set(header, value)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var message struct {
		Result taskAnswer
		Error  struct {
			Code    int
			Message string
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&message); err != nil {
		t.Fatalf("%s: %s: %v", method, response.Status, err)
	}
	return message.Result, message.Error.Code
}

// callTask calls a tool, whose answer must be a task.
func callTask(t *testing.T, url, tool string, args map[string]any) taskAnswer {
	t.Helper()
	a, code := askTask(t, url, "tools/call", tool, map[string]any{"name": tool, "arguments": args})
	if a.ResultType != "task" || a.TaskID == "" || a.TTL <= 0 || a.Poll <= 0 || a.Result != nil {
		t.Fatalf("%s gave %+v, error %d, not a task", tool, a, code)
	}
	return a
}

// endedTask polls a task until it has ended.
func endedTask(t *testing.T, url, id string) (a taskAnswer) {
	t.Helper()
	until(t.Context(), t, "task "+id+" ends", time.Minute, func() bool {
		a, _ = askTask(t, url, "tasks/get", id, map[string]any{"taskId": id})
		if a.ResultType != "complete" || a.TaskID != id {
			t.Fatalf("tasks/get gave %+v", a)
		}
		return a.Status != "working"
	})
	return a
}

func TestTaskSurvivesARestartOfTheAPI(t *testing.T) {
	t.Parallel()
	f := newServicesFarm(t)
	made := endedTask(t, f.url, callTask(t, f.url, "create_sandbox", map[string]any{"ttl_seconds": 300}).TaskID)
	if made.Status != "completed" || made.Result == nil || made.Result.Structured["state"] != "ready" {
		t.Fatalf("create gave %+v", made)
	}
	box := made.Result.Structured["sandbox_id"]
	run := func(code string) taskAnswer {
		return callTask(t, f.url, "execute_python_code", map[string]any{"sandbox_id": box, "code": code})
	}
	slow := run("import time\nprint('begun', flush=True)\ntime.sleep(5)\nprint('survived')")
	next := run("import time\ntime.sleep(600)")
	f.kill("api", syscall.SIGKILL)
	f.startParts("api")
	f.awaitReady()

	if a, code := askTask(t, f.url, "tasks/get", slow.TaskID, map[string]any{"taskId": slow.TaskID}); a.TaskID != slow.TaskID {
		t.Fatalf("the new API gives %+v, error %d", a, code)
	}
	ended := endedTask(t, f.url, slow.TaskID)
	if ended.Status != "completed" || ended.Result == nil || ended.Result.IsError || ended.Result.Structured["stdout"] != "begun\nsurvived\n" {
		t.Errorf("the task ended as %+v", ended)
	}
	if len(ended.Result.Content) == 0 || !strings.Contains(ended.Result.Content[0].Text, "survived") {
		t.Errorf("its text is %+v", ended.Result.Content)
	}
	if a, code := askTask(t, f.url, "tasks/cancel", next.TaskID, map[string]any{"taskId": next.TaskID}); a.ResultType != "complete" {
		t.Errorf("cancel gave %+v, error %d", a, code)
	}
	if a := endedTask(t, f.url, next.TaskID); a.Status != "cancelled" || a.Result != nil {
		t.Errorf("the cancelled task is %+v", a)
	}
	if _, code := askTask(t, f.url, "tasks/get", "job_0", map[string]any{"taskId": "job_0"}); code != -32602 {
		t.Errorf("an unknown task gives error %d", code)
	}
}

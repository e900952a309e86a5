//go:build integration

package main_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	farmmcp "github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// mcpCaller is a client of the real program's /mcp.
type mcpCaller struct {
	t      *testing.T
	client *client.Client

	mu       sync.Mutex
	progress []string // messages
}

func newMCP(t *testing.T, url, key, revision string) *mcpCaller {
	t.Helper()
	tr, err := transport.NewStreamableHTTP(url+"/mcp", transport.WithHTTPHeaders(map[string]string{"Authorization": "Bearer " + key}))
	testbed.Must(t, err)
	m := &mcpCaller{t: t, client: client.NewClient(tr, client.WithProtocolVersion(revision))}
	m.client.OnNotification(func(n mcp.JSONRPCNotification) {
		message, _ := n.Params.AdditionalFields["message"].(string)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.progress = append(m.progress, message)
	})
	testbed.Must(t, m.client.Start(t.Context()))
	t.Cleanup(func() { _ = m.client.Close() })
	_, err = m.client.Initialize(t.Context(), mcp.InitializeRequest{Params: mcp.InitializeParams{
		ProtocolVersion: revision, ClientInfo: mcp.Implementation{Name: "e2e", Version: "1"},
	}})
	testbed.Must(t, err)
	return m
}

func (m *mcpCaller) ask(tool string, args map[string]any) *mcp.CallToolResult {
	m.t.Helper()
	r, err := m.client.CallTool(m.t.Context(), mcp.CallToolRequest{Params: mcp.CallToolParams{
		Name: tool, Arguments: args, Meta: &mcp.Meta{ProgressToken: "token"},
	}})
	if err != nil {
		m.t.Fatalf("%s: %v", tool, err)
	}
	return r
}

// call is a call that must not be an error; it returns the structured content.
func (m *mcpCaller) call(tool string, args map[string]any) (map[string]any, *mcp.CallToolResult) {
	m.t.Helper()
	r := m.ask(tool, args)
	fields, _ := r.StructuredContent.(map[string]any)
	if r.IsError || fields == nil {
		m.t.Fatalf("%s: %s", tool, mcpText(r))
	}
	return fields, r
}

func mcpText(r *mcp.CallToolResult) string {
	text, _ := json.Marshal(r.Content)
	return string(text)
}

func TestMCPFromCreateToClose(t *testing.T) {
	const key = "key-of-acme"
	sum := sha256.Sum256([]byte(key))
	f := newFarm(t, "SANDFARM_API_KEYS=acme:"+hex.EncodeToString(sum[:]))
	for _, revision := range []string{mcp.ProtocolVersion20260728, mcp.ProtocolVersion20251125} {
		t.Run(revision, func(t *testing.T) {
			t.Parallel() // two clients at once
			flow(t, newMCP(t, f.url, key, revision))
		})
	}
}

func flow(t *testing.T, m *mcpCaller) {
	t.Helper()
	made, _ := m.call("create_sandbox", map[string]any{"name": "e2e", "ttl_seconds": 600})
	box, _ := made["sandbox_id"].(string)
	if made["state"] != "ready" {
		t.Errorf("it is made: %v", made)
	}
	in := func(more map[string]any) map[string]any { more["sandbox_id"] = box; return more }

	m.call("execute_python_code", in(map[string]any{"code": "x = 20"}))
	run, _ := m.call("execute_python_code", in(map[string]any{"code": "import time\nfor i in range(4):\n    print('line', i, flush=True); time.sleep(.4)\nx + 22"}))
	if run["stdout"] != "line 0\nline 1\nline 2\nline 3\n" || run["exit_code"] != 0.0 {
		t.Errorf("it ran: %v", run)
	}
	m.mu.Lock()
	progress := strings.Join(m.progress, "")
	live := len(m.progress)
	m.mu.Unlock()
	if !strings.Contains(progress, "line 0\n") || !strings.Contains(progress, "line 3\n") || live < 3 {
		t.Errorf("%d progress messages: %q", live, progress)
	}

	plot, answer := m.call("execute_python_code", in(map[string]any{"code": "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.savefig('plot.png')\nplt.show()"}))
	images, links := 0, []mcp.ResourceLink{}
	for _, c := range answer.Content {
		switch c := c.(type) {
		case mcp.ImageContent:
			images++
			if content, err := base64.StdEncoding.DecodeString(c.Data); err != nil || !bytes.HasPrefix(content, []byte("\x89PNG")) {
				t.Errorf("the image is none: %v", err)
			}
		case mcp.ResourceLink:
			links = append(links, c)
		}
	}
	if images != 1 || len(links) != 1 || links[0].Name != "plot.png" {
		t.Fatalf("%d images and the links %v", images, links)
	}
	saved := plot["artifacts"].([]any)[0].(map[string]any)
	byLink := download(t, saved["url"].(string))
	if got := readBlob(t, m, links[0].URI); !bytes.Equal(got, byLink) || !bytes.HasPrefix(got, []byte("\x89PNG")) {
		t.Errorf("the resource has %d bytes, the link %d", len(got), len(byLink))
	}

	if closed, _ := m.call("close_sandbox", in(map[string]any{})); closed["state"] != "closed" {
		t.Errorf("it is %v", closed)
	}
	if got := readBlob(t, m, links[0].URI); !bytes.Equal(got, byLink) {
		t.Error("the artifact is gone with its sandbox")
	}
}

func readBlob(t *testing.T, m *mcpCaller, uri string) []byte {
	t.Helper()
	r, err := m.client.ReadResource(t.Context(), mcp.ReadResourceRequest{Params: mcp.ReadResourceParams{URI: uri}})
	if err != nil {
		t.Fatalf("%s: %v", uri, err)
	}
	blob, _ := r.Contents[0].(mcp.BlobResourceContents)
	content, err := base64.StdEncoding.DecodeString(blob.Blob)
	testbed.Must(t, err)
	return content
}

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
		"io.modelcontextprotocol/clientCapabilities": map[string]any{"extensions": map[string]any{farmmcp.TasksExtension: map[string]any{}}},
	}
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	testbed.Must(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/mcp", strings.NewReader(string(body)))
	testbed.Must(t, err)
	for header, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name,
	} {
		r.Header.Set(header, value)
	}
	response, err := http.DefaultClient.Do(r)
	testbed.Must(t, err)
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

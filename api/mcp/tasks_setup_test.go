package mcp_test

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const taskBox = "sbx_task"

// taskFake is a farm with one sandbox. Every call that starts work returns the same job.
type taskFake struct {
	mcp.Farm
	job       wire.Job
	err       error // of calls that start or read work
	cancelErr error
	boxes     []wire.Sandbox

	waits    []time.Duration // of the calls that started work
	canceled []string
}

func (f *taskFake) start(wait time.Duration) (wire.Job, error) {
	f.waits = append(f.waits, wait)
	return f.job, f.err
}

func (f *taskFake) CreateSandbox(_ context.Context, _ wire.CreateRequest, wait time.Duration) (wire.Created, error) {
	j, err := f.start(wait)
	return wire.Created{Sandbox: wire.Sandbox{ID: taskBox, State: "ready", Image: "python"}, Job: j}, err
}

func (f *taskFake) Execute(_ context.Context, _ string, _ wire.ExecuteRequest, wait time.Duration) (wire.Job, error) {
	return f.start(wait)
}

func (f *taskFake) Command(_ context.Context, _ string, _ wire.CommandRequest, wait time.Duration) (wire.Job, error) {
	return f.start(wait)
}

func (f *taskFake) Install(_ context.Context, _ string, _ wire.PackagesRequest, wait time.Duration) (wire.Job, error) {
	return f.start(wait)
}

func (f *taskFake) Sandboxes(context.Context) ([]wire.Sandbox, error) { return f.boxes, nil }

func (f *taskFake) Job(_ context.Context, id string, _ time.Duration) (wire.Job, error) {
	if f.err != nil {
		return wire.Job{}, f.err
	}
	if id != f.job.ID {
		return wire.Job{}, farm.NotFoundf("There is no job %s.", id)
	}
	return f.job, nil
}

func (f *taskFake) Cancel(_ context.Context, id string) (wire.Job, error) {
	f.canceled = append(f.canceled, id)
	return f.job, f.cancelErr
}

// Events yields nothing and ends with its reader: the job runs for long.
func (f *taskFake) Events(ctx context.Context, _ string) iter.Seq2[wire.Event, error] {
	return func(func(wire.Event, error) bool) { <-ctx.Done() }
}

// taskJob is a job of a kind in a state, with the result of its kind once it is completed.
func taskJob(kind farm.JobKind, state farm.JobState) wire.Job {
	begun := time.Now().Add(-time.Minute).UTC()
	j := wire.Job{ID: "job_1", Kind: string(kind), SandboxID: taskBox, State: string(state), CreatedAt: begun}
	if state != farm.JobQueued {
		j.StartedAt = new(begun.Add(time.Second))
	}
	if !j.Final() {
		return j
	}
	j.FinishedAt = new(begun.Add(2 * time.Second))
	switch {
	case state != farm.JobCompleted:
		j.Error = &wire.JobError{Code: "unavailable", Message: "It went wrong."}
	case kind == farm.KindExecute:
		j.Result = &wire.Result{Execute: &wire.ExecuteResult{Stdout: "out\n", Results: []wire.Rich{{Mime: "text/plain", Data: "42"}}, Artifacts: []wire.Artifact{{ID: "art_1", Name: "a.txt", Path: "a.txt", Size: 3, ContentType: "text/plain", URL: "http://x/a"}}}}
	case kind == farm.KindCommand:
		j.Result = &wire.Result{Command: &wire.CommandResult{Results: []wire.CommandOutcome{{Stdout: "ls\n", ExitCode: 3}}}}
	case kind == farm.KindInstall:
		j.Result = &wire.Result{Install: &wire.InstallResult{Packages: []wire.InstalledOne{{Name: "six", Requested: "six", Version: "1.16", Status: "installed"}}}}
	}
	return j
}

// taskKinds are the tools whose calls become tasks, each with valid arguments.
func taskKinds() map[farm.JobKind]taskTool {
	return map[farm.JobKind]taskTool{
		farm.KindCreate:  {"create_sandbox", `{}`},
		farm.KindExecute: {"execute_python_code", `{"sandbox_id":"sbx_task","code":"1"}`},
		farm.KindCommand: {"execute_terminal_command", `{"sandbox_id":"sbx_task","command":"ls"}`},
		farm.KindInstall: {"install_packages_in_sandbox", `{"sandbox_id":"sbx_task","package_names":["six"],"wait_seconds":40}`},
	}
}

type taskTool struct{ name, args string }

// taskBench is a farm and its server.
type taskBench struct {
	t    *testing.T
	url  string
	fake *taskFake
}

func newTaskBench(t *testing.T, fake *taskFake) *taskBench {
	t.Helper()
	fake.boxes = []wire.Sandbox{{ID: taskBox, State: "ready", Image: "python"}}
	nobody := &taskFake{}
	type isOther struct{}
	s, err := mcp.New(mcp.Options{
		TaskTTL: time.Hour,
		Farm: func(ctx context.Context) mcp.Farm {
			if ctx.Value(isOther{}) != nil {
				return nobody
			}
			return fake
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Caller") == "other" {
			r = r.WithContext(context.WithValue(r.Context(), isOther{}, true))
		}
		s.Handler().ServeHTTP(w, r)
	}))
	t.Cleanup(served.Close)
	return &taskBench{t: t, url: served.URL, fake: fake}
}

// taskReply is the answer to a request.
type taskReply struct {
	status int
	Result map[string]any `json:"result"`
	Error  struct {
		Code    int            `json:"code"`
		Message string         `json:"message"`
		Data    map[string]any `json:"data"`
	} `json:"error"`
}

const tasksDeclared = `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`

// ask sends a request of 2026-07-28; change may make it invalid.
func (b *taskBench) ask(method, name, params, capabilities string, change ...func(http.Header)) taskReply {
	b.t.Helper()
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":` + capabilities + `}`
	return b.post(`{"jsonrpc":"2.0","id":7,"method":"`+method+`","params":{`+params+`,`+meta+`}}`, map[string]string{
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name,
	}, change...)
}

func (b *taskBench) post(body string, headers map[string]string, change ...func(http.Header)) taskReply {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, b.url, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	for _, c := range change {
		c(r.Header)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	reply := taskReply{status: response.StatusCode}
	if err := json.NewDecoder(response.Body).Decode(&reply); err != nil {
		b.t.Fatalf("%s: %v", response.Status, err)
	}
	return reply
}

func (b *taskBench) call(tool taskTool, capabilities string, change ...func(http.Header)) taskReply {
	b.t.Helper()
	return b.ask("tools/call", tool.name, `"name":"`+tool.name+`","arguments":`+tool.args, capabilities, change...)
}

func (b *taskBench) task(method string, change ...func(http.Header)) taskReply {
	b.t.Helper()
	return b.ask(method, "job_1", `"taskId":"job_1"`, tasksDeclared, change...)
}

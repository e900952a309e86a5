package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// toolAnswer is the answer of a tool on the wire.
type toolAnswer struct {
	Result struct {
		Content []struct {
			Type, Text, URI, Name string
		}
		StructuredContent map[string]any
		IsError           bool
	}
	Error *struct {
		Code    int
		Message string
	}
}

func (a toolAnswer) text() string {
	if len(a.Result.Content) == 0 {
		return ""
	}
	return a.Result.Content[0].Text
}

func (a toolAnswer) field(name string) string {
	s, _ := a.Result.StructuredContent[name].(string)
	return s
}

func message(method string, params map[string]any) map[string]any {
	return map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
}

// tool calls a tool through the whole server.
func (b *bundle) tool(name string, args map[string]any, headers ...string) toolAnswer {
	b.t.Helper()
	return get[toolAnswer](b, http.StatusOK, "POST", "/mcp", message("tools/call", map[string]any{"name": name, "arguments": args}), append(headers, "Content-Type", "application/json")...)
}

func TestMCPNeedsAKey(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	body := message("tools/list", nil)
	for _, headers := range [][]string{nil, {"Authorization", "Bearer wrong"}, {"X-API-Key", "wrong"}} {
		answer, content := b.do("POST", "/mcp", body, append(headers, "Content-Type", "application/json")...)
		if answer.StatusCode != http.StatusUnauthorized || !strings.HasPrefix(answer.Header.Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%v: %d %v %s", headers, answer.StatusCode, answer.Header, content)
		}
	}
	if answer, _ := b.do("GET", "/.well-known/oauth-protected-resource/mcp", nil); answer.StatusCode == http.StatusOK {
		t.Error("there is metadata of an authorization server that does not exist")
	}
	if answer, content := b.do("POST", "/mcp", body, "Content-Type", "application/json", "Authorization", "Bearer "+key); answer.StatusCode != http.StatusOK {
		t.Errorf("%d %s", answer.StatusCode, content)
	}
}

func TestMCPGuardsOrigins(t *testing.T) {
	t.Parallel()
	trusting := func(c *api.Config, _ *api.Deps) {
		c.TrustedOrigins = []string{"https://chat.example.com", "http://localhost:6274"}
	}
	for name, b := range map[string]*bundle{"open": setup(t, trusting), "keys": setup(t, withKeys, trusting)} {
		for origin, status := range map[string]int{"https://evil.example": 403, "null": 403, "http://localhost:6274": 200, "http://localhost:6275": 403, "https://chat.example.com": 200} {
			answer, content := b.do("POST", "/mcp", message("tools/list", nil), "Content-Type", "application/json", "Origin", origin, "Authorization", "Bearer "+key)
			if answer.StatusCode != status {
				t.Errorf("%s, %s: %d %.100s", name, origin, answer.StatusCode, content)
			}
		}
	}
	b := setup(t)
	if answer, _ := b.do("POST", "/mcp", message("tools/list", nil), "Content-Type", "application/json", "Host", "evil.example"); answer.StatusCode != 403 {
		t.Errorf("another host: %d", answer.StatusCode)
	}
	if answer, _ := b.do("POST", "/v1/sandboxes", "{}", "Origin", "http://localhost:6274", "Content-Type", "application/json"); answer.StatusCode != 403 {
		t.Errorf("/v1 takes more than it did: %d", answer.StatusCode)
	}
	for _, method := range []string{"GET", "DELETE"} {
		if answer, _ := b.do(method, "/mcp", nil); answer.StatusCode != 405 || !strings.Contains(answer.Header.Get("Allow"), "POST") {
			t.Errorf("%s: %d %q", method, answer.StatusCode, answer.Header.Get("Allow"))
		}
	}
}

func TestMCPTenantsDoNotSeeEachOther(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	mine, theirs := []string{"Authorization", "Bearer " + key}, []string{"Authorization", "Bearer " + otherKey}
	box := b.tool("create_sandbox", nil, mine...).field("sandbox_id")
	run := b.tool("execute_python_code", map[string]any{"sandbox_id": box, "code": "make a.txt"}, mine...)
	job := run.field("job_id")
	if run.field("state") != "completed" || run.Result.Content[1].Type != "resource_link" {
		t.Fatalf("%+v", run)
	}
	for name, args := range map[string]map[string]any{
		"execute_python_code":         {"sandbox_id": box, "code": "print 1"},
		"execute_terminal_command":    {"sandbox_id": box, "command": "true"},
		"install_packages_in_sandbox": {"sandbox_id": box, "package_names": []string{"numpy"}},
		"check_package_status":        {"sandbox_id": box, "package_name": "numpy"},
		"get_job_result":              {"job_id": job},
		"upload_file_to_sandbox":      {"sandbox_id": box, "dest_path": "x", "content": "x"},
		"list_files":                  {"sandbox_id": box},
		"download_file":               {"sandbox_id": box, "file_path": "x"},
		"close_sandbox":               {"sandbox_id": box},
		"start_process":               {"sandbox_id": box, "command": "true"},
		"read_process":                {"sandbox_id": box, "process_id": "prc_1"},
		"stop_process":                {"sandbox_id": box, "process_id": "prc_1"},
		"get_port_url":                {"sandbox_id": box, "port": 8000},
	} {
		if got := b.tool(name, args, theirs...); !got.Result.IsError || !strings.Contains(got.text(), "There is no") {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := b.tool("list_sandboxes", nil, theirs...); strings.Contains(got.text(), box) {
		t.Errorf("it is listed: %s", got.text())
	}
	read := func(uri string, headers []string) string {
		_, content := b.do("POST", "/mcp", message("resources/read", map[string]any{"uri": uri}), append(headers, "Content-Type", "application/json")...)
		return string(content)
	}
	uri := run.Result.Content[1].URI
	if got := read(uri, theirs); !strings.Contains(got, "-32002") {
		t.Errorf("artifact: %s", got)
	}
	if got := read("sandfarm://sandboxes/"+box+"/files/x", theirs); !strings.Contains(got, "-32002") {
		t.Errorf("file: %s", got)
	}
	if got := b.tool("list_sandboxes", nil, mine...); !strings.Contains(got.text(), box) {
		t.Errorf("it is not listed: %s", got.text())
	}
}

func TestMCPWholeFlow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.tool("create_sandbox", map[string]any{"name": "mine"}).field("sandbox_id")
	b.worker.have.set(farm.Package{Name: "humanize", Version: "4.9", Manager: "pip"})
	in := func(args map[string]any) map[string]any { args["sandbox_id"] = box; return args }
	if got := b.tool("install_packages_in_sandbox", in(map[string]any{"package_names": []string{"humanize"}})); !strings.HasPrefix(got.field("job_id"), "job_") {
		t.Errorf("%+v", got)
	}
	if got := b.tool("check_package_status", in(map[string]any{"package_name": "Humanize", "wait_seconds": 10})); got.field("status") != "installed" || got.field("name") != "humanize" {
		t.Errorf("%+v", got)
	}
	if got := b.tool("execute_python_code", in(map[string]any{"code": "print hello"})); got.field("stdout") != "hello\n" {
		t.Errorf("%+v", got)
	}
	if got := b.tool("execute_terminal_command", in(map[string]any{"command": "x"})); got.field("stdout") != "ran\n" {
		t.Errorf("%+v", got)
	}
	long := strings.Repeat("n\n", 2000)
	if got := b.tool("upload_file_to_sandbox", in(map[string]any{"dest_path": "in/städte.csv", "content": long})); got.field("path") != "in/städte.csv" {
		t.Errorf("%+v", got)
	}
	if got := b.tool("list_files", in(map[string]any{"path": "in"})); !strings.Contains(got.text(), "in/städte.csv (4000 bytes)") {
		t.Errorf("%+v", got)
	}
	if got := b.tool("download_file", in(map[string]any{"file_path": "in/städte.csv"})); !strings.Contains(got.text(), long) || got.field("url") == "" {
		t.Errorf("%+v", got)
	}
	if got := b.tool("close_sandbox", in(map[string]any{})); got.field("state") != "closed" {
		t.Errorf("%+v", got)
	}
	if got := b.tool("execute_python_code", in(map[string]any{"code": "print hello"})); !got.Result.IsError || !strings.Contains(got.text(), "closed") {
		t.Errorf("%+v", got)
	}
	_, figures := b.do("GET", "/metrics", nil)
	if !strings.Contains(string(figures), `route="/mcp"`) {
		t.Error("the route has no metrics")
	}
}

// TestMCPLiveOutput also has a second caller, which does not wait for the first.
func TestMCPLiveOutput(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box, other := b.sandbox(), b.sandbox()
	call := message("tools/call", map[string]any{
		"name": "execute_python_code", "arguments": map[string]any{"sandbox_id": box, "code": "block"}, "_meta": map[string]any{"progressToken": "mine"},
	})
	body, err := json.Marshal(call)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), "POST", b.web.URL+"/mcp", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	lines := bufio.NewScanner(answer.Body)
	next := func() string {
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				return data
			}
		}
		t.Fatalf("the stream ended: %v", lines.Err())
		return ""
	}
	if got := next(); !strings.Contains(got, `"progressToken":"mine"`) || !strings.Contains(got, "begun") {
		t.Errorf("progress is %s", got)
	}
	if got := b.tool("execute_python_code", map[string]any{"sandbox_id": other, "code": "print at once"}); got.field("stdout") != "at once\n" {
		t.Errorf("%+v", got)
	}
	close(b.worker.gate)
	if got := next(); !strings.Contains(got, `"state":"completed"`) {
		t.Errorf("answer is %s", got)
	}
}

func TestMCPCallerDisconnects(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	body, err := json.Marshal(message("tools/call", map[string]any{"name": "execute_python_code", "arguments": map[string]any{"sandbox_id": box, "code": "block"}}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		request, err := http.NewRequestWithContext(ctx, "POST", b.web.URL+"/mcp", strings.NewReader(string(body)))
		if err != nil {
			return
		}
		request.Header.Set("Content-Type", "application/json")
		if answer, err := http.DefaultClient.Do(request); err == nil {
			_ = answer.Body.Close()
		}
	}()
	var job wire.Job
	for until := time.Now().Add(10 * time.Second); job.State != "running"; {
		list := get[wire.List[wire.Job]](b, 200, "GET", "/v1/jobs?kind=execute", nil)
		if len(list.Items) == 1 {
			job = list.Items[0]
		}
		if time.Now().After(until) {
			t.Fatal("the job does not run")
		}
	}
	hangUp()
	<-gone
	if got := b.tool("get_job_result", map[string]any{"job_id": job.ID}); got.field("state") != "running" {
		t.Errorf("it does not go on: %+v", got)
	}
	close(b.worker.gate)
	if got := b.tool("get_job_result", map[string]any{"job_id": job.ID, "wait_seconds": 10}); got.field("state") != "completed" {
		t.Errorf("%+v", got)
	}
}

// idle takes in jobs that make sandboxes, which no worker begins.
type idle struct{ *fakeWorker }

func (i idle) Submit(ctx context.Context, a store.Accept) (store.Accepted, error) {
	if a.Job.Kind == farm.KindCreate {
		return i.Accept(ctx, a)
	}
	return i.fakeWorker.Submit(ctx, a)
}

// A toolset without a list of sandboxes does not leave one behind whose caller has left while it was made.
func TestASandboxWhoseCallerHasLeftIsClosed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	server, err := api.New(api.Config{}, api.Deps{Blobs: b.blobs, Queues: depths{}, Store: b.store, Submitter: idle{b.worker}, Logger: b.logger()})
	testbed.Must(t, err)
	t.Cleanup(server.Stop)
	text, err := json.Marshal(message("tools/call", map[string]any{"name": "create_python_env", "arguments": map[string]any{}}))
	testbed.Must(t, err)
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	request := httptest.NewRequestWithContext(ctx, "POST", "http://127.0.0.1/mcp/python-env", bytes.NewReader(text))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, text/event-stream")
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		server.Handler().ServeHTTP(httptest.NewRecorder(), request)
	}()
	boxes := func(query string) int {
		return len(get[wire.List[wire.Sandbox]](b, 200, "GET", "/v1/sandboxes"+query, nil).Items)
	}
	testbed.Until(t, "the sandbox waits", func() bool { return boxes("") == 1 })
	hangUp()
	<-gone
	testbed.Until(t, "the sandbox is closed", func() bool { return boxes("?state=closed") == 1 })
}

// A server that stops ends the waits of its callers.
func TestMCPStopsAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	begun := time.Now()
	go func() {
		for list := (wire.List[wire.Job]{}); len(list.Items) == 0 && t.Context().Err() == nil; {
			list = get[wire.List[wire.Job]](b, 200, "GET", "/v1/jobs?kind=execute&state=running", nil)
		}
		b.server.Stop()
	}()
	got := b.tool("execute_python_code", map[string]any{"sandbox_id": box, "code": "block", "wait_seconds": 50})
	if took := time.Since(begun); took >= 50*time.Second || // the whole wait
		got.field("state") != "running" || !strings.Contains(got.text(), "get_job_result") {
		t.Errorf("after %s: %+v", took, got)
	}
	close(b.worker.gate)
}

func TestMCPLargeBodies(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.sandbox()
	ten := strings.Repeat("#", 10<<20-1)
	if got := b.tool("execute_python_code", map[string]any{"sandbox_id": box, "code": "x" + ten}); got.field("state") != "completed" {
		t.Errorf("10 MiB of code: %.300s", got.text())
	}
	if got := b.tool("execute_python_code", map[string]any{"sandbox_id": box, "code": "x#" + ten}); !got.Result.IsError || !strings.Contains(got.text(), "code has 10485761 bytes") {
		t.Errorf("a byte more: %.300s", got.text())
	}
	answer, content := b.do("POST", "/mcp", strings.Repeat(" ", 16<<20)+"{}", "Content-Type", "application/json")
	if answer.StatusCode != http.StatusRequestEntityTooLarge || !strings.Contains(string(content), "16777216") {
		t.Errorf("over the limit: %d %s", answer.StatusCode, content)
	}
}

// Revision 2025-03-26 has batches, which other revisions have not: the refusal says so.
func TestMCPRefusesBatches(t *testing.T) {
	t.Parallel()
	b := setup(t)
	answer, content := b.do("POST", "/mcp", ` [{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"ping"}]`, "Content-Type", "application/json", "MCP-Protocol-Version", "2025-03-26")
	if answer.StatusCode != http.StatusBadRequest || !strings.Contains(string(content), "no JSON-RPC batches") {
		t.Errorf("%d %s", answer.StatusCode, content)
	}
}

// weighed is an answer that asks how much memory is held while it is written.
type weighed struct {
	*httptest.ResponseRecorder
	held func()
}

func (w weighed) Write(p []byte) (int, error) {
	w.held()
	return w.ResponseRecorder.Write(p)
}

// weigh calls a tool and gives what is held while its answer is written.
func (b *bundle) weigh(memory *budget.Budget, path string, body any) (answer weighed, held int64) {
	b.t.Helper()
	testbed.Until(b.t, "nothing is held", func() bool { return memory.Stats().Used == 0 })
	text, err := json.Marshal(body)
	testbed.Must(b.t, err)
	request := httptest.NewRequestWithContext(b.t.Context(), "POST", "http://127.0.0.1"+path, bytes.NewReader(text))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, text/event-stream")
	answer = weighed{httptest.NewRecorder(), func() { held = memory.Stats().Used }}
	b.server.Handler().ServeHTTP(answer, request)
	return answer, held
}

// Of a file, its content stays charged alone: what its job was read for does not, once the next job runs.
func TestOnlyTheContentOfAFileStaysCharged(t *testing.T) {
	t.Parallel()
	var memory *budget.Budget
	b := setup(t, withMemory(&memory))
	b.worker.files.inline = 1 << 20
	box := b.sandbox()
	const size = 300 << 10
	b.do("PUT", "/v1/sandboxes/"+box+"/files/a.png", bytes.Repeat([]byte{0xff}, size))
	answer, held := b.weigh(memory, "/mcp", message("tools/call", map[string]any{"name": "download_file", "arguments": map[string]any{"sandbox_id": box, "file_path": "a.png"}}))
	if answer.Code != http.StatusOK || answer.Body.Len() < size || held < size*budget.BodyWeight || held > size*budget.BodyWeight+budget.SmallBytes {
		t.Errorf("%d bytes are held while %d %.200s is written", held, answer.Code, answer.Body)
	}
}

// What is read for an answer is charged until the answer is written, also if another job runs in between.
func TestWhatIsReadForAnAnswerIsCharged(t *testing.T) {
	t.Parallel()
	var memory *budget.Budget
	b := setup(t, withMemory(&memory))
	box := b.sandbox()
	content := bytes.Repeat([]byte{0xff}, 300<<10)
	b.do("PUT", "/v1/sandboxes/"+box+"/files/a.png", content)
	job := get[wire.Job](b, http.StatusOK, "POST", "/v1/sandboxes/"+box+"/execute?wait=20", `{"code":"print 1"}`)
	a := farm.Artifact{
		ID: farm.ArtifactID(job.ID, "a.png"), Tenant: access.DefaultTenant, SandboxID: box, JobID: job.ID, Name: "a.png", Path: "a.png",
		Size: int64(len(content)), ContentType: "image/png", Key: "artifacts/a.png", CreatedAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour),
	}
	testbed.Must(t, b.store.AddArtifacts(t.Context(), 0, []farm.Artifact{a}))
	_, err := b.blobs.Put(t.Context(), a.Key, bytes.NewReader(content), -1, blob.PutOptions{})
	testbed.Must(t, err)
	for name, call := range map[string]struct {
		path string
		body map[string]any
	}{
		"artifact":      {"/mcp", message("resources/read", map[string]any{"uri": "sandfarm://artifacts/" + a.ID})},
		"file":          {"/mcp", message("resources/read", map[string]any{"uri": "sandfarm://sandboxes/" + box + "/files/a.png"})},
		"download_file": {"/mcp", message("tools/call", map[string]any{"name": "download_file", "arguments": map[string]any{"sandbox_id": box, "file_path": "a.png"}})},
		"toolset":       {"/mcp/notebook", message("tools/call", map[string]any{"name": "download_file", "arguments": map[string]any{"sandbox_id": box, "file_path": "a.png"}})},
	} {
		answer, held := b.weigh(memory, call.path, call.body)
		if answer.Code != http.StatusOK || answer.Body.Len() < len(content) || held < int64(len(content))*budget.BodyWeight {
			t.Errorf("%s: %d bytes are held while %d %.200s is written", name, held, answer.Code, answer.Body)
		}
	}
}

package mcp_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	protocol "github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
)

func TestMistakesNameTheParameter(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	run := func(args map[string]any) map[string]any {
		out := map[string]any{"sandbox_id": "sbx_1", "code": "1"}
		for k, v := range args {
			out[k] = v
		}
		return out
	}
	for name, c := range map[string]struct {
		tool string
		args any
		want []string
	}{
		"Missing":          {"execute_python_code", map[string]any{"sandbox_id": "sbx_1"}, []string{"code is missing: give the code, up to 10 MiB."}},
		"MissingAll":       {"execute_python_code", nil, []string{"sandbox_id is missing: give the one from create_sandbox."}},
		"NullIsMissing":    {"execute_python_code", run(map[string]any{"code": nil}), []string{"code is missing"}},
		"Unknown":          {"execute_python_code", run(map[string]any{"timeout": 3}), []string{`"timeout"`, "timeout_seconds", "code (required)"}},
		"NumberForText":    {"execute_python_code", run(map[string]any{"code": 42}), []string{"code must be a text", "number 42"}},
		"TextForNumber":    {"execute_python_code", run(map[string]any{"timeout_seconds": "soon"}), []string{"timeout_seconds must be a number", `"soon"`}},
		"HalfASecond":      {"execute_python_code", run(map[string]any{"timeout_seconds": 0.5}), []string{"timeout_seconds is 0.5", "whole"}},
		"HugeNumber":       {"execute_python_code", run(map[string]any{"timeout_seconds": 1e300}), []string{"timeout_seconds", "whole"}},
		"TextForFlag":      {"execute_python_code", run(map[string]any{"auto_install": "yes"}), []string{"auto_install must be true or false"}},
		"WaitTooLong":      {"execute_python_code", run(map[string]any{"wait_seconds": 50.5}), []string{"wait_seconds is 50.5", "0 to 50"}},
		"WaitBelowZero":    {"get_job_result", map[string]any{"job_id": "job_1", "wait_seconds": -1}, []string{"wait_seconds is -1"}},
		"TextForList":      {"install_packages_in_sandbox", map[string]any{"sandbox_id": "sbx_1", "package_names": "numpy"}, []string{"package_names must be an array"}},
		"NumberInList":     {"install_packages_in_sandbox", map[string]any{"sandbox_id": "sbx_1", "package_names": []any{"a", 1}}, []string{"package_names[1]"}},
		"NotOfTheEnum":     {"create_sandbox", map[string]any{"network": "wifi"}, []string{`network is "wifi"`, "packages"}},
		"ArgumentsNoObj":   {"create_sandbox", []any{1}, []string{"object"}},
		"NothingToUpload":  {"upload_file_to_sandbox", map[string]any{"sandbox_id": "sbx_1", "dest_path": "x"}, []string{"content is missing"}},
		"BothContents":     {"upload_file_to_sandbox", map[string]any{"sandbox_id": "sbx_1", "dest_path": "x", "content": "a", "content_base64": "YQ=="}, []string{"content_base64, not both"}},
		"NoBase64":         {"upload_file_to_sandbox", map[string]any{"sandbox_id": "sbx_1", "dest_path": "x", "content_base64": "%%"}, []string{"content_base64 is not base64"}},
		"NoDestination":    {"upload_file_to_sandbox", map[string]any{"sandbox_id": "sbx_1", "content": "a"}, []string{"dest_path is missing"}},
		"DirWithoutName":   {"upload_file_to_sandbox", map[string]any{"sandbox_id": "sbx_1", "content": "a", "dest_path": "in/"}, []string{"dest_path", "name of the file"}},
		"FileOfTheCaller":  {"upload_file_to_sandbox", map[string]any{"sandbox_id": "sbx_1", "local_file_path": "/etc/passwd"}, []string{"local_file_path", "content_base64"}},
		"NoPackages":       {"check_packages_installation_status", map[string]any{"sandbox_id": "sbx_1", "package_names": []any{}}, []string{"package_names has 0"}},
		"UnknownSandbox":   {"execute_python_code", run(nil), []string{`sandbox "sbx_1"`, "list_sandboxes"}},
		"UnknownJob":       {"get_job_result", map[string]any{"job_id": "job_1"}, []string{`job "job_1"`, "job_id"}},
		"UnknownFile":      {"download_file", map[string]any{"sandbox_id": "sbx_1", "file_path": "no.txt"}, []string{"no.txt", "list_files"}},
		"LongTextIsCutOff": {"execute_python_code", run(map[string]any{strings.Repeat("x", 1<<20): 1}), []string{"xxx…"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := b.client(modern)
			r, err := client.CallTool(t.Context(), protocol.CallToolRequest{Params: protocol.CallToolParams{Name: c.tool, Arguments: c.args}})
			if err != nil {
				t.Fatal(err)
			}
			b.conforms(client, c.tool, r)
			for _, want := range c.want {
				if !r.IsError || !strings.Contains(textOf(r), want) || len(textOf(r)) > 2000 {
					t.Errorf("isError %t, want %q in: %.300s", r.IsError, want, textOf(r))
				}
			}
		})
	}
}

// Some models write numbers as texts.
func TestNumbersMayBeTexts(t *testing.T) {
	t.Parallel()
	var got []int
	b := setup(t, &fakeFarm{ExecuteFunc: func(_ context.Context, id string, r wire.ExecuteRequest, wait time.Duration) (wire.Job, error) {
		got = append(got, *r.TimeoutSeconds, int(wait.Milliseconds()))
		return wire.Job{ID: "job_1", SandboxID: id, State: "queued"}, nil
	}})
	for text, ok := range map[string]bool{"10": true, "10.5": false, "NaN": false, "Inf": false, "": false, "ten": false} {
		r := b.call("execute_python_code", map[string]any{"sandbox_id": "sbx_1", "code": "1", "timeout_seconds": text, "wait_seconds": "0.5"})
		if r.IsError == ok {
			t.Errorf("%q: %s", text, textOf(r))
		}
	}
	if !slices.Equal(got, []int{10, 500}) {
		t.Error(got)
	}
}

func TestUnknownToolIsAnErrorOfTheProtocol(t *testing.T) {
	t.Parallel()
	b := setup(t, &fakeFarm{})
	for _, era := range eras() {
		_, err := b.client(era).CallTool(t.Context(), protocol.CallToolRequest{Params: protocol.CallToolParams{Name: "no_such_tool"}})
		if err == nil || !strings.Contains(err.Error(), "no_such_tool") {
			t.Errorf("%s: %v", era, err)
		}
	}
}

// Two displayed values used to look like one: the HTML of b was left out because a, another value, had a plain text.
func TestDisplayedValuesAreSeparated(t *testing.T) {
	t.Parallel()
	r := python(setup(t, executed(wire.ExecuteResult{Results: []wire.Rich{
		{Display: 0, Mime: "image/png", Data: b64([]byte("\x89PNG a"))},
		{Display: 0, Mime: "text/plain", Data: "<Figure a>"},
		{Display: 1, Mime: "image/png", Data: b64([]byte("\x89PNG b"))},
		{Display: 1, Mime: "text/html", Data: "<b>b</b>"},
		{Display: 2, Mime: "text/plain", Data: "42"},
		{Display: 2, Mime: "text/html", Data: "<i>42</i>"},
	}})), nil)
	for _, want := range []string{
		"result 1 (text/plain):\n<Figure a>\nresult 1 is image 1 of this answer.\n",
		"result 2 (text/html):\n<b>b</b>\nresult 2 is image 2 of this answer.\n",
		"result 3 (text/plain):\n42\n",
	} {
		if !strings.Contains(textOf(r), want) {
			t.Errorf("the text lacks %q:\n%s", want, textOf(r))
		}
	}
	if strings.Contains(textOf(r), "<i>") {
		t.Errorf("a value is in the text twice:\n%s", textOf(r))
	}
	if got := len(blocksOf[protocol.ImageContent](r)); got != 2 {
		t.Errorf("%d images", got)
	}
	want := []any{
		map[string]any{"display": 0.0, "mime": "text/plain", "data": "<Figure a>"},
		map[string]any{"display": 1.0, "mime": "text/html", "data": "<b>b</b>"},
		map[string]any{"display": 2.0, "mime": "text/plain", "data": "42"},
		map[string]any{"display": 2.0, "mime": "text/html", "data": "<i>42</i>"},
	}
	if diff := cmp.Diff(want, field(t, r, "results")); diff != "" {
		t.Error(diff)
	}
}

// JSON and SVG used to be in the text in base64, as on the wire.
func TestMarkupIsPlainInTheText(t *testing.T) {
	t.Parallel()
	for mime, data := range map[string]string{"application/json": `{"rows":3}`, "image/svg+xml": "<svg></svg>"} {
		encoded := base64.StdEncoding.EncodeToString([]byte(data))
		r := python(setup(t, executed(wire.ExecuteResult{Results: []wire.Rich{{Mime: mime, Data: encoded}}})), nil)
		if !strings.Contains(textOf(r), data) || strings.Contains(textOf(r), encoded) {
			t.Errorf("%s: %s", mime, textOf(r))
		}
	}
}

// Bodies come from clients and models: each is answered, with JSON where there is a body, and never with an error of the server.
func FuzzBody(f *testing.F) {
	for _, seed := range []string{
		"", "{}", "[]", "null", "7", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`,
		`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"list_sandboxes","arguments":{}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"execute_python_code","arguments":{"code":1}}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, `[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":1,"method":"ping"}]`,
		`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"sandbox://../x"}}`, `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"x"}}`,
		`{"jsonrpc":"1.0","id":{},"method":7}`, strings.Repeat("[", 5000), `{"jsonrpc":"2.0","id":1e400,"method":"ping"}`, "\xff{}", `{"jsonrpc":"2.0","id":1,"result":{}}`,
	} {
		f.Add([]byte(seed))
	}
	server, err := mcp.New(mcp.Options{Farm: func(context.Context) mcp.Farm { return &fakeFarm{} }, Version: "1.2.3"})
	if err != nil {
		f.Fatal(err)
	}
	handler := server.Handler()
	f.Fuzz(func(t *testing.T, in []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1/mcp", bytes.NewReader(in))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if ctx.Err() != nil {
			t.Fatal("no answer")
		}
		if w.Code >= http.StatusInternalServerError {
			t.Fatalf("status %d: %.300s", w.Code, w.Body)
		}
		if strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") && w.Body.Len() > 0 && !json.Valid(w.Body.Bytes()) {
			t.Fatalf("no JSON: %.300q", w.Body)
		}
	})
}

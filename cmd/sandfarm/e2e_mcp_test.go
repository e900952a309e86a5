//go:build integration

package main_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mcpclient "github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// mcpUser is a client of the tools of a farm, over any transport.
type mcpUser struct {
	*mcpclient.Client
	t *testing.T

	mu       sync.Mutex
	token    mcp.ProgressToken // nil: no progress is asked for
	progress []string          // messages
}

// newMCPUser starts a client, which ends with the test. revision is that of the protocol; by default the newest one of the library.
func newMCPUser(t *testing.T, c *mcpclient.Client, err error, revision ...string) *mcpUser {
	t.Helper()
	testbed.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	u := &mcpUser{Client: c, t: t}
	c.OnNotification(func(n mcp.JSONRPCNotification) {
		message, _ := n.Params.AdditionalFields["message"].(string)
		u.mu.Lock()
		defer u.mu.Unlock()
		u.progress = append(u.progress, message)
	})
	if err := c.Start(t.Context()); err != nil && !strings.Contains(err.Error(), "already") { // over stdio it runs
		t.Fatal(err)
	}
	request := mcp.InitializeRequest{}
	request.Params.ProtocolVersion = cmp.Or(strings.Join(revision, ""), mcp.LATEST_PROTOCOL_VERSION)
	request.Params.ClientInfo = mcp.Implementation{Name: "e2e", Version: "1"}
	_, err = c.Initialize(t.Context(), request)
	testbed.Must(t, err)
	return u
}

// newMCP is a client over HTTP that asks for progress.
func newMCP(t *testing.T, url, key, revision string) *mcpUser {
	t.Helper()
	tr, err := transport.NewStreamableHTTP(url+"/mcp", transport.WithHTTPHeaders(map[string]string{"Authorization": "Bearer " + key}))
	u := newMCPUser(t, mcpclient.NewClient(tr, mcpclient.WithProtocolVersion(revision)), err, revision)
	u.token = "token"
	return u
}

// reported is what progress has told so far.
func (u *mcpUser) reported() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.progress)
}

func (u *mcpUser) ask(tool string, args map[string]any) *mcp.CallToolResult {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), 2*time.Minute)
	defer cancel()
	request := mcp.CallToolRequest{Params: mcp.CallToolParams{Name: tool, Arguments: args}}
	if u.token != nil {
		request.Params.Meta = &mcp.Meta{ProgressToken: u.token}
	}
	r, err := u.CallTool(ctx, request)
	if err != nil {
		u.t.Fatalf("%s: %v", tool, err)
	}
	return r
}

// call is a call that must not be an error; it returns the structured content.
func (u *mcpUser) call(tool string, args map[string]any) (map[string]any, *mcp.CallToolResult) {
	u.t.Helper()
	r := u.ask(tool, args)
	fields, _ := r.StructuredContent.(map[string]any)
	if r.IsError || fields == nil {
		u.t.Fatalf("%s: %s", tool, textOf(r))
	}
	return fields, r
}

func textOf(r *mcp.CallToolResult) string {
	var all strings.Builder
	for _, c := range r.Content {
		if one, ok := c.(mcp.TextContent); ok {
			all.WriteString(one.Text + "\n")
		}
	}
	return all.String()
}

func TestMCPFromCreateToClose(t *testing.T) {
	f, key := newFarmWithKey(t)
	for _, revision := range []string{mcp.ProtocolVersion20260728, mcp.ProtocolVersion20251125} {
		t.Run(revision, func(t *testing.T) {
			t.Parallel() // two clients at once
			flow(newMCP(t, f.url, key, revision))
		})
	}
}

func flow(m *mcpUser) {
	t := m.t
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
	if live := m.reported(); len(live) < 3 || !strings.Contains(strings.Join(live, ""), "line 0\n") || !strings.Contains(strings.Join(live, ""), "line 3\n") {
		t.Errorf("progress messages: %q", live)
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
	if got := m.blob(links[0].URI); !bytes.Equal(got, byLink) || !bytes.HasPrefix(got, []byte("\x89PNG")) {
		t.Errorf("the resource has %d bytes, the link %d", len(got), len(byLink))
	}

	if closed, _ := m.call("close_sandbox", in(map[string]any{})); closed["state"] != "closed" {
		t.Errorf("it is %v", closed)
	}
	if got := m.blob(links[0].URI); !bytes.Equal(got, byLink) {
		t.Error("the artifact is gone with its sandbox")
	}
}

// blob reads a resource.
func (u *mcpUser) blob(uri string) []byte {
	u.t.Helper()
	r, err := u.ReadResource(u.t.Context(), mcp.ReadResourceRequest{Params: mcp.ReadResourceParams{URI: uri}})
	if err != nil {
		u.t.Fatalf("%s: %v", uri, err)
	}
	blob, _ := r.Contents[0].(mcp.BlobResourceContents)
	content, err := base64.StdEncoding.DecodeString(blob.Blob)
	testbed.Must(u.t, err)
	return content
}

func TestStdioBridge(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	dir := t.TempDir()
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "sales.csv"), []byte("month,eur\n1,20\n2,22\n"), 0o600))
	c, err := mcpclient.NewStdioMCPClient(program, []string{"SANDFARM_URL=" + f.url, "SANDFARM_API_KEY="}, "mcp", "--root", dir)
	u := newMCPUser(t, c, err)
	made, _ := u.call("create_sandbox", map[string]any{"ttl_seconds": 600})
	box := made["sandbox_id"]
	sent, _ := u.call("upload_file_to_sandbox", map[string]any{"sandbox_id": box, "local_file_path": "sales.csv", "dest_path": "in/"})
	if sent["path"] != "in/sales.csv" || sent["size"] != 20.0 {
		t.Fatalf("upload: %v", sent)
	}
	code := "import csv\nn = sum(int(r['eur']) for r in csv.DictReader(open('in/sales.csv')))\nopen('report.txt', 'w').write(f'sum {n}\\n')\nprint(n)"
	ran, answer := u.call("execute_python_code", map[string]any{"sandbox_id": box, "code": code})
	if ran["stdout"] != "42\n" || !strings.Contains(textOf(answer), "report.txt") {
		t.Fatalf("execute: %v", ran)
	}
	to := filepath.Join(dir, "results", "report.txt")
	u.ask("download_file", map[string]any{"sandbox_id": box, "file_path": "report.txt", "local_dest_path": to})
	if content, err := os.ReadFile(to); err != nil || string(content) != "sum 42\n" {
		t.Errorf("download: %v, the file holds %q", err, content)
	}
	u.call("close_sandbox", map[string]any{"sandbox_id": box})

	t.Run("SameAsHTTP", func(t *testing.T) {
		web, err := mcpclient.NewStreamableHttpClient(f.url + "/mcp")
		testbed.Diff(t, "the tools over HTTP (-) and over stdio (+) differ", playScript(newMCPUser(t, web, err)), playScript(u))
	})
}

// TestMCPFromOutside tests one running farm with third-party programs.
func TestMCPFromOutside(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	url := f.url + "/mcp"
	t.Run("Inspector", func(t *testing.T) { inspector(t, url) })
	t.Run("Python", func(t *testing.T) {
		sdk(t, url, testbed.MCPPython, "sdk.py", map[string]string{"legacy": "2025-11-25", "auto": "2026-07-28"})
	})
	t.Run("TypeScript", func(t *testing.T) {
		sdk(t, url, testbed.MCPNode, "sdk.mjs", map[string]string{"v1": "2025-11-25", "auto": "2026-07-28"})
	})
}

// inspector lints the tools and uses them with the Inspector's command line.
func inspector(t *testing.T, url string) {
	t.Parallel()
	for _, era := range []string{"legacy", "modern"} { // a client of the modern one supports tasks
		t.Run(era, func(t *testing.T) {
			inspect := func(wantCode int, args ...string) map[string]any {
				t.Helper()
				base := []string{filepath.Join(testbed.MCPToolbox(t), testbed.MCPInspector), "--cli", url, "--transport", "http", "--protocol-era", era, "--format", "json"}
				out := testbed.MCPRun(t, nil, testbed.MCPNode, append(base, args...)...)
				if out.Code != wantCode {
					t.Fatalf("%s: exit code %d, want %d\n%s%s", args, out.Code, wantCode, out.Stdout, out.Stderr)
				}
				var message struct {
					Result map[string]any `json:"result"`
				}
				if err := json.Unmarshal([]byte(out.Stdout), &message); err != nil && wantCode == 0 {
					t.Fatalf("%s: %v\n%s%s", args, err, out.Stdout, out.Stderr)
				}
				return message.Result
			}
			call := func(wantCode int, tool string, args ...string) map[string]any {
				t.Helper()
				all := []string{"--method", "tools/call", "--tool-name", tool}
				for _, arg := range args {
					all = append(all, "--tool-arg", arg)
				}
				structured, _ := inspect(wantCode, all...)["structuredContent"].(map[string]any)
				return structured
			}
			tools, _ := inspect(0, "--method", "tools/list", "--strict")["tools"].([]any)
			if len(tools) < 11 {
				t.Errorf("%d tools", len(tools))
			}
			box, _ := call(0, "create_sandbox", "ttl_seconds=300")["sandbox_id"].(string)
			ran := call(0, "execute_python_code", "sandbox_id="+box, "code=print(6*7)")
			if ran["stdout"] != "42\n" || ran["state"] != "completed" {
				t.Errorf("execute gave %v", ran)
			}
			const isError = 5
			call(isError, "execute_python_code", "sandbox_id="+box)
			if closed := call(0, "close_sandbox", "sandbox_id="+box); closed["state"] != "closed" {
				t.Errorf("close gave %v", closed)
			}
		})
	}
}

// seen is what a script of the SDKs reports.
type seen struct {
	Version  string   `json:"version"`
	Tools    []string `json:"tools"`
	Progress []struct {
		Value   float64 `json:"value"`
		Message string  `json:"message"`
	} `json:"progress"`
	Kept   []struct{ Data string } `json:"kept"`
	Blocks []string                `json:"blocks"`
	PNG    []bool                  `json:"png"`
	Handle string                  `json:"handle"`
	Result struct{ State, Stdout string }
	Error  struct {
		IsError bool `json:"is_error"`
		Text    string
	}
	Closed string `json:"closed"`
}

// sdk runs create, execute, result and close with an official SDK, in each mode of the script; the modes are those
// of negotiation, each with the resulting revision. They run in sequence, since each has a sandbox that draws a plot.
func sdk(t *testing.T, url, program, script string, modes map[string]string) {
	t.Parallel()
	for mode, version := range modes {
		t.Run(mode, func(t *testing.T) {
			out := testbed.MCPRun(t, nil, program, filepath.Join("..", "..", "api", "mcp", "testdata", script), url, mode)
			var s seen
			if err := json.Unmarshal([]byte(out.Stdout), &s); err != nil || out.Code != 0 {
				t.Fatalf("exit code %d, %v\n%s%s", out.Code, err, out.Stdout, out.Stderr)
			}
			const ticks = "tick 0\ntick 1\ntick 2\ntick 3\n"
			got := []any{s.Version, s.Kept, s.Blocks, s.PNG, s.Result.State, s.Result.Stdout, s.Error.IsError, s.Closed}
			want := []any{version, []struct{ Data string }{{"42"}}, []string{"text", "image", "resource_link"}, []bool{true}, "completed", ticks, true, "closed"}
			testbed.Diff(t, "", want, got)
			if !slices.Contains(s.Tools, "check_package_status") || !strings.HasPrefix(s.Error.Text, "code is missing") {
				t.Errorf("tools %v, error %q", s.Tools, s.Error.Text)
			}
			if s.Handle != "queued" && s.Handle != "running" {
				t.Errorf("a call that may not wait gave state %s", s.Handle)
			}
			var progress strings.Builder // the lines of the slow run
			for _, p := range s.Progress {
				progress.WriteString(strings.Join(regexp.MustCompile(`tick \d\n`).FindAllString(p.Message, -1), ""))
			}
			testbed.Diff(t, "the progress", ticks, progress.String())
		})
	}
}

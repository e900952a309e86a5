//go:build integration

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	mcpclient "github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// stdio is an MCP client of a `sandfarm mcp` that it started.
type stdio struct {
	*mcpclient.Client
	t *testing.T
}

// bridge starts `sandfarm mcp` for the farm at url, with these roots.
func bridge(t *testing.T, url string, roots ...string) *stdio {
	t.Helper()
	args := []string{"mcp"}
	for _, root := range roots {
		args = append(args, "--root", root)
	}
	c, err := mcpclient.NewStdioMCPClient(program, []string{"SANDFARM_URL=" + url, "SANDFARM_API_KEY="}, args...)
	testbed.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	initialize(t, c)
	return &stdio{c, t}
}

func initialize(t *testing.T, c *mcpclient.Client) {
	t.Helper()
	request := mcp.InitializeRequest{}
	request.Params.ProtocolVersion = mcp.LATEST_PROTOCOL_VERSION
	request.Params.ClientInfo = mcp.Implementation{Name: "e2e", Version: "1"}
	_, err := c.Initialize(t.Context(), request)
	testbed.Must(t, err)
}

// caller calls tools through a client.
func caller(c *mcpclient.Client) toolCaller {
	return func(ctx context.Context, tool string, args map[string]any) (*mcp.CallToolResult, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		request := mcp.CallToolRequest{}
		request.Params.Name, request.Params.Arguments = tool, args
		return c.CallTool(ctx, request)
	}
}

// tool calls a tool and returns its text and its structured content.
func (s *stdio) tool(name string, args map[string]any) (text string, fields map[string]any, failed bool) {
	s.t.Helper()
	result, err := caller(s.Client)(s.t.Context(), name, args)
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	for _, c := range result.Content {
		if one, ok := c.(mcp.TextContent); ok {
			text += one.Text
		}
	}
	encoded, err := json.Marshal(result.StructuredContent)
	if err == nil {
		err = json.Unmarshal(encoded, &fields)
	}
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	return text, fields, result.IsError
}

func TestStdioBridge(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	dir := t.TempDir()
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "sales.csv"), []byte("month,eur\n1,20\n2,22\n"), 0o600))
	s := bridge(t, f.url, dir)
	text, fields, failed := s.tool("create_sandbox", map[string]any{"ttl_seconds": 600})
	box, _ := fields["sandbox_id"].(string)
	if failed || box == "" || fields["state"] != "ready" {
		t.Fatalf("create: %s %v", text, fields)
	}

	text, fields, failed = s.tool("upload_file_to_sandbox", map[string]any{"sandbox_id": box, "local_file_path": "sales.csv", "dest_path": "in/"})
	if failed || fields["path"] != "in/sales.csv" || fields["size"] != 20.0 {
		t.Fatalf("upload: %s %v", text, fields)
	}
	code := "import csv\nn = sum(int(r['eur']) for r in csv.DictReader(open('in/sales.csv')))\nopen('report.txt', 'w').write(f'sum {n}\\n')\nprint(n)"
	text, fields, failed = s.tool("execute_python_code", map[string]any{"sandbox_id": box, "code": code})
	if failed || fields["stdout"] != "42\n" || !strings.Contains(text, "report.txt") {
		t.Fatalf("execute: %s %v", text, fields)
	}
	to := filepath.Join(dir, "results", "report.txt")
	text, _, failed = s.tool("download_file", map[string]any{"sandbox_id": box, "file_path": "report.txt", "local_dest_path": to})
	content, err := os.ReadFile(to)
	if failed || err != nil || string(content) != "sum 42\n" {
		t.Errorf("download: %s, %v, the file holds %q", text, err, content)
	}

	if text, fields, failed := s.tool("close_sandbox", map[string]any{"sandbox_id": box}); failed || fields["sandbox_id"] != box {
		t.Errorf("close: %s %v", text, fields)
	}

	t.Run("SameAsHTTP", func(t *testing.T) {
		web, err := mcpclient.NewStreamableHttpClient(f.url + "/mcp")
		testbed.Must(t, err)
		t.Cleanup(func() { _ = web.Close() })
		testbed.Must(t, web.Start(t.Context()))
		initialize(t, web)
		testbed.Diff(t, "the tools over HTTP (-) and over stdio (+) differ", playScript(t, caller(web)), playScript(t, caller(s.Client)))
	})
}

// TestStdioBridgeWritesOnlyTheProtocol checks that stdout has one message on each line, and that the process ends with its input.
func TestStdioBridgeWritesOnlyTheProtocol(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, program, "mcp")
	c.Env = append(os.Environ(), "SANDFARM_URL=http://"+testbed.Address(t))
	c.Dir = t.TempDir()
	c.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"pipe","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"list_sandboxes","arguments":{}}}`) // no end of line
	var out, stderr bytes.Buffer
	c.Stdout, c.Stderr = &out, &stderr
	if err := c.Run(); err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	answered := map[string]bool{}
	for line := range strings.Lines(out.String()) {
		var message struct {
			Version string          `json:"jsonrpc"`
			ID      json.RawMessage `json:"id"`
		}
		if err := json.Unmarshal([]byte(line), &message); err != nil || message.Version != "2.0" {
			t.Errorf("%v: stdout holds %q", err, line)
		}
		answered[string(message.ID)] = true
	}
	if !answered["1"] || !answered["2"] || stderr.Len() == 0 {
		t.Errorf("stdout: %s\nstderr: %s", out.String(), stderr.String())
	}
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

//go:build integration

package main_test

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// TestMCPFromOutside tests one running farm with third-party programs.
func TestMCPFromOutside(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	url := f.url + "/mcp"
	t.Run("Conformance", func(t *testing.T) { genericScenarios(t, url) })
	t.Run("Inspector", func(t *testing.T) { inspector(t, url) })
	t.Run("Python", func(t *testing.T) {
		sdk(t, url, testbed.MCPPython, "sdk.py", map[string]string{"legacy": "2025-11-25", "auto": "2026-07-28"})
	})
	t.Run("TypeScript", func(t *testing.T) {
		sdk(t, url, testbed.MCPNode, "sdk.mjs", map[string]string{"v1": "2025-11-25", "auto": "2026-07-28"})
	})
}

// genericScenarios runs those scenarios of the official runner that need no fixtures.
func genericScenarios(t *testing.T, url string) {
	t.Parallel()
	// These need a tool or a prompt of the fixtures, a list that changes, or a resource in the list.
	untestable := []string{
		"sep-2549-resources-read-caching-hints",
		"sep-2575-server-rejects-undeclared-capability", "sep-2575-missing-capability-http-400",
		"sep-2575-http-server-no-independent-requests-on-stream", "sep-2575-server-no-log-without-loglevel",
		"sep-2575-server-sends-prompts-list-changed-on-subscription", "sep-2575-server-sends-tools-list-changed-on-subscription",
	}
	for revision, names := range map[string][]string{
		"2025-11-25": {"server-initialize", "ping", "tools-list", "resources-list", "prompts-list", "dns-rebinding-protection"},
		"2026-07-28": {
			"server-stateless", "tools-list", "resources-list", "prompts-list", "caching", "sep-2164-resource-not-found", "dns-rebinding-protection",
			"http-header-validation", "server-sse-multiple-streams", "input-required-result-unsupported-methods",
		},
	} {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			scenarios, _ := testbed.MCPScenarios(t, "--url", url, "--requirements", revision)
			testbed.MCPJudge(t, scenarios, names, untestable...)
		})
	}
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
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
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
			if progress.String() != ticks {
				t.Errorf("the progress is %q", progress.String())
			}
		})
	}
}

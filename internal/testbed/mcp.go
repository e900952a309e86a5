package testbed

import (
	"bufio"
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
)

// The official conformance runner of MCP, the Inspector and the official SDKs test the MCP front end from outside. deploy/setup.sh installs them.

// mcpTimeout bounds one run of a program of the toolbox; the longest takes about 10 s on a busy machine.
const mcpTimeout = 3 * time.Minute

// MCPToolbox is the folder with Node, the runner, the Inspector and the SDKs that deploy/setup.sh installs.
func MCPToolbox(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("SANDFARM_TEST_MCP")
	if dir == "" {
		t.Fatal("SANDFARM_TEST_MCP does not name the folder with the MCP tools: run the tests with make, or `deploy/setup.sh test` and then `export SANDFARM_TEST_MCP=$(deploy/setup.sh mcp-dir)`")
	}
	return dir
}

// MCPOutput is the output of a program.
type MCPOutput struct {
	Stdout, Stderr string
	Code           int
}

// MCPRun runs a program of the toolbox to its end. It gets its own home directory, and of the environment only env.
func MCPRun(t testing.TB, env []string, name string, args ...string) MCPOutput {
	t.Helper()
	dir := MCPToolbox(t)
	ctx, cancel := context.WithTimeout(t.Context(), mcpTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, name), args...)
	cmd.Env = append([]string{
		"HOME=" + t.TempDir(), "PATH=" + filepath.Join(dir, "node", "bin") + ":" + os.Getenv("PATH"), "NO_COLOR=1", "TOOLBOX=" + dir,
	}, env...)
	cmd.WaitDelay = time.Second // its child processes may keep the streams open
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("%s %s: not over after %s\n%s%s", name, strings.Join(args, " "), mcpTimeout, stdout.String(), stderr.String())
	}
	if err != nil && cmd.ProcessState == nil {
		t.Fatalf("%s: %v", name, err)
	}
	return MCPOutput{Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
}

// Programs and packages of the toolbox.
const (
	MCPNode      = "node/bin/node"
	MCPPython    = "venv/bin/python"
	mcpRunner    = "node_modules/@modelcontextprotocol/conformance"
	MCPInspector = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
)

// MCPCheck is one check of a scenario, as the runner stores it.
type MCPCheck struct {
	ID      string `json:"id"`
	Status  string `json:"status"`
	Message string `json:"errorMessage"`
}

// MCPScenarios runs the official runner and returns the checks of each scenario, and the runner's output.
func MCPScenarios(t testing.TB, args ...string) (map[string][]MCPCheck, MCPOutput) {
	t.Helper()
	dir := t.TempDir()
	args = append([]string{filepath.Join(MCPToolbox(t), mcpRunner, "dist/index.js"), "server", "--timeout", "20000", "-o", dir}, args...)
	out := MCPRun(t, nil, MCPNode, args...)
	if _, summary, ok := strings.Cut(out.Stdout, "=== SUMMARY ==="); ok {
		out.Stdout = summary
	}
	return mcpStored(t, dir), out
}

// mcpStored reads the results that the runner has stored.
func mcpStored(t testing.TB, dir string) map[string][]MCPCheck {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "checks.json"))
	if err != nil {
		t.Fatal(err)
	}
	stamp := regexp.MustCompile(`^server-(.+)-\d{4}-\d{2}-\d{2}T.*$`)
	scenarios := map[string][]MCPCheck{}
	for _, file := range files {
		name := stamp.FindStringSubmatch(filepath.Base(filepath.Dir(file)))
		if name == nil {
			t.Fatalf("the runner stored %s, whose name is not understood", file)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var checks []MCPCheck
		if err := json.Unmarshal(data, &checks); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		scenarios[name[1]] = append(scenarios[name[1]], checks...)
	}
	return scenarios
}

// MCPRequired are the scenarios that a revision requires of servers.
func MCPRequired(t testing.TB, revision string) []string {
	t.Helper()
	return MCPListed(t, filepath.Join(MCPToolbox(t), mcpRunner, "requirements", revision+".yaml"))
}

// MCPListed reads the names that a YAML file of the runner lists for servers.
func MCPListed(t testing.TB, file string) []string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only read
	var names []string
	inside := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		switch name, isItem := strings.CutPrefix(line, "  - "); {
		case line == "server:":
			inside = true
		case inside && isItem:
			names = append(names, strings.TrimSpace(name))
		case line != "" && !strings.HasPrefix(line, " ") && !strings.HasPrefix(line, "#"):
			inside = false
		}
	}
	return names
}

// MCPJudge fails the test unless every expected scenario has run with at least one check and all its checks have passed. A check
// that the runner skipped or only warns of has not passed. Checks with an id in excused need not pass.
func MCPJudge(t testing.TB, scenarios map[string][]MCPCheck, expected []string, excused ...string) {
	t.Helper()
	if len(expected) == 0 {
		t.Fatal("no scenario is expected")
	}
	for _, name := range expected {
		passed := 0
		for _, c := range scenarios[name] {
			switch {
			case c.Status == "SUCCESS":
				passed++
			case c.Status == "INFO" || slices.Contains(excused, c.ID):
			default:
				t.Errorf("%s: %s: %s: %s", name, c.ID, c.Status, c.Message)
			}
		}
		if passed == 0 {
			t.Errorf("%s: no check has passed of %d", name, len(scenarios[name]))
		}
	}
}

// MCPWithout returns the names that are not in the other list.
func MCPWithout(names, others []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(others, n) })
}

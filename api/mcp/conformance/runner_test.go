//go:build integration

package conformance_test

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

// toolTimeout bounds one run of a program of the toolbox; the longest takes some 10 s on a machine that is busy.
const toolTimeout = 3 * time.Minute

// toolbox is the folder with Node, the runner, the Inspector and the SDKs that deploy/setup.sh brings.
func toolbox(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("SANDFARM_TEST_MCP")
	if dir == "" {
		t.Fatal("SANDFARM_TEST_MCP does not name the folder with the MCP tools: run the tests with make, or `deploy/setup.sh test` and then `export SANDFARM_TEST_MCP=$(deploy/setup.sh mcp-dir)`")
	}
	return dir
}

// runTool runs a program of the toolbox and gives what it wrote and its exit code.
func runTool(t *testing.T, env []string, name string, args ...string) (output string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), toolTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(toolbox(t), name), args...)
	home := t.TempDir()
	cmd.Env = append([]string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "NO_COLOR=1"}, env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("%s %s: not over after %s\n%s", name, strings.Join(args, " "), toolTimeout, out.String())
	}
	if err != nil && cmd.ProcessState == nil {
		t.Fatalf("%s: %v", name, err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

const (
	node        = "node/bin/node"
	conformance = "node_modules/@modelcontextprotocol/conformance"
)

// check is one check of a scenario, as the runner stores it.
type check struct {
	ID      string `json:"id"`
	Status  string `json:"status"`
	Message string `json:"errorMessage"`
}

// runScenarios runs the official runner and gives the checks of each scenario.
func runScenarios(t *testing.T, args ...string) (scenarios map[string][]check, output string, code int) {
	t.Helper()
	out := t.TempDir()
	args = append([]string{filepath.Join(toolbox(t), conformance, "dist/index.js"), "server", "--timeout", "20000", "-o", out}, args...)
	output, code = runTool(t, nil, node, args...)
	if _, summary, ok := strings.Cut(output, "=== SUMMARY ==="); ok {
		output = summary
	}
	return stored(t, out), output, code
}

var stamp = regexp.MustCompile(`^server-(.+)-\d{4}-\d{2}-\d{2}T.*$`)

// stored reads what the runner has stored.
func stored(t *testing.T, dir string) map[string][]check {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "checks.json"))
	if err != nil {
		t.Fatal(err)
	}
	scenarios := map[string][]check{}
	for _, file := range files {
		name := stamp.FindStringSubmatch(filepath.Base(filepath.Dir(file)))
		if name == nil {
			t.Fatalf("the runner stored %s, whose name is not understood", file)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var checks []check
		if err := json.Unmarshal(data, &checks); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		scenarios[name[1]] = append(scenarios[name[1]], checks...)
	}
	return scenarios
}

// listed reads the names that a YAML file of the runner lists for servers.
func listed(t *testing.T, file string) []string {
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

// judge fails the test unless every scenario that is expected has run, each of its checks has passed, and there is at
// least one: a check that the runner skipped, or only warns of, has not passed.
func judge(t *testing.T, scenarios map[string][]check, expected []string) {
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
			case c.Status == "INFO":
			default:
				t.Errorf("%s: %s: %s: %s", name, c.ID, c.Status, c.Message)
			}
		}
		if passed == 0 {
			t.Errorf("%s: no check has passed, of %d", name, len(scenarios[name]))
		}
	}
}

// without gives the names that are not in the other list.
func without(names, others []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(others, n) })
}

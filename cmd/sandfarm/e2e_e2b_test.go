//go:build integration

package main_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// e2bTimeout bounds the tests with one of E2B's SDKs, which take some 20 s, or two minutes on a busy machine.
const e2bTimeout = 6 * time.Minute

// TestE2B uses a farm by the official SDKs of E2B, for Python and for JavaScript, without a change to them.
func TestE2B(t *testing.T) {
	t.Parallel()
	byE2B(t, "SANDFARM_TEST_E2B", "e2b", "*")
}

// byE2B uses a farm by the SDKs in the folder that a variable names and a step of deploy/setup.sh makes. only is a pattern of the names of tests.
func byE2B(t *testing.T, variable, step, only string) {
	t.Helper()
	dir, node := os.Getenv(variable), os.Getenv("SANDFARM_TEST_MCP")
	if dir == "" || node == "" {
		t.Fatalf("%[1]s does not name the SDKs of E2B, or SANDFARM_TEST_MCP not the folder with Node: run the tests with make, or `deploy/setup.sh %[2]s` and then `export %[1]s=$(deploy/setup.sh %[2]s-dir) SANDFARM_TEST_MCP=$(deploy/setup.sh mcp-dir)`", variable, step)
	}
	const key, other = "key-of-acme", "key-of-rival"
	f := newFarm(t, "SANDFARM_API_KEYS=acme:"+hashOf(key)+",rival:"+hashOf(other))
	env := append(os.Environ(), "E2B_API_URL="+f.url+"/e2b", "E2B_SANDBOX_URL="+f.url+"/e2b", "E2B_API_KEY="+wire.E2BKey(key), "OTHER_KEY="+other, "PYTHONDONTWRITEBYTECODE=1")
	// The tests of JavaScript lie beside the packages that they import.
	copied := filepath.Join(t.TempDir(), "e2b")
	err := os.CopyFS(copied, os.DirFS("testdata/e2b"))
	if err == nil {
		err = os.Symlink(filepath.Join(dir, "node_modules"), filepath.Join(copied, "node_modules"))
	}
	testbed.Must(t, err)
	scripts, err := filepath.Glob(filepath.Join(copied, only+".test.mjs"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("there are no tests of JavaScript: %v", err)
	}
	modules, err := filepath.Glob("testdata/e2b/test_" + only + ".py")
	if err != nil || len(modules) == 0 {
		t.Fatalf("there are no tests of Python: %v", err)
	}
	t.Run("each", func(t *testing.T) { // the farm must not stop before both are done
		for name, command := range map[string][]string{
			"Python":     append([]string{filepath.Join(dir, "venv", "bin", "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider"}, modules...),
			"JavaScript": append([]string{filepath.Join(node, "node", "bin", "node"), "--test"}, scripts...),
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), e2bTimeout)
				defer cancel()
				run := exec.CommandContext(ctx, command[0], command[1:]...)
				run.Env, run.WaitDelay = env, 5*time.Second
				if out, err := run.CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	})
	if strings.Contains(f.out.String(), "handler panicked") { // as when a reader was closed whose sandbox had ended
		t.Error("a handler panicked")
	}
}

//go:build integration && browser

package main_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestJupyterVSCode makes the calls that VS Code's Jupyter extension makes of a server, with the library that it is built on. The extension
// itself needs VS Code.
func TestJupyterVSCode(t *testing.T) {
	t.Parallel()
	dir, node := os.Getenv("SANDFARM_TEST_JUPYTER_NODE"), os.Getenv("SANDFARM_TEST_MCP")
	if dir == "" || node == "" {
		t.Fatal("SANDFARM_TEST_JUPYTER_NODE does not name the folder of deploy/jupyter/package.json, or SANDFARM_TEST_MCP not the folder with Node: run the tests with make test-jupyter")
	}
	const key = "key-of-acme"
	sum := sha256.Sum256([]byte(key))
	f := newFarm(t, "SANDFARM_API_KEYS=acme:"+hex.EncodeToString(sum[:]))
	// The test lies beside the packages that it imports.
	copied := filepath.Join(t.TempDir(), "jupyter")
	must(t, os.CopyFS(copied, os.DirFS("testdata/jupyter-node")))
	must(t, os.Symlink(filepath.Join(dir, "node_modules"), filepath.Join(copied, "node_modules")))
	ctx, cancel := context.WithTimeout(t.Context(), jupyterTimeout)
	defer cancel()
	run := exec.CommandContext(ctx, filepath.Join(node, "node", "bin", "node"), "--test", "--test-force-exit", filepath.Join(copied, "vscode.test.mjs"))
	run.Env, run.WaitDelay = append(os.Environ(), "JUPYTER_URL="+f.url+"/jupyter/", "JUPYTER_TOKEN="+key), 5*time.Second
	if out, err := run.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

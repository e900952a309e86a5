//go:build integration

package main_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// jupyterTimeout bounds the clients of Jupyter, which take some 20 s, or minutes on a busy machine.
const jupyterTimeout = 10 * time.Minute

// TestJupyterClients uses a farm by clients of Jupyter, without a change to them. `make test-jupyter` runs all, and otherwise those run that start
// fast: those that use the farm as a gateway, and those whose kernels are local ones to them.
func TestJupyterClients(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("SANDFARM_TEST_JUPYTER")
	if dir == "" {
		t.Fatal("SANDFARM_TEST_JUPYTER does not name the clients of Jupyter: run the tests with make, or `deploy/setup.sh jupyter` and then `export SANDFARM_TEST_JUPYTER=$(deploy/setup.sh jupyter-dir)`")
	}
	which := "not every"
	if os.Getenv("SANDFARM_TEST_CLIENTS") == "all" {
		which = ""
	}
	f := newFarm(t)
	ctx, cancel := context.WithTimeout(t.Context(), jupyterTimeout)
	defer cancel()
	run := exec.CommandContext(ctx, filepath.Join(dir, "bin", "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, "testdata/jupyter")
	path := filepath.Join(dir, "bin") + string(filepath.ListSeparator) + os.Getenv("PATH") // its Python has the SDK's source, and what the kernel needs
	run.Env = append(os.Environ(), "PATH="+path, "PYTHONPATH="+absolute(t, "../../sdk/python/src"), "JUPYTER_GATEWAY_URL="+f.url+"/jupyter", "SANDFARM_PROGRAM="+program, "PYTHONDONTWRITEBYTECODE=1", "JUPYTER_PLATFORM_DIRS=1", "HOME="+t.TempDir())
	run.WaitDelay = 5 * time.Second
	if out, err := run.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

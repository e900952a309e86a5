package server_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
)

// Older systems keep their files under /app, which is a link to this directory in the images.
func TestAppResultsLinkToWorkspace(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	if to, err := os.Readlink(filepath.Join(a.Home, ".app", "results")); err != nil || to != a.Workspace {
		t.Errorf("results lead to %q, %v", to, err)
	}
}

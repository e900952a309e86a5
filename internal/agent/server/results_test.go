package server_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
)

// Older systems keep their files under /app, which images have as a link to this directory.
func TestAppResultsLeadToTheWorkspace(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	if to, err := os.Readlink(filepath.Join(a.Home, ".app", "results")); err != nil || to != a.Workspace {
		t.Errorf("results lead to %q, %v", to, err)
	}
}

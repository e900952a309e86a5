package server_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
)

func TestUseOfTheSandbox(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	if err := os.WriteFile(filepath.Join(a.Workspace, "file"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	use, err := a.Live().Use(t.Context())
	agenttest.Must(t, err)
	if use.MemoryBytes < 1<<20 || use.DiskBytes < 1<<20 {
		t.Errorf("%+v", use)
	}
}

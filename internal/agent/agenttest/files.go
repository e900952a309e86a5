package agenttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/server"
)

// StartWithFiles is StartPlain with the agent's own program, which serves files anywhere.
func StartWithFiles(tb testing.TB) *Agent {
	tb.Helper()
	return Start(tb, "/usr/local/bin:/usr/bin:/bin", func(c *server.Config) { c.Program = program(tb) })
}

var (
	building sync.Mutex
	built    string // removed by the system with its temporary files: tests of a package end at different times
)

// program builds the agent, once for all tests of a package.
func program(tb testing.TB) string {
	tb.Helper()
	building.Lock()
	defer building.Unlock()
	if built != "" {
		return built
	}
	dir, err := os.MkdirTemp("", "agentprogram")
	Must(tb, err)
	to := filepath.Join(dir, "agent")
	build := exec.CommandContext(tb.Context(), "go", "build", "-o", to, "github.com/sandfarm/sandfarm/cmd/agent") //nolint:gosec // a test's own
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("build the agent: %v\n%s", err, out)
	}
	built = to
	return built
}

package agenttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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
	built    *os.File // its name is removed, so it is gone when the last test of the package is
)

// program builds the agent, once for all tests of a package.
func program(tb testing.TB) string {
	tb.Helper()
	building.Lock()
	defer building.Unlock()
	path := func() string { return "/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + strconv.Itoa(int(built.Fd())) }
	if built != nil {
		return path()
	}
	dir, err := os.MkdirTemp("", "agentprogram")
	Must(tb, err)
	defer func() { _ = os.RemoveAll(dir) }()
	to := filepath.Join(dir, "agent")
	build := exec.CommandContext(tb.Context(), "go", "build", "-o", to, "github.com/sandfarm/sandfarm/cmd/agent") //nolint:gosec // a test's own
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("build the agent: %v\n%s", err, out)
	}
	built, err = os.Open(to)
	Must(tb, err)
	return path()
}

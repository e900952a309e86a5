package process_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// A command whose shell cannot be started is refused, as a program is.
func TestStartOfWhatIsNoProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	agenttest.Must(t, os.WriteFile(filepath.Join(dir, "bash"), []byte{0}, 0o700)) //nolint:gosec // it must be executable
	reaper := process.NewReaper(false)
	t.Cleanup(reaper.Close)
	c := process.Commands{Reaper: reaper, Workspace: dir, Image: []string{"PATH=" + dir}, Env: []string{"PATH=" + dir}}
	for what, spec := range map[string]farm.ProcessSpec{"The shell": {Command: "pwd"}, `"bash"`: {Argv: []string{"bash"}}} {
		_, err := c.Start(execution.New(farm.NewID(farm.ProcessPrefix), agent.Spec{}, 1<<16, time.Now()), spec, nil)
		if farm.CodeOf(err) != farm.CodeInvalid || !strings.HasPrefix(farm.MessageOf(err), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

package install

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
)

// An installer that got a download faster than its memory was looked at used it up on a busy machine, and the kernel was killed after it.
// It is now checked before each piece, too: the memory here is short only then.
func TestInstallerIsKilledBeforeItGetsWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	const limit = 128 << 20
	reaper := process.NewReaper(false)
	defer reaper.Close()
	var short atomic.Bool
	guard := &Guard{}
	guard.Check() // nothing is installed
	in := &installation{
		Execution: execution.New("x", agent.Spec{}, 1<<20, time.Now()),
		s: &Installer{cfg: Config{Reaper: reaper, Guard: guard}, memory: func() (held, most int64) {
			if short.Load() {
				return limit - memorySpareLeast + 1, limit
			}
			return limit - memorySpareLeast, limit
		}},
	}
	in.Begin()
	for _, piece := range []bool{false, true} {
		p, err := reaper.StartLogged(in.Execution, []string{"/bin/cat"}, nil, "/", process.Streams{Input: true})
		if err != nil {
			t.Fatal(err)
		}
		reached := in.guardMemory(p)
		guard.Check()
		if piece {
			short.Store(true)
			guard.Check()
			short.Store(false)
		}
		_ = p.Input.End() // what was not killed ends by itself
		reaper.Wait(in.Execution, p)
		if full := reached(); full != piece || (p.ExitCode() == process.ExitKilled) != piece {
			t.Errorf("memory is short %v: exit code %d, reached %v", piece, p.ExitCode(), full)
		}
		guard.Check() // the installer has ended
	}
}

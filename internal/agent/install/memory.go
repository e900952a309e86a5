package install

import (
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/process"
)

const (
	// memoryCheck is the time between two checks; an installer unpacks less than memorySpareMost in it.
	memoryCheck = 20 * time.Millisecond
	// memorySpare is the fraction of the limit that an installation must leave free, within memorySpareLeast and
	// memorySpareMost bytes.
	memorySpare      = 32
	memorySpareLeast = 8 << 20
	memorySpareMost  = 64 << 20
)

// guardMemory kills an installer before the files that it unpacks use up the sandbox's memory. Files are in memory here: they would
// remain after the out-of-memory killer has killed the installer, and it would then kill user code. The caller calls the returned
// function when the program has ended; reached reports whether it was killed.
func (in *installation) guardMemory(p *process.Logged) (reached func() bool) {
	_, limit := process.Memory()
	if limit <= 0 {
		return func() bool { return false }
	}
	done, full := make(chan struct{}), make(chan bool, 1)
	go func() {
		tick := time.NewTicker(memoryCheck)
		defer tick.Stop()
		for {
			select {
			case <-done:
				full <- false
				return
			case <-tick.C:
			}
			if !memoryShort(process.UnreclaimableMemory(), limit) {
				continue
			}
			in.s.cfg.Reaper.Signal(p.Process, syscall.SIGKILL)
			process.KillTree(p.PID, in.Mark())
			full <- true
			return
		}
	}()
	return func() bool {
		close(done)
		return <-full
	}
}

// memoryShort reports whether so little of a limit is left that an installation must end. 0 means unknown usage.
func memoryShort(held, limit int64) bool {
	return held > 0 && limit-held < min(max(limit/memorySpare, memorySpareLeast), memorySpareMost)
}

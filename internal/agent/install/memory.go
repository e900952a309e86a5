package install

import (
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/process"
)

const (
	// memoryLook is how often an installation's memory is looked at: what unpacks writes less than memorySpareMost meanwhile.
	memoryLook = 20 * time.Millisecond
	// memorySpare is the part of the memory that an installation leaves free, and memorySpareLeast and memorySpareMost the bounds of
	// what this may be.
	memorySpare      = 32
	memorySpareLeast = 8 << 20
	memorySpareMost  = 64 << 20
)

// guardMemory ends an installation's program before what it unpacks has used the sandbox's memory up: files are memory here, they
// stay when the kernel kills whom it finds, and then it finds user code. It returns what ends the watch and tells if that was done.
func (in *installation) guardMemory(p *process.Logged) (reached func() bool) {
	_, limit, _ := process.Memory()
	if limit <= 0 {
		return func() bool { return false }
	}
	done, full := make(chan struct{}), make(chan bool, 1)
	go func() {
		tick := time.NewTicker(memoryLook)
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

// memoryShort reports whether so little of a limit is left that an installation must end. What is held may be unknown: 0.
func memoryShort(held, limit int64) bool {
	return held > 0 && limit-held < min(max(limit/memorySpare, memorySpareLeast), memorySpareMost)
}

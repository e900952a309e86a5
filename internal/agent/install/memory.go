package install

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/process"
)

const (
	// memoryCheck is the time between two checks of an installer that downloads nothing; it unpacks less than memorySpareMost in it.
	memoryCheck = 20 * time.Millisecond
	// memorySpare is the fraction of the limit that an installation must leave free, within memorySpareLeast and
	// memorySpareMost bytes.
	memorySpare      = 32
	memorySpareLeast = 8 << 20
	memorySpareMost  = 64 << 20
)

// Guard ends the installer that runs before the files that it unpacks use up the sandbox's memory. Files are in memory here: they would remain
// after the out-of-memory killer has killed the installer, and it would then kill user code. The zero value guards nothing yet.
type Guard struct{ check atomic.Pointer[func()] }

// Check looks at the memory at once. It is called before an installer gets a piece of a download: on a busy machine it could otherwise unpack
// more between two checks than there is memory for.
func (g *Guard) Check() {
	if check := g.check.Load(); check != nil {
		(*check)()
	}
}

// memoryInUse returns what cannot be reclaimed of the sandbox's memory, and its limit.
func memoryInUse() (held, limit int64) {
	_, limit = process.Memory()
	return process.UnreclaimableMemory(), limit
}

// guardMemory lets the guard watch an installer. The caller calls the returned function when the program has ended; reached reports whether it
// was killed.
func (in *installation) guardMemory(p *process.Logged) (reached func() bool) {
	if _, limit := in.s.memory(); limit <= 0 {
		return func() bool { return false }
	}
	var mu sync.Mutex
	full := false
	check := func() {
		mu.Lock()
		defer mu.Unlock()
		if full || !memoryShort(in.s.memory()) {
			return
		}
		full = true
		in.s.cfg.Reaper.Signal(p.Process, syscall.SIGKILL)
		process.KillTree(p.PID, in.Mark())
	}
	done := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() {
		tick := time.NewTicker(memoryCheck)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				check()
			}
		}
	})
	in.s.cfg.Guard.check.Store(&check)
	return func() bool {
		in.s.cfg.Guard.check.Store(nil)
		close(done)
		ticking.Wait()
		mu.Lock()
		defer mu.Unlock()
		return full
	}
}

// memoryShort reports whether so little of a limit is left that an installation must end. 0 means unknown usage.
func memoryShort(held, limit int64) bool {
	return held > 0 && limit-held < min(max(limit/memorySpare, memorySpareLeast), memorySpareMost)
}

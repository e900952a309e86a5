package server

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
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
func (in *install) guardMemory(p *spawned) (reached func() bool) {
	_, limit, _ := memoryInfo()
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
			if !memoryShort(memoryHeld(), limit) {
				continue
			}
			in.s.reaper.signal(p.process, syscall.SIGKILL)
			killTree(p.pid, in.mark())
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

// memoryHeld is what the kernel cannot take back of the sandbox's memory: all but the pages of files that are on a disk. 0: unknown.
func memoryHeld() int64 {
	used, _, _ := memoryInfo()
	for _, v := range []struct{ stat, pages, tmpfs string }{
		{"/sys/fs/cgroup/memory.stat", "file", "shmem"},
		{"/sys/fs/cgroup/memory/memory.stat", "total_cache", "total_shmem"},
	} {
		if raw, err := os.ReadFile(v.stat); err == nil {
			return used - max(0, statNumber(string(raw), v.pages)-statNumber(string(raw), v.tmpfs))
		}
	}
	return used
}

// statNumber finds a number in lines of "name number", 0 where there is none.
func statNumber(text, name string) int64 {
	for row := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(row, name+" "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n
		}
	}
	return 0
}

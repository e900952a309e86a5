package server

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ticksPerSecond is the unit of times in /proc, the same on every Linux.
const ticksPerSecond = 100

// bootTicks is the time since the boot as /proc counts it.
func bootTicks() uint64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0
	}
	return uint64(now.Sec)*ticksPerSecond + uint64(now.Nsec)/(1e9/ticksPerSecond) //nolint:gosec // both are positive
}

// killStrays kills what hides from killTree: orphans that began at or after since and carry no mark of an execution or a kernel, and
// all below them. Only PID 1 knows orphans by their parent.
func (s *Server) killStrays(since uint64) {
	if !s.cfg.ReapAll || since == 0 {
		return
	}
	for range sweepRounds {
		strays := s.strays(since)
		if len(strays) == 0 {
			return
		}
		for _, pid := range strays {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(sweepPause) //nolint:forbidigo // bounded; the death of a process that is not a child gives no signal
	}
}

func (s *Server) strays(since uint64) []int {
	self, own := os.Getpid(), s.reaper.pids()
	all := processes()
	hit := map[int]bool{}
	for _, p := range all {
		if p.parent == self && !p.zombie && p.started >= since && !own[p.pid] && !anyMark(p.pid) && !s.reaper.pids()[p.pid] {
			hit[p.pid] = true
		}
	}
	return withDescendants(all, hit)
}

// anyMark reports whether a process was started by an execution or a kernel and does not hide it. What cannot be read hides.
func anyMark(pid int) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.HasPrefix(entry, []byte("SBX_EXEC=")) || bytes.HasPrefix(entry, []byte("SBX_KERNEL=")) {
			return true
		}
	}
	return false
}

// withDescendants lists the processes that are hit and all below them.
func withDescendants(all []procInfo, hit map[int]bool) []int {
	self := os.Getpid()
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !hit[p.pid] && hit[p.parent] && p.pid != self && !p.zombie {
				hit[p.pid], grown = true, true
			}
		}
	}
	pids := make([]int, 0, len(hit))
	for pid := range hit {
		pids = append(pids, pid)
	}
	return pids
}

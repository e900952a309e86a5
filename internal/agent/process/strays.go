package process

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/execution"
)

// KernelEnvName is the variable that holds the kernel's id in the environment of all processes of a kernel.
const KernelEnvName = "SBX_KERNEL"

// KillStrays kills the processes that escape KillTree: orphans that started at or after since (ticks since boot; 0: none)
// and have no mark of an execution or a kernel, and their descendants. It does nothing unless the agent is PID 1: only then are
// orphans its children.
func (r *Reaper) KillStrays(since uint64) {
	if !r.all || since == 0 {
		return
	}
	for range killRounds {
		strays := r.strays(since)
		if len(strays) == 0 {
			return
		}
		for _, pid := range strays {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(killPause) //nolint:forbidigo // bounded; the death of a process that is not a child gives no signal
	}
}

func (r *Reaper) strays(since uint64) []int {
	self, own := os.Getpid(), r.pids()
	all := processes()
	hit := map[int]bool{}
	for _, p := range all {
		if p.parent == self && !p.zombie && p.started >= since && !own[p.pid] && !anyMark(p.pid) && !r.pids()[p.pid] {
			hit[p.pid] = true
		}
	}
	return withDescendants(all, hit)
}

// anyMark reports whether the environment of a process shows that an execution or a kernel started it.
func anyMark(pid int) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.HasPrefix(entry, []byte(execution.EnvName+"=")) || bytes.HasPrefix(entry, []byte(KernelEnvName+"=")) {
			return true
		}
	}
	return false
}

// withDescendants lists the chosen processes and their descendants.
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

package process

import (
	"os"
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
		strays, unsure := r.strays(since)
		if len(strays) == 0 && !unsure {
			return
		}
		for _, pid := range strays {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(killPause) //nolint:forbidigo // bounded; the death of a process that is not a child gives no signal
	}
}

// strays lists them. unsure: there may be another one, in the middle of an exec, where it does not show whether it has a mark.
func (r *Reaper) strays(since uint64) (pids []int, unsure bool) {
	self, own := os.Getpid(), r.pids()
	all := processes()
	hit := map[int]bool{}
	for _, p := range all {
		if p.parent != self || p.zombie || p.started < since || own[p.pid] {
			continue
		}
		switch marked, known := anyMark(p.pid); {
		case !known:
			unsure = true
		case !marked && !r.pids()[p.pid]:
			hit[p.pid] = true
		}
	}
	return withDescendants(all, hit), unsure
}

// anyMark reports whether the environment of a process shows that an execution or a kernel started it.
func anyMark(pid int) (marked, known bool) {
	env, known := environment(pid)
	return hasEntry(env, execution.EnvName+"=") || hasEntry(env, KernelEnvName+"="), known
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

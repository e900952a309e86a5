package process

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/execution"
)

const (
	// killRounds bounds how often the processes are listed again, to find newly forked ones.
	killRounds = 50
	// killPause lets killed processes end before the next round.
	killPause = 2 * time.Millisecond
	// kernelThread is the flag PF_KTHREAD (linux/sched.h).
	kernelThread = 0x00200000
)

// procInfo describes a process as read from /proc.
type procInfo struct {
	pid, parent, group, session int
	zombie                      bool
	kernel                      bool   // a thread of the kernel, which has no program
	started                     uint64 // ticks since boot
	name                        string // of the program, up to 15 bytes
	cpu                         uint64 // ticks that it has used
	pages                       int64  // in memory
}

// KillTree kills the session and the group of a leader (0: none), every process whose environment has the entry mark
// ("NAME=value"; empty: none), and all their descendants, until none is left. A process that cleared its environment, left the
// session and lost its parent escapes: see Reaper.KillStrays.
func KillTree(leader int, mark string) {
	for range killRounds {
		victims, unsure := matching(leader, mark)
		if len(victims) == 0 && !unsure {
			return
		}
		for _, pid := range victims {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(killPause) //nolint:forbidigo // bounded; the death of a process that is not a child gives no signal
	}
}

// matching lists them. unsure: there may be another one, in the middle of an exec, where it does not show whether it has the mark. Where the agent
// is not PID 1, only what it started can have one: the machine starts programs all the time.
func matching(leader int, mark string) (pids []int, unsure bool) {
	self := os.Getpid()
	all := processes()
	hit, unknown := map[int]bool{}, []int{}
	for _, p := range all {
		if p.pid == self || p.zombie {
			continue
		}
		if leader > 0 && (p.session == leader || p.group == leader) {
			hit[p.pid] = true
			continue
		}
		if mark == "" {
			continue
		}
		env, known := environment(p.pid)
		if !known {
			unknown = append(unknown, p.pid)
		}
		if hasEntry(env, mark+"\x00") {
			hit[p.pid] = true
		}
	}
	if len(unknown) > 0 && self != 1 {
		own := withDescendants(all, map[int]bool{self: true})
		unknown = slices.DeleteFunc(unknown, func(pid int) bool { return !slices.Contains(own, pid) })
	}
	return withDescendants(all, hit), len(unknown) > 0
}

// processes lists all but the kernel's threads.
func processes() []procInfo {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1)
	list := make([]procInfo, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		if p, ok := parseStat(pid, string(stat)); ok && !p.kernel {
			list = append(list, p)
		}
	}
	return list
}

// parseStat parses /proc/PID/stat. The program's name may contain anything, so fields count from the last parenthesis.
func parseStat(pid int, stat string) (procInfo, bool) {
	end := strings.LastIndexByte(stat, ')')
	fields := strings.Fields(stat[end+1:])
	if len(fields) < 4 {
		return procInfo{}, false
	}
	p := procInfo{pid: pid, zombie: fields[0] == "Z" || fields[0] == "X"}
	for i, to := range []*int{&p.parent, &p.group, &p.session} {
		n, err := strconv.Atoi(fields[i+1])
		if err != nil {
			return procInfo{}, false
		}
		*to = n
	}
	if len(fields) > 6 {
		flags, _ := strconv.ParseUint(fields[6], 10, 64)
		p.kernel = flags&kernelThread != 0
	}
	if len(fields) > 19 {
		p.started, _ = strconv.ParseUint(fields[19], 10, 64)
	}
	if len(fields) > 21 {
		user, _ := strconv.ParseUint(fields[11], 10, 64)
		system, _ := strconv.ParseUint(fields[12], 10, 64)
		p.cpu = user + system
		p.pages, _ = strconv.ParseInt(fields[21], 10, 64)
	}
	if begin := strings.IndexByte(stat, '('); begin >= 0 && begin < end {
		p.name = stat[begin+1 : end]
	}
	return p, true
}

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

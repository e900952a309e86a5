package process

import (
	"bytes"
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// ticks are those of /proc in a second, on every Linux.
	ticks = 100
	// execLooks and execPause bound how long a listing waits for processes in the middle of an exec: 0.13 s.
	execLooks = 8
	execPause = time.Millisecond / 2
)

// Running lists the processes that run in the sandbox, but the agent, by pid: the first farm.MaxRunning. now is the time.
func Running(now time.Time) []farm.RunningProcess {
	up := uptime()
	all := processes()
	slices.SortFunc(all, func(a, b procInfo) int { return cmp.Compare(a.pid, b.pid) })
	out, names := []farm.RunningProcess{}, map[int]string{}
	for _, p := range all {
		if p.pid == os.Getpid() || p.zombie {
			continue
		}
		if len(out) == farm.MaxRunning {
			break
		}
		names[p.pid] = strings.ToValidUTF8(p.name, "�")
		age := up - time.Duration(p.started)*(time.Second/ticks) //nolint:gosec // ticks since boot
		out = append(out, farm.RunningProcess{
			PID: p.pid, Parent: p.parent, CPUSeconds: float64(p.cpu) / ticks, MemoryBytes: p.pages * int64(os.Getpagesize()),
			StartedAt: now.Add(-max(age, 0)).UTC().Truncate(time.Second / ticks),
		})
	}
	pause := execPause
	for look := 0; !identify(out) && look < execLooks; look++ {
		time.Sleep(pause) //nolint:forbidigo // bounded; the end of another process's exec gives no signal
		pause *= 2
	}
	for i := range out {
		if p := &out[i]; p.Command == "" { // it has wiped its arguments, or execs for long
			p.Command = "[" + names[p.PID] + "]"
			p.Owner, _ = ownerOf(p.PID)
		}
	}
	return out
}

// SignalOne sends a signal to a process of the sandbox that Running may list, and reports whether there is one with this pid.
func SignalOne(pid int, sig syscall.Signal) bool {
	for _, p := range processes() { // the agent's own threads have numbers, too, and are not listed
		if p.pid == pid && pid != os.Getpid() && !p.zombie {
			return syscall.Kill(pid, sig) == nil
		}
	}
	return false
}

// identify fills in what processes were started as, and their owners. In the middle of an exec /proc shows neither: then it reports false,
// and is called again.
func identify(all []farm.RunningProcess) (complete bool) {
	complete = true
	for i := range all {
		p := &all[i]
		if p.Command != "" {
			continue
		}
		command := commandOf(p.PID)
		owner, known := ownerOf(p.PID)
		if command == "" || !known { // known, but no command: an exec ended between the two
			complete = false
			continue
		}
		p.Command, p.Owner = command, owner
	}
	return complete
}

// uptime is the time since boot.
func uptime() time.Duration {
	text, _, _ := strings.Cut(string(procFile("uptime", maxLine)), " ")
	seconds, _ := strconv.ParseFloat(text, 64)
	return time.Duration(seconds * float64(time.Second))
}

// ownerOf finds in a process's environment what started it. known is false while that cannot be said.
func ownerOf(pid int) (owner string, known bool) {
	env, known := environment(pid)
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		name, value, _ := strings.Cut(string(entry), "=")
		switch {
		case name == execution.EnvName && (farm.ValidID(farm.ProcessPrefix, value) || farm.ValidID(farm.JobPrefix, value)):
			return value, known
		case name == KernelEnvName:
			owner = farm.OwnerKernel
		}
	}
	return owner, known
}

// commandOf is what a process was started as; empty where that is not known.
func commandOf(pid int) string {
	line := string(bytes.TrimRight(arguments(pid), "\x00"))
	text := strings.ToValidUTF8(strings.ReplaceAll(line, "\x00", " "), "�")
	for len(text) > farm.MaxRunningCommand || !utf8.ValidString(text) {
		text = text[:min(len(text)-1, farm.MaxRunningCommand)]
	}
	return text
}

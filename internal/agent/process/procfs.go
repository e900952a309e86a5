package process

import (
	"bytes"
	"cmp"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// maxLine bounds the files of /proc that hold one line.
	maxLine = 4 << 10
	// maxEnviron bounds how much of a process's environment is searched for marks: more than an exec takes (execve(2): 6 MiB).
	maxEnviron = 6 << 20
)

// procFile reads the beginning of a file of /proc; nil if it cannot be read.
func procFile(path string, limit int64) []byte {
	f, err := os.Open("/proc/" + path)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	text, _ := io.ReadAll(io.LimitReader(f, limit))
	return text
}

// arguments reads what a process was started with, each argument ended by a NUL. In the middle of an exec, and when the process has wiped
// them, they are empty.
func arguments(pid int) []byte { return procFile(strconv.Itoa(pid)+"/cmdline", maxLine) }

// environment reads the environment that a process was started with. known is false while that cannot be said: in the middle of an exec
// /proc shows neither arguments nor an environment.
func environment(pid int) (env []byte, known bool) {
	for range 2 { // an exec may end after the first look
		if env = procFile(strconv.Itoa(pid)+"/environ", maxEnviron); len(env) > 0 {
			return env, true
		}
		if len(bytes.Trim(arguments(pid), "\x00")) == 0 {
			return nil, false
		}
	}
	return nil, true
}

// hasEntry reports whether an environment has an entry that begins with prefix.
func hasEntry(env []byte, prefix string) bool {
	return bytes.HasPrefix(env, []byte(prefix)) || bytes.Contains(env, append([]byte{0}, prefix...))
}

// CPUTime is the CPU time of the sandbox since its start, by its control group. gVisor has none: there it is that of the processes that
// run now.
func CPUTime() time.Duration {
	if OnGVisor() {
		var total time.Duration
		for _, p := range processes() {
			total += time.Duration(p.cpu) * (time.Second / ticks) //nolint:gosec // ticks since the sandbox's start
		}
		return total
	}
	if text, err := readShort("/sys/fs/cgroup/cpu.stat"); err == nil {
		return time.Duration(statNumber(text, "usage_usec")) * time.Microsecond
	}
	for _, folder := range []string{"cpuacct", "cpu,cpuacct"} {
		if n := readNumber("/sys/fs/cgroup/" + folder + "/cpuacct.usage"); n > 0 {
			return time.Duration(n)
		}
	}
	return 0
}

// Memory returns the bytes that the sandbox's control group uses, and its limit. It supports control groups version 2 and 1, and gVisor,
// whose memory is that of its control group without its own. 0: unknown.
func Memory() (used, limit int64) {
	if OnGVisor() {
		return readMeminfo(meminfo)
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory.events"); err == nil {
		return readNumber("/sys/fs/cgroup/memory.current"), readNumber("/sys/fs/cgroup/memory.max")
	}
	const v1 = "/sys/fs/cgroup/memory/"
	return readNumber(v1 + "memory.usage_in_bytes"), readNumber(v1 + "memory.limit_in_bytes")
}

const meminfo = "/proc/meminfo"

// OnGVisor reports whether the kernel is gVisor's. It has no control groups and ends no process for its memory: at its limit, Linux ends
// the whole sandbox.
func OnGVisor() bool {
	version, err := readShort("/proc/version")
	return err == nil && strings.Contains(version, "gvisor")
}

// readMeminfo returns the bytes in use and in all of a file such as /proc/meminfo. 0: unknown.
func readMeminfo(path string) (used, total int64) {
	text, err := readShort(path)
	if err != nil {
		return 0, 0
	}
	total = kibNumber(text, "MemTotal:")
	return total - min(total, kibNumber(text, "MemFree:")), total
}

// kibNumber finds a number of bytes in lines of "name number kB". 0: not found.
func kibNumber(text, name string) int64 {
	for row := range strings.Lines(text) {
		if fields := strings.Fields(row); len(fields) > 1 && fields[0] == name {
			n, _ := strconv.ParseInt(fields[1], 10, 64)
			return n << 10
		}
	}
	return 0
}

// Kills returns how many processes the kernel has killed because the sandbox's memory was used up. Each execution asks
// for it, so it makes few system calls.
func Kills() int64 {
	for _, path := range []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"} {
		if raw, err := readShort(path); err == nil {
			return statNumber(raw, "oom_kill")
		}
	}
	return 0
}

// readShort reads a file of the kernel of at most a few hundred bytes. os.ReadFile makes three times as many system calls.
func readShort(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	var buf [1024]byte
	n, err := unix.Read(fd, buf[:])
	return string(buf[:max(n, 0)]), err
}

// noLimit is the smallest value that means "no limit" in version 1.
const noLimit = 1 << 60

func readNumber(path string) int64 {
	raw, err := os.ReadFile(path) //nolint:gosec // one of the paths above
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	if err != nil || n >= noLimit {
		return 0
	}
	return n
}

// UnreclaimableMemory is the part of the sandbox's memory that the kernel cannot free: all but the page cache of files on a disk.
// Files of a tmpfs are part of it. 0: unknown.
func UnreclaimableMemory() int64 {
	used, _ := Memory()
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

const (
	// memorySpare is the fraction of the sandbox's memory that files must leave free, within memorySpareLeast and maxMemorySpare bytes.
	memorySpare      = 32
	memorySpareLeast = 8 << 20
	maxMemorySpare   = 64 << 20
)

// HeldMemory returns what cannot be reclaimed of the sandbox's memory, and its limit. 0: unknown.
func HeldMemory() (held, limit int64) {
	_, limit = Memory()
	return UnreclaimableMemory(), limit
}

// MemoryShort reports whether so little of a limit is left that whoever writes files must end. Files are in memory here: they would remain after
// the out-of-memory killer has killed the writer, and it would then kill user code, and at last the agent. False if one of the two is unknown (0).
func MemoryShort(held, limit int64) bool {
	return held > 0 && limit > 0 && limit-held < min(max(limit/memorySpare, memorySpareLeast), maxMemorySpare)
}

// statNumber finds a number in lines of "name number". 0: not found.
func statNumber(text, name string) int64 {
	for row := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(row, name+" "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n
		}
	}
	return 0
}

// Refusals returns how often the sandbox's limit of processes has refused one. 0 where there are no control groups, as in gVisor.
func Refusals() int64 {
	for _, path := range []string{"/sys/fs/cgroup/pids.events", "/sys/fs/cgroup/pids/pids.events"} {
		if raw, err := readShort(path); err == nil {
			return statNumber(raw, "max")
		}
	}
	return 0
}

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

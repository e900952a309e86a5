package process

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

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

package server

import (
	"os"
	"strconv"
	"strings"
)

// memoryInfo reads the sandbox's cgroup, version 2 or 1. Zeros mean unknown.
func memoryInfo() (used, limit, kills int64) {
	if raw, err := os.ReadFile("/sys/fs/cgroup/memory.events"); err == nil {
		return readNumber("/sys/fs/cgroup/memory.current"), readNumber("/sys/fs/cgroup/memory.max"), statNumber(string(raw), "oom_kill")
	}
	const v1 = "/sys/fs/cgroup/memory/"
	if raw, err := os.ReadFile(v1 + "memory.oom_control"); err == nil {
		kills = statNumber(string(raw), "oom_kill")
	}
	return readNumber(v1 + "memory.usage_in_bytes"), readNumber(v1 + "memory.limit_in_bytes"), kills
}

// noLimit is where version 1 says that there is none.
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

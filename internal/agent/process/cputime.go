package process

import "time"

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

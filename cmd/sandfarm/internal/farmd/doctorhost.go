package farmd

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sandfarm/sandfarm/internal/engine"
)

// What the kernel has once for the host: an open file takes fileBytes of a sandbox's memory (one that is mapped needs no descriptor: 60,000
// took 23 MiB), a sandbox has at most terminals of its pseudo-terminals (the agent ends it beyond that), and the kernel keeps terminalReserve
// back (kernel.pty.reserve).
const (
	fileBytes       = 384
	terminals       = 128
	terminalReserve = 1024
)

// doctorHost checks numbers that the kernel has once for the host, and that sandboxes share. proc is the directory of sysctls,
// /proc/sys; sandboxes is how many sandboxes the host should stand, with memoryMB in all.
func doctorHost(proc string, sandboxes, memoryMB int) []Finding {
	return []Finding{
		atLeast(proc, "fs/file-max", "open files", uint64(memoryMB)<<20/fileBytes, //nolint:gosec // positive
			"The memory of sandboxes is enough for more, and then no program of the host can open a file. Run sysctl fs.file-max=9223372036854775807, and write it to /etc/sysctl.d."),
		atLeast(proc, "kernel/pty/max", "pseudo-terminals", uint64(sandboxes)*terminals+terminalReserve, //nolint:gosec // positive
			fmt.Sprintf("%d sandboxes may have 128 each. When the host has none left, commands in kernels (!ls) fail in all of them. Run sysctl kernel.pty.max=65536, and write it to /etc/sysctl.d.", sandboxes)),
		timestamps(proc),
	}
}

// timestamps checks that sockets cannot keep what they sent, by asking when it was sent: each sandbox has that setting, or else the host.
func timestamps(proc string) Finding {
	f := Finding{What: "timestamps", Status: StatusOK}
	kernel, _ := os.ReadFile(filepath.Join(proc, "kernel/osrelease")) //nolint:gosec // a path below /proc/sys
	if f.Found = strings.TrimSpace(string(kernel)); engine.OwnTimestamps(f.Found) {
		f.Found = "sandboxes have net.core.tstamp_allow_data = 0 (Linux " + f.Found + ")"
		return f
	}
	text, err := os.ReadFile(filepath.Join(proc, "net/core/tstamp_allow_data")) //nolint:gosec // a path below /proc/sys
	switch value := strings.TrimSpace(string(text)); {
	case err != nil:
		return unknown(f.What, "net/core/tstamp_allow_data")
	case value != "0":
		f.Status = StatusNote
		f.Advice = "The sockets of a sandbox can keep some MiB each of what they sent, in memory that no cgroup is charged for. Run sysctl net.core.tstamp_allow_data=0, and write it to /etc/sysctl.d. Since Linux 6.13 each sandbox has the setting."
		fallthrough
	default:
		f.Found = "net.core.tstamp_allow_data = " + value
	}
	return f
}

func unknown(what, sysctl string) Finding {
	return Finding{What: what, Status: StatusNote, Found: "the limit of the host is unknown", Advice: "Check " + strings.ReplaceAll(sysctl, "/", ".") + " on the engine's host."}
}

// atLeast compares a sysctl with what is needed.
func atLeast(proc, name, what string, need uint64, advice string) Finding {
	f := Finding{What: what, Status: StatusOK}
	text, err := os.ReadFile(filepath.Join(proc, name)) //nolint:gosec // a path below /proc/sys
	if err != nil {
		return unknown(what, name)
	}
	has, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	f.Found = fmt.Sprintf("%s = %d", strings.ReplaceAll(name, "/", "."), has)
	if err != nil || has < need {
		f.Status, f.Advice = StatusNote, advice
	}
	return f
}

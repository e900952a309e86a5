package process

import (
	"bytes"
	"cmp"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// ticks are those of /proc in a second, on every Linux.
	ticks = 100
	// maxEnviron bounds how much of a process's environment is searched for its owner.
	maxEnviron = 64 << 10
)

// Running lists the processes that run in the sandbox, but the agent, by pid: the first farm.MaxRunning. now is the time.
func Running(now time.Time) []farm.RunningProcess {
	up := uptime()
	all := processes()
	slices.SortFunc(all, func(a, b procInfo) int { return cmp.Compare(a.pid, b.pid) })
	out := []farm.RunningProcess{}
	for _, p := range all {
		if p.pid == os.Getpid() || p.zombie {
			continue
		}
		if len(out) == farm.MaxRunning {
			break
		}
		age := up - time.Duration(p.started)*(time.Second/ticks) //nolint:gosec // ticks since boot
		out = append(out, farm.RunningProcess{
			PID: p.pid, Parent: p.parent, Owner: ownerOf(p.pid), Command: commandOf(p), CPUSeconds: float64(p.cpu) / ticks, MemoryBytes: p.pages * int64(os.Getpagesize()),
			StartedAt: now.Add(-max(age, 0)).UTC().Truncate(time.Second / ticks),
		})
	}
	return out
}

// uptime is the time since boot.
func uptime() time.Duration {
	text, _, _ := strings.Cut(string(procFile("uptime", maxLine)), " ")
	seconds, _ := strconv.ParseFloat(text, 64)
	return time.Duration(seconds * float64(time.Second))
}

// maxLine bounds the files that hold one line.
const maxLine = 4 << 10

// procFile reads the beginning of a file of /proc; nil if it cannot be read.
func procFile(path string, most int64) []byte {
	f, err := os.Open("/proc/" + path)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	text, _ := io.ReadAll(io.LimitReader(f, most))
	return text
}

// ownerOf finds in a process's environment what started it.
func ownerOf(pid int) string {
	owner := ""
	for entry := range bytes.SplitSeq(procFile(strconv.Itoa(pid)+"/environ", maxEnviron), []byte{0}) {
		name, value, _ := strings.Cut(string(entry), "=")
		switch {
		case name == execution.EnvName && (farm.ValidID(farm.ProcessPrefix, value) || farm.ValidID(farm.JobPrefix, value)):
			return value
		case name == KernelEnvName:
			owner = farm.OwnerKernel
		}
	}
	return owner
}

// commandOf is what a process was started as, or its name where that is not known.
func commandOf(p procInfo) string {
	line := string(bytes.TrimRight(procFile(strconv.Itoa(p.pid)+"/cmdline", maxLine), "\x00"))
	text := strings.ToValidUTF8(strings.ReplaceAll(line, "\x00", " "), "�")
	if text == "" {
		text = "[" + strings.ToValidUTF8(p.name, "�") + "]"
	}
	for len(text) > farm.MaxRunningCommand || !utf8.ValidString(text) {
		text = text[:min(len(text)-1, farm.MaxRunningCommand)]
	}
	return text
}

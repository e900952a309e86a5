package engine

import (
	"context"
	"os"
	"strconv"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Capacity is the memory and the cores of the engine's host, as the engine reports them.
func (e *Engine) Capacity(ctx context.Context) (farm.Capacity, error) {
	got, err := e.systemInfo(ctx)
	return farm.Capacity{MemoryMB: int(got.MemTotal >> 20), CPUs: float64(got.NCPU)}, err
}

// AvailableMB is the memory in MiB that programs on this machine can still use without swapping. It is below 0 if that is not known, or if this
// machine does not have totalMB of memory: then the engine runs elsewhere.
func AvailableMB(totalMB int) int {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return -1
	}
	return availableMB(string(text), totalMB)
}

// Load is the number of programs that ran or waited for a core of this machine, a mean over the last minute; 0: not known.
func Load() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}

// availableMB reads a file in the format of /proc/meminfo.
func availableMB(text string, totalMB int) int {
	values := map[string]int{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, ":")
		if fields := strings.Fields(rest); len(fields) > 0 {
			values[name], _ = strconv.Atoi(fields[0]) // kB
		}
	}
	available, known := values["MemAvailable"]
	if !known || values["MemTotal"]>>10 != totalMB {
		return -1
	}
	return available >> 10
}

package placement

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// What the programs of a host use is known where the engine's host is this machine.
func TestMachineIsThisHost(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	kib, err := strconv.Atoi(strings.Fields(first)[1])
	if err != nil {
		t.Fatal(err)
	}
	total := kib >> 10
	if m := machineOf(farm.Capacity{MemoryMB: total, CPUs: 2}); m == nil || m.MemoryMB != total || m.UsedMB <= 0 || m.UsedMB >= total || m.CPUs != 2 || m.Load < 0 {
		t.Errorf("%+v", m)
	}
	for _, other := range []int{0, total - 1, total + 1} {
		if m := machineOf(farm.Capacity{MemoryMB: other}); m != nil {
			t.Errorf("a host of %d MiB: %+v", other, m)
		}
	}
}

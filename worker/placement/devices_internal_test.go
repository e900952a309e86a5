package placement

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func smi(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nvidia-smi")
	// Another process writes it: a file that this one has open for writing cannot be executed, and forks of other tests inherit it.
	write := exec.CommandContext(t.Context(), "sh", "-c", `cat >"$0" && chmod 755 "$0"`, path)
	write.Stdin = strings.NewReader("#!/bin/sh\n" + script)
	if err := write.Run(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDevices(t *testing.T) {
	t.Parallel()
	program := smi(t, `[ "$1 $2" = "--query-gpu=index,uuid,name,memory.total,mig.mode.current --format=csv,noheader,nounits" ] || exit 9
echo "0, GPU-8f1c, NVIDIA A100-SXM4-80GB, 81920, Disabled"
echo "1, GPU-77aa, NVIDIA A100-SXM4-80GB, 81920, Enabled"
echo "2, GPU-0c0c, NVIDIA GB10, [N/A], [N/A]"
`)
	got, err := devices(t.Context(), program)
	if err != nil {
		t.Fatal(err)
	}
	want := []GPUDevice{
		{GPUDevice: farm.GPUDevice{ID: "GPU-8f1c", Model: "a100-sxm4-80gb", MemoryMB: 81920}, Index: "0", Name: "NVIDIA A100-SXM4-80GB"},
		{GPUDevice: farm.GPUDevice{ID: "GPU-77aa", Model: "a100-sxm4-80gb", MemoryMB: 81920}, Index: "1", Name: "NVIDIA A100-SXM4-80GB", MIG: true},
		{GPUDevice: farm.GPUDevice{ID: "GPU-0c0c", Model: "gb10"}, Index: "2", Name: "NVIDIA GB10"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestNoDriver(t *testing.T) {
	t.Parallel()
	if got, err := devices(t.Context(), "no-such-nvidia-smi"); got != nil || err != nil {
		t.Errorf("devices = %v, %v", got, err)
	}
	if got, err := devices(t.Context(), smi(t, "exit 0\n")); got != nil || err != nil {
		t.Errorf("a driver without devices: %v, %v", got, err)
	}
}

func TestBrokenDriver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ script, want string }{
		"Fails":  {"echo 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n", "version mismatch"},
		"Fields": {"echo '0, GPU-1'\n", "wrong number of fields"},
		"NoUUID": {"echo '0, all, A100, 1, Disabled'\n", "not the UUID"},
		"Two":    {"echo '0, \"GPU-1,GPU-2\", A100, 1, Disabled'\n", "not the UUID"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := devices(t.Context(), smi(t, c.script))
			if err == nil || !strings.Contains(err.Error(), c.want) || got != nil {
				t.Errorf("devices = %v, %v, want an error that holds %q", got, err, c.want)
			}
		})
	}
}

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

func TestAvailableMemory(t *testing.T) {
	t.Parallel()
	const text = "MemTotal:       8138204 kB\nMemFree:         123456 kB\nMemAvailable:    4194303 kB\nHugePages_Total:       0\n"
	for name, c := range map[string]struct {
		text        string
		total, want int
	}{
		"this machine":    {text, 8138204 >> 10, 4095},
		"another one":     {text, 8138204>>10 + 1, -1},
		"an old kernel":   {strings.Replace(text, "MemAvailable", "Other", 1), 8138204 >> 10, -1},
		"empty":           {"", 0, -1},
		"nothing is left": {strings.Replace(text, "4194303", "0", 1), 8138204 >> 10, 0},
	} {
		if got := parseAvailable(c.text, c.total); got != c.want {
			t.Errorf("%s: %d MiB, want %d", name, got, c.want)
		}
	}
}

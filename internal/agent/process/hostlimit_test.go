package process_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/process"
)

func TestSocketsAreLimited(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "sockstat")
	killed := 0
	limit := process.NewSocketLimit(func() { killed++ }, file)
	for _, c := range []struct{ used, kills int }{{0, 0}, {process.MaxSockets - 1, 0}, {process.MaxSockets, 0}, {process.MaxSockets + 1, 1}, {99999, 2}, {3, 2}} {
		text := fmt.Sprintf("sockets: used %d\nTCP: inuse 99999 orphan 77777 tw 88888 alloc 99999 mem 99999\nUDP: inuse 99999 mem 9\n", c.used)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if limit.Check(); killed != c.kills || limit.Kills() != int64(c.kills) {
			t.Errorf("%d sockets: killed %d times, reported %d, want %d", c.used, killed, limit.Kills(), c.kills)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if limit.Check(); killed != 2 {
		t.Error("a kernel without the count has too many sockets")
	}
	var none *process.HostLimit
	if none.Kills() != 0 {
		t.Error("no limit has ended something")
	}
}

// Where the kernel ends the whole sandbox at its memory limit, the agent ends its programs before.
func TestMemoryIsLimited(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, heap := filepath.Join(dir, "meminfo"), filepath.Join(dir, "heap")
	write := func(total, free int) {
		t.Helper()
		text := fmt.Sprintf("MemTotal:  %8d kB\nMemFree:  %8d kB\nMemAvailable:  %8d kB\nCached:  7 kB\n", total, free, free)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ mib, tasks, kept int }{
		{64, 256, 16}, {512, 256, 96}, {512, 16, 51}, {2048, 256, 96}, {65536, 4096, 816},
	} {
		write(c.mib<<10, c.mib<<10)
		killed := 0
		limit := process.NewMemoryLimit(func() { killed++ }, file, heap, c.tasks)
		if pause := limit.Check(); killed != 0 || pause < 10*time.Millisecond || pause > time.Second {
			t.Errorf("%+v: an empty sandbox: killed %d times, again in %s", c, killed, pause)
		}
		write(c.mib<<10, c.kept<<10)
		if pause := limit.Check(); killed != 0 || pause != 10*time.Millisecond {
			t.Errorf("%+v: at the limit: killed %d times, again in %s", c, killed, pause)
		}
		write(c.mib<<10, c.kept<<10-4)
		if pause := limit.Check(); killed != 1 || limit.Kills() != 1 || pause != 10*time.Millisecond {
			t.Errorf("%+v: beyond the limit: killed %d times, again in %s", c, killed, pause)
		}
	}
	write(512<<10, 500<<10)
	killed := 0
	limit := process.NewMemoryLimit(func() { killed++ }, file, heap, 256)
	for _, c := range []struct{ heapMiB, kills int }{{100, 0}, {430, 1}, {430, 1}, {500, 1}, {100, 1}, {520, 1}, {521, 2}, {522, 2}} { // after a kill only new objects count
		if err := os.WriteFile(heap, fmt.Appendf(nil, "Alloc:  1 kB\nHeapAlloc:  %d kB\nHeapSys:  999999999 kB\n", c.heapMiB<<10), 0o600); err != nil {
			t.Fatal(err)
		}
		if limit.Check(); killed != c.kills {
			t.Errorf("%d MiB of objects: killed %d times, want %d", c.heapMiB, killed, c.kills)
		}
	}
}

func TestTerminalsAreLimited(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	killed := 0
	limit := process.NewTerminalLimit(func() { killed++ }, dir)
	add := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	add("ptmx")
	for n := 1; n <= process.MaxTerminals+1; n++ {
		add(fmt.Sprint(n))
		if limit.Check(); killed != max(0, n-process.MaxTerminals) {
			t.Fatalf("%d terminals: killed %d times", n, killed)
		}
	}
	gone := process.NewTerminalLimit(func() { t.Error("a sandbox without terminals is ended") }, filepath.Join(dir, "none"))
	gone.Check()
}

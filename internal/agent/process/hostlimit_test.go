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
	dir := t.TempDir()
	four, six := filepath.Join(dir, "sockstat"), filepath.Join(dir, "sockstat6")
	killed := 0
	limit := process.NewSocketLimit(func() { killed++ }, four, six)
	count := func(tcp, tcp6 int) {
		t.Helper()
		for file, text := range map[string]string{
			four: fmt.Sprintf("sockets: used 99999\nTCP: inuse %d orphan 77777 tw 88888 alloc 99999 mem 99999\nUDP: inuse 99999 mem 9\n", tcp),
			six:  fmt.Sprintf("TCP6: inuse %d\nUDP6: inuse 99999\n", tcp6),
		} {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		limit.Check()
	}
	for _, c := range []struct{ tcp, tcp6, kills int }{
		{0, 0, 0}, {process.MaxSockets - 1, 0, 0}, {process.MaxSockets, 0, 0}, {0, process.MaxSockets, 0}, {process.MaxSockets, 1, 1}, {1, process.MaxSockets, 2}, {3, 3, 2},
	} {
		if count(c.tcp, c.tcp6); killed != c.kills || limit.Kills() != int64(c.kills) {
			t.Errorf("%d and %d sockets: killed %d times, reported %d, want %d", c.tcp, c.tcp6, killed, limit.Kills(), c.kills)
		}
	}
	if err := os.Remove(six); err != nil {
		t.Fatal(err)
	}
	if limit.Check(); killed != 2 {
		t.Error("a kernel without IPv6 counts as too many sockets")
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

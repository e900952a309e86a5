package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/process"
)

func TestTheUserHasAName(t *testing.T) {
	t.Parallel()
	run, work := t.TempDir(), t.TempDir()
	for range 2 { // a restarted agent finds the existing files
		s, err := New(Config{Workspace: work, RunDir: run, HomeDir: work, TmpDir: work, Env: []string{"PATH=/usr/bin:/bin"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{
			"passwd": fmt.Sprintf("user:x:%d:%d:user:%s:%s\n", os.Getuid(), os.Getgid(), work, process.LookPath(s.cfg.Env, "bash")),
			"group":  fmt.Sprintf("user:x:%d:\n", os.Getgid()),
		} {
			if got, err := os.ReadFile(filepath.Join(run, "accounts", name)); err != nil || string(got) != want {
				t.Errorf("%s is %q, %v; want %q", name, got, err, want)
			}
		}
	}
}

// The last deadline set counts, and the sandbox ends one grace period after it.
func TestDeadline(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sets []time.Duration // one per second
		want time.Duration   // time since the first; 0: never
	}{
		"None":      {},
		"One":       {[]time.Duration{time.Minute}, 66 * time.Second},
		"Extended":  {[]time.Duration{time.Minute, time.Hour}, time.Hour + 7*time.Second},
		"Shortened": {[]time.Duration{time.Hour, 10 * time.Second}, 17 * time.Second},
		"Past":      {[]time.Duration{-time.Hour}, 6 * time.Second},
		"InGrace":   {[]time.Duration{0, 0, 0, 0, time.Minute}, 70 * time.Second},
		"Huge":      {[]time.Duration{1 << 62}, maxDeadline + deadlineGrace},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began, took := time.Now(), atomic.Int64{}
				d := deadline{end: func() { took.Store(int64(time.Since(began))) }}
				for i, in := range c.sets {
					if i > 0 {
						time.Sleep(time.Second)
					}
					d.set(in)
				}
				time.Sleep(c.want - time.Since(began) - time.Millisecond)
				synctest.Wait()
				if at := time.Duration(took.Load()); at != 0 {
					t.Errorf("it ended after %s", at)
				}
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
				if at := time.Duration(took.Load()); at != c.want {
					t.Errorf("it ended after %s, want %s", at, c.want)
				}
			})
		})
	}
}

// A stopped deadline never ends the sandbox.
func TestDeadlineStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := deadline{end: func() { t.Error("it ended") }}
		d.set(time.Second)
		d.stop()
		d.set(time.Second)
		time.Sleep(time.Hour)
	})
}

func TestTablesOfListeners(t *testing.T) {
	t.Parallel()
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	for name, c := range map[string]struct{ table, want string }{
		"IPv4":           {head + "   0: 0100007F:22B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0\n", "127.0.0.1:8888 4711"},
		"All of IPv6":    {head + "   0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 12 1\n", ":::8080 12"},
		"Loopback of it": {head + "   0: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 13 1\n", "::1:80 13"},
		"Connected":      {head + "   0: 0100007F:22B8 0100007F:0001 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0\n", ""},
		"Nonsense":       {"a b c 0A d e f g h i\nx: 0100:1 2 0A 4 5 6 7 8 9\n 0: zz:22B8 0 0A 0 0 0 0 0 9\n", ""},
		"Nothing":        {"", ""},
	} {
		got := ""
		for _, l := range listeners([]byte(c.table)) {
			got += l.address.String() + ":" + strconv.Itoa(l.port) + " " + l.inode
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// The echo of a key and full frames go out without a pause; what is between them waits for company.
func TestWhatGathers(t *testing.T) {
	t.Parallel()
	for written, want := range map[int]bool{
		1: false, minBatch - 1: false, minBatch: true, minBatch + 1: true, maxBatch - 1: true, maxBatch: false, maxBatch + 1: false,
	} {
		if got := gathers(written); got != want {
			t.Errorf("%d bytes: %t", written, got)
		}
	}
}

// Whoever gets the sentence asks for more by that argument, over REST and MCP alike, and learns which files take a good part of the memory.
func TestMemorySentence(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, test := range []struct {
		limit, files int64
		want         string
	}{
		{0, 100 * mib, "limit was reached. Use less memory at once, or create a sandbox with more memory_mb."},
		{64 * mib, 16*mib - 1, "limit of 64 MiB. Use less memory at once, or create a sandbox with more memory_mb."},
		{64 * mib, 16 * mib, "limit of 64 MiB. Files take 16 MiB of it (/workspace 16 MiB). Delete some of them, use less memory at once, or create a sandbox with more memory_mb."},
	} {
		if got := memorySentence(test.limit, test.files, "/workspace 16 MiB"); !strings.HasSuffix(got, test.want) {
			t.Errorf("%+v: %s", test, got)
		}
	}
}

func TestPausesBeforeRestarts(t *testing.T) {
	t.Parallel()
	r := restarts{limit: 10}
	for i, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000} {
		if pause, more := r.after(0); pause != want*time.Millisecond || !more {
			t.Errorf("restart %d: %s, %v", i+1, pause, more)
		}
	}
	if _, more := r.after(steadyRun - 1); more {
		t.Error("an eleventh restart in a row")
	}
	if pause, more := r.after(steadyRun); pause != firstRestartPause || !more {
		t.Errorf("after a long run: %s, %v", pause, more)
	}
}

func TestUseIsTheAverageSinceItWasAsked(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	m := meter{at: start}
	for i, c := range []struct {
		after, cpu time.Duration
		want       float64
	}{
		{useSpan - 1, time.Second, 0}, // too early
		{10 * time.Second, 5 * time.Second, 0.5},
		{10*time.Second + useSpan - 1, 6 * time.Second, 0.5}, // the average of before
		{10*time.Second + useSpan, 7 * time.Second, 2},
		{20 * time.Second, 0, 0}, // a counter that went back
	} {
		if got := m.read(start.Add(c.after), c.cpu); got != c.want {
			t.Errorf("reading %d: %g, want %g", i, got, c.want)
		}
	}
}

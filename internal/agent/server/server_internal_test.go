package server

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestTheUserHasAName(t *testing.T) {
	t.Parallel()
	run, work := t.TempDir(), t.TempDir()
	for range 2 { // a restarted agent finds the existing files
		s, err := New(Config{Workspace: work, RunDir: run, HomeDir: work, TmpDir: work, Env: []string{"PATH=/usr/bin:/bin"}})
		testbed.Must(t, err)
		testbed.Must(t, s.Close())
		for name, want := range map[string]string{
			"passwd": fmt.Sprintf("user:x:%d:%d:user:%s:%s\n", os.Getuid(), os.Getgid(), work, process.LookPath(s.cfg.Env, "bash")),
			"group":  fmt.Sprintf("user:x:%d:\n", os.Getgid()),
		} {
			got, err := os.ReadFile(filepath.Join(run, "accounts", name))
			testbed.Check(t, err == nil && string(got) == want, "%s is %q, %v; want %q", name, got, err, want)
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
				at := time.Duration(took.Load())
				testbed.Check(t, at == 0, "it ended after %s", at)
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
				testbed.Diff(t, "it ended after", c.want, time.Duration(took.Load()))
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
		testbed.Diff(t, name, c.want, got)
	}
}

// The echo of a key and full frames go out without a pause; what is between them waits for company.
func TestWhatGathers(t *testing.T) {
	t.Parallel()
	for written, want := range map[int]bool{
		1: false, minBatch - 1: false, minBatch: true, minBatch + 1: true, maxBatch - 1: true, maxBatch: false, maxBatch + 1: false,
	} {
		testbed.Diff(t, fmt.Sprintf("%d bytes", written), want, gathers(written))
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
		got := memorySentence(test.limit, test.files, "/workspace 16 MiB")
		testbed.Check(t, strings.HasSuffix(got, test.want), "%+v: %s", test, got)
	}
}

func TestPausesBeforeRestarts(t *testing.T) {
	t.Parallel()
	r := restarts{limit: 10}
	for i, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000} {
		pause, more := r.after(0)
		testbed.Check(t, pause == want*time.Millisecond && more, "restart %d: %s, %v", i+1, pause, more)
	}
	_, more := r.after(steadyRun - 1)
	testbed.Check(t, !more, "an eleventh restart in a row")
	pause, more := r.after(steadyRun)
	testbed.Check(t, pause == firstRestartPause && more, "after a long run: %s, %v", pause, more)
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
		testbed.Diff(t, fmt.Sprintf("reading %d", i), c.want, m.read(start.Add(c.after), c.cpu))
	}
}

// outcomeOf reads the final frame of an execution that a registry knows.
func outcomeOf(t *testing.T, r *registry, id string) agent.Outcome {
	t.Helper()
	log, err := r.log(id)
	testbed.Must(t, err)
	_, last, _, _ := log.State()
	frames, err := log.Next(t.Context(), last)
	testbed.Must(t, err)
	var o agent.Outcome
	testbed.Must(t, json.Unmarshal(frames[len(frames)-1].Payload, &o))
	return o
}

// ran runs an execution that prints so many bytes and ends with an exit code.
func ran(t *testing.T, r *registry, id string, bytes, exit int) {
	t.Helper()
	e := execution.New(id, agent.Spec{Kind: farm.KindCommand}, 1<<30, time.Now())
	err := r.start(e, func(e *execution.Execution) {
		e.Log.Append(agent.FrameStdout, make([]byte, bytes))
		e.Finish(agent.Outcome{ExitCode: exit})
	})
	testbed.Must(t, err)
	r.wg.Wait()
}

func TestTombstonesAreBounded(t *testing.T) {
	t.Parallel()
	for _, n := range []int{keptTombstones - 1, keptTombstones, keptTombstones + 1} {
		ts := newTombstones(keptTombstones)
		for i := range n {
			ts.add(newTombstone(fmt.Sprint("job_", i), uint64(i), agent.Outcome{ExitCode: i})) //nolint:gosec // small
		}
		_, first := ts.get("job_0")
		last, found := ts.get(fmt.Sprint("job_", n-1))
		if first != (n <= keptTombstones) || !found || int(last.exit) != n-1 || len(ts.ring) != min(n, keptTombstones) || len(ts.at) != len(ts.ring) {
			t.Errorf("of %d: the first one is there %v, the last one %v, %d and %d in all", n, first, found, len(ts.ring), len(ts.at))
		}
	}
	ts := newTombstones(2)
	for _, id := range []string{"a", "b", "a", "c", "c", "d"} {
		ts.add(newTombstone(id, 1, agent.Outcome{}))
	}
	for id, want := range map[string]bool{"a": false, "b": false, "c": true, "d": true} {
		_, found := ts.get(id)
		testbed.Check(t, found == want, "%s is there: %v", id, found)
	}
}

func TestTombstoneKeepsHowItEnded(t *testing.T) {
	t.Parallel()
	r := newRegistry(0)
	o := agent.Outcome{
		ExitCode: 3, ExecutionCount: 9, RunMS: 1.5, Restarted: true, FreshProcess: true, TimedOut: true, OutOfMemory: true, StoppedAtMaxOutput: true,
		Error: &farm.CodeError{Name: strings.Repeat("n", 1000), Value: strings.Repeat("v", 1000), Traceback: []string{"line"}},
		Files: []agent.ChangedFile{{Path: "a"}}, Skipped: 2,
	}
	r.tombstones.add(newTombstone("x", 12, o))
	got := outcomeOf(t, r, "x")
	if got.Error == nil || len(got.Error.Name) > buriedName+3 || len(got.Error.Value) > buriedValue+3 || len(got.Error.Traceback) != 0 {
		t.Errorf("error = %+v", got.Error)
	}
	o.Error, o.Files, o.Skipped, o.OutputGone, got.Error = nil, nil, 3, true, nil
	want, _ := json.Marshal(o)
	text, _ := json.Marshal(got)
	testbed.Check(t, string(text) == string(want), "outcome %s, want %s", text, want)
}

// Ended executions that nobody has forgotten keep their frames up to a number and up to a size, and their outcome after that.
func TestEvictedExecutionsKeepTheirOutcome(t *testing.T) {
	t.Parallel()
	for _, n := range []int{keptExecutions - 1, keptExecutions, keptExecutions + 1} {
		r := newRegistry(0)
		for i := range n {
			ran(t, r, fmt.Sprint("job_", i), 1, i)
		}
		if gone := outcomeOf(t, r, "job_0"); gone.OutputGone != (n > keptExecutions) || len(r.list()) != min(n, keptExecutions) {
			t.Errorf("of %d the first one: %+v, and %d are listed", n, gone, len(r.list()))
		}
		second := outcomeOf(t, r, "job_1")
		testbed.Check(t, !second.OutputGone && second.ExitCode == 1, "of %d the second one: %+v", n, second)
		r.forget("job_1", "job_2")
		if gone := outcomeOf(t, r, "job_2"); !gone.OutputGone || gone.ExitCode != 2 || len(r.order) != len(r.ended) {
			t.Errorf("forgotten: %+v; %d and %d", gone, len(r.order), len(r.ended))
		}
	}
	for _, size := range []int{8<<20 - 1024, 8<<20 + 1024} { // the frames of eight have 64 MiB
		r := newRegistry(keptPart * keptBytes)
		for i := range 8 {
			ran(t, r, fmt.Sprint("job_", i), size, i)
		}
		if gone := outcomeOf(t, r, "job_0"); gone.OutputGone != (size > 8<<20) || outcomeOf(t, r, "job_1").OutputGone {
			t.Errorf("of eight with %d bytes the first one: %+v", size, gone)
		}
	}
	r := newRegistry(64 << 20) // a small sandbox: its frames may use 8 MiB
	ran(t, r, "a", 5<<20, 1)
	ran(t, r, "b", 5<<20, 2)
	ran(t, r, "c", 50<<20, 3)
	a, b, c := outcomeOf(t, r, "a"), outcomeOf(t, r, "b"), outcomeOf(t, r, "c")
	testbed.Check(t, a.OutputGone && b.OutputGone && !c.OutputGone, "in a small sandbox: %+v, %+v, %+v", a, b, c)
}

// An execution that is forgotten while it runs is killed. Its tombstone says cancelled, and how it ended once it has.
func TestForgottenWhileItRuns(t *testing.T) {
	t.Parallel()
	r := newRegistry(0)
	started, end := make(chan struct{}), make(chan struct{})
	e := execution.New("x", agent.Spec{}, 1<<20, time.Now())
	testbed.Must(t, r.start(e, func(e *execution.Execution) {
		close(started)
		<-e.Killed()
		<-end
		e.Finish(agent.Outcome{ExitCode: 137})
	}))
	<-started
	r.forget("x")
	o := outcomeOf(t, r, "x")
	testbed.Check(t, o.Canceled && o.OutputGone && o.ExitCode != 137, "while it runs: %+v", o)
	testbed.Must(t, r.start(execution.New("x", agent.Spec{}, 1<<20, time.Now()), func(*execution.Execution) { t.Error("it runs again") }))
	close(end)
	r.wg.Wait()
	o = outcomeOf(t, r, "x")
	testbed.Check(t, o.Canceled && o.ExitCode == 137, "afterwards: %+v", o)
}

// Tombstones live in the sandbox's own memory.
func TestTombstonesAreSmall(t *testing.T) {
	used := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc) //nolint:gosec // far less
	}
	before := used()
	ts := newTombstones(keptTombstones)
	for range keptTombstones {
		ts.add(newTombstone(farm.NewID(farm.JobPrefix), 4, agent.Outcome{ExecutionCount: 1, RunMS: 2.5}))
	}
	size := used() - before
	t.Logf("%d tombstones use %.1f MiB, %d bytes each", len(ts.ring), float64(size)/(1<<20), size/keptTombstones)
	testbed.Check(t, size <= 200*keptTombstones, "they use %d bytes", size)
	runtime.KeepAlive(ts)
}

// The deadline of a sandbox that hibernates does not come before it is resumed, and comes if no worker sends another one.
func TestSuspendedDeadline(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then func(*deadline)
		ends time.Duration // 0: never
	}{
		"NoWorker": {func(*deadline) {}, 30 * time.Minute},
		"Again":    {func(d *deadline) { d.suspend(30 * time.Minute) }, 45 * time.Minute},
		"Sent":     {func(d *deadline) { d.set(time.Hour) }, 75*time.Minute + deadlineGrace},
		"Closed":   {func(d *deadline) { d.stop() }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began, ended := time.Now(), time.Duration(0)
				d := &deadline{}
				d.end = func() { ended = time.Since(began) }
				d.set(time.Minute)
				d.suspend(30 * time.Minute)
				time.Sleep(15 * time.Minute)
				c.then(d)
				time.Sleep(24 * time.Hour)
				testbed.Check(t, ended == c.ends, "the sandbox ended after %s, want %s", ended, c.ends)
			})
		})
	}
}

package server

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// outcomeOf reads the final frame of an execution that a registry knows.
func outcomeOf(t *testing.T, r *registry, id string) agent.Outcome {
	t.Helper()
	log, err := r.log(id)
	if err != nil {
		t.Fatal(err)
	}
	_, last, _, _ := log.State()
	frames, err := log.Next(t.Context(), last)
	if err != nil {
		t.Fatal(err)
	}
	var o agent.Outcome
	if err := json.Unmarshal(frames[len(frames)-1].Payload, &o); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
		if _, found := ts.get(id); found != want {
			t.Errorf("%s is there: %v", id, found)
		}
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
	if text, _ := json.Marshal(got); string(text) != string(want) {
		t.Errorf("outcome %s, want %s", text, want)
	}
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
		if second := outcomeOf(t, r, "job_1"); second.OutputGone || second.ExitCode != 1 {
			t.Errorf("of %d the second one: %+v", n, second)
		}
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
	if a, b, c := outcomeOf(t, r, "a"), outcomeOf(t, r, "b"), outcomeOf(t, r, "c"); !a.OutputGone || !b.OutputGone || c.OutputGone {
		t.Errorf("in a small sandbox: %+v, %+v, %+v", a, b, c)
	}
}

// An execution that is forgotten while it runs is killed. Its tombstone says cancelled, and how it ended once it has.
func TestForgottenWhileItRuns(t *testing.T) {
	t.Parallel()
	r := newRegistry(0)
	started, end := make(chan struct{}), make(chan struct{})
	e := execution.New("x", agent.Spec{}, 1<<20, time.Now())
	if err := r.start(e, func(e *execution.Execution) {
		close(started)
		<-e.Killed()
		<-end
		e.Finish(agent.Outcome{ExitCode: 137})
	}); err != nil {
		t.Fatal(err)
	}
	<-started
	r.forget("x")
	if o := outcomeOf(t, r, "x"); !o.Canceled || !o.OutputGone || o.ExitCode == 137 {
		t.Errorf("while it runs: %+v", o)
	}
	if err := r.start(execution.New("x", agent.Spec{}, 1<<20, time.Now()), func(*execution.Execution) { t.Error("it runs again") }); err != nil {
		t.Error(err)
	}
	close(end)
	r.wg.Wait()
	if o := outcomeOf(t, r, "x"); !o.Canceled || o.ExitCode != 137 {
		t.Errorf("afterwards: %+v", o)
	}
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
	if size > 200*keptTombstones {
		t.Errorf("they use %d bytes", size)
	}
	runtime.KeepAlive(ts)
}

package server

import (
	"crypto/sha256"
	"encoding/json"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// keptTombstones is how many executions are remembered after their frames were dropped. Each takes about 100 bytes.
	keptTombstones = 100_000
	// buriedName and buriedValue bound what a tombstone keeps of an error.
	buriedName, buriedValue = 64, 200
)

// tombstone is what is left of an execution whose frames were dropped.
type tombstone struct {
	id    [16]byte // of a hash of the execution's id
	last  uint64   // number of the final frame
	runMS float64
	err   *farm.CodeError // cut
	exit  int32
	count int32 // ExecutionCount
	files int32 // changed ones, whose names are gone
	flags buriedFlags
}

type buriedFlags uint8

const (
	buriedRestarted buriedFlags = 1 << iota
	buriedFreshProcess
	buriedTimedOut
	buriedCanceled
	buriedOutOfMemory
	buriedStopped
)

// bury makes the tombstone of an execution.
func bury(id string, last uint64, o agent.Outcome) tombstone {
	t := tombstone{
		id: buriedID(id), last: last, runMS: o.RunMS, exit: narrow(o.ExitCode), count: narrow(o.ExecutionCount), files: narrow(len(o.Files) + o.Skipped),
	}
	for flag, set := range map[buriedFlags]bool{
		buriedRestarted: o.Restarted, buriedFreshProcess: o.FreshProcess, buriedTimedOut: o.TimedOut, buriedCanceled: o.Canceled,
		buriedOutOfMemory: o.OutOfMemory, buriedStopped: o.StoppedAtMaxOutput,
	} {
		if set {
			t.flags |= flag
		}
	}
	if o.Error != nil {
		t.err = &farm.CodeError{
			Name:  strings.Clone(execution.Cut(o.Error.Name, buriedName)), // a clone: a part would keep the whole text in memory
			Value: strings.Clone(execution.Cut(o.Error.Value, buriedValue)), Traceback: []string{},
		}
	}
	return t
}

// log is the log of the execution: its final frame.
func (t tombstone) log() *execution.Log {
	is := func(flag buriedFlags) bool { return t.flags&flag != 0 }
	payload, _ := json.Marshal(agent.Outcome{ // cannot fail: plain fields only
		ExitCode: int(t.exit), Error: t.err, ExecutionCount: int(t.count), Skipped: int(t.files), RunMS: t.runMS,
		Restarted: is(buriedRestarted), FreshProcess: is(buriedFreshProcess), TimedOut: is(buriedTimedOut), Canceled: is(buriedCanceled),
		OutOfMemory: is(buriedOutOfMemory), StoppedAtMaxOutput: is(buriedStopped), OutputGone: true,
	})
	return execution.EndedLog(t.last, payload)
}

func buriedID(id string) [16]byte {
	sum := sha256.Sum256([]byte(id))
	return [16]byte(sum[:16])
}

// narrow is n within the range of an int32.
func narrow(n int) int32 {
	const most = 1<<31 - 1
	return int32(max(min(n, most), -most)) //nolint:gosec // it is within the range
}

// tombstones holds the newest tombstones, at most limit.
type tombstones struct {
	limit int
	at    map[[16]byte]int32
	ring  []tombstone
	next  int // the oldest one once the ring is full
}

func newTombstones(limit int) *tombstones { return &tombstones{limit: limit, at: map[[16]byte]int32{}} }

// add adds a tombstone, or replaces that of the same execution. Beyond the limit it drops the oldest one.
func (ts *tombstones) add(t tombstone) {
	if i, ok := ts.at[t.id]; ok {
		ts.ring[i] = t
		return
	}
	if len(ts.ring) < ts.limit {
		ts.at[t.id] = int32(len(ts.ring)) //nolint:gosec // within the limit
		ts.ring = append(ts.ring, t)
		return
	}
	delete(ts.at, ts.ring[ts.next].id)
	ts.at[t.id] = int32(ts.next) //nolint:gosec // within the limit
	ts.ring[ts.next] = t
	ts.next = (ts.next + 1) % ts.limit
}

func (ts *tombstones) get(id string) (tombstone, bool) {
	i, ok := ts.at[buriedID(id)]
	if !ok {
		return tombstone{}, false
	}
	return ts.ring[i], true
}

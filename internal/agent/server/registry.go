package server

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// keptExecutions is how many ended executions keep their frames until they are forgotten. The farm forgets one a few seconds after its
	// end, so that many short ones wait for it.
	keptExecutions = 1024
	// keptBytes bounds the total size of the frames of ended executions, and keptPart is the part of the sandbox's memory that they may use.
	keptBytes = 64 << 20
	keptPart  = 8
)

// registry holds executions by id. It starts each id once: one that was forgotten, or whose frames had to be dropped, is remembered by its
// tombstone.
type registry struct {
	mu         sync.Mutex
	running    map[string]*execution.Execution
	ended      map[string]*endedExecution
	order      []*endedExecution // the same, the oldest end first
	tombstones *tombstones
	bytes      int // that the frames of ended executions may use
	wg         sync.WaitGroup
	shut       bool
}

// endedExecution is what is kept of an execution until it is forgotten.
type endedExecution struct {
	id      string
	created time.Time
	log     *execution.Log
	stone   tombstone
}

// newRegistry makes a registry for a sandbox with this limit of memory; 0: unknown.
func newRegistry(memory int64) *registry {
	r := &registry{
		running: map[string]*execution.Execution{}, ended: map[string]*endedExecution{}, tombstones: newTombstones(keptTombstones), bytes: keptBytes,
	}
	if part := memory / keptPart; part > 0 && part < keptBytes {
		r.bytes = int(part)
	}
	return r
}

// start adds an execution and runs it, unless its id is known.
func (r *registry) start(e *execution.Execution, run func(*execution.Execution)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shut {
		return farm.Errorf(farm.CodeUnavailable, "The agent is shutting down.")
	}
	if r.known(e.ID) {
		return nil
	}
	r.running[e.ID] = e
	r.wg.Go(func() {
		run(e)
		r.end(e)
	})
	return nil
}

// known reports whether an id was started or forgotten. The caller holds mu.
func (r *registry) known(id string) bool {
	_, known := r.tombstones.get(id)
	return known || r.running[id] != nil || r.ended[id] != nil
}

// has is known for callers that do not hold mu.
func (r *registry) has(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known(id)
}

// end keeps an execution that has ended, or only its tombstone if it was forgotten meanwhile.
func (r *registry) end(e *execution.Execution) {
	_, last, _, _ := e.Log.State()
	stone := newTombstone(e.ID, last, e.Outcome())
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running[e.ID] != e {
		r.tombstones.add(stone)
		return
	}
	delete(r.running, e.ID)
	kept := &endedExecution{id: e.ID, created: e.Created, log: e.Log, stone: stone} // without its code
	r.ended[e.ID] = kept
	r.order = append(r.order, kept)
	r.trim()
}

// log returns the log of an execution; of one that was forgotten it has only the outcome.
func (r *registry) log(id string) (*execution.Log, error) {
	log, _, err := r.find(id)
	return log, err
}

// find returns the log of an execution, and when it was made; zero if only its tombstone is left.
func (r *registry) find(id string) (*execution.Log, time.Time, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.running[id]; e != nil {
		return e.Log, e.Created, nil
	}
	if e := r.ended[id]; e != nil {
		return e.log, e.created, nil
	}
	if stone, ok := r.tombstones.get(id); ok {
		return stone.log(), time.Time{}, nil
	}
	return nil, time.Time{}, farm.NotFoundf("The sandbox does not hold execution %q.", execution.Cut(id, 64))
}

// get returns a running execution; nil if it has ended.
func (r *registry) get(id string) (*execution.Execution, error) {
	r.mu.Lock()
	e := r.running[id]
	r.mu.Unlock()
	if e != nil {
		return e, nil
	}
	_, err := r.log(id)
	return nil, err
}

// forget drops the frames of executions and keeps their tombstones. A running one is killed. An id that was never started never will be.
func (r *registry) forget(ids ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		if e := r.running[id]; e != nil {
			delete(r.running, id)
			if _, last, _, ended := e.Log.State(); ended {
				r.tombstones.add(newTombstone(id, last, e.Outcome()))
			} else {
				r.buryUnended(id, last)
			}
			e.Kill()
			e.Log.Unblock()
		} else if e := r.ended[id]; e != nil {
			r.drop(e)
		} else if !r.known(id) {
			r.buryUnended(id, 0)
		}
	}
	r.order = slices.DeleteFunc(r.order, func(e *endedExecution) bool { return r.ended[e.id] != e })
}

// buryUnended remembers an execution that has no outcome yet as cancelled, with its last frame so far. The caller holds mu.
func (r *registry) buryUnended(id string, last uint64) {
	outcome := execution.NotStarted()
	outcome.Canceled = true
	r.tombstones.add(newTombstone(id, last+1, outcome))
}

// drop leaves the tombstone of an ended execution. The caller holds mu and corrects order.
func (r *registry) drop(e *endedExecution) {
	delete(r.ended, e.id)
	r.tombstones.add(e.stone)
}

// all returns the running executions.
func (r *registry) all() []*execution.Execution {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.running))
}

// list describes the executions that run or have frames, the oldest first.
func (r *registry) list() []agent.Execution {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []agent.Execution{}
	for _, e := range r.running {
		out = append(out, describe(e.ID, e.Created, e.Log))
	}
	for _, e := range r.ended {
		out = append(out, describe(e.id, e.created, e.log))
	}
	slices.SortFunc(out, func(a, b agent.Execution) int { return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.ID, b.ID)) })
	return out
}

// describe describes one execution, also one that only its tombstone is left of; nothing if it is unknown.
func (r *registry) describe(id string) []agent.Execution {
	log, created, err := r.find(id)
	if err != nil {
		return []agent.Execution{}
	}
	return []agent.Execution{describe(id, created, log)}
}

func describe(id string, created time.Time, log *execution.Log) agent.Execution {
	first, last, _, ended := log.State()
	e := agent.Execution{ID: id, Done: ended, LastSeq: last, FirstSeq: first}
	if !created.IsZero() {
		e.Started = created.UTC().Truncate(time.Microsecond)
	}
	return e
}

// trim drops the frames of the oldest ended executions beyond keptExecutions or the bytes that they may use. It always keeps the newest
// one. The caller holds mu.
func (r *registry) trim() {
	size := 0
	for i := len(r.order) - 1; i >= 0; i-- {
		_, _, bytes, _ := r.order[i].log.State()
		size += bytes
		if kept := len(r.order) - i; kept > 1 && (kept > keptExecutions || size > r.bytes) {
			for _, e := range r.order[:i+1] {
				r.drop(e)
			}
			r.order = slices.Delete(r.order, 0, i+1)
			return
		}
	}
}

// close kills all executions and waits for them.
func (r *registry) close() {
	r.mu.Lock()
	r.shut = true
	r.mu.Unlock()
	for _, e := range r.all() {
		e.Kill()
		e.Log.Unblock()
	}
	r.wg.Wait()
}

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
func newTombstone(id string, last uint64, o agent.Outcome) tombstone {
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
	const limit = 1<<31 - 1
	return int32(max(min(n, limit), -limit)) //nolint:gosec // it is within the range
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

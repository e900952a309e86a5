//go:build integration

package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// world is a farm under test: the real store, queue and dispatcher on a real Redis, and the records as they were after the last step. Its two
// tenants take turns, see swap.
type world struct {
	t   failer
	r   *rapid.T              // draws where and how to crash; nil: calls do not crash
	rdb redis.UniversalClient // sees everything, never crashes

	server redis.UniversalClient // of the processes under test
	crash  *testbed.Crasher
	clock  time.Time
	limits farm.Limits
	jumps  time.Duration // by which time has passed for expiry

	books                   // of the tenant whose turn it is
	other *books            // of the other one; nil: there is none
	owner map[string]string // tenants by the ids of jobs

	*dispatch.Dispatcher
	store *store.Store
	queue *queue.Client

	number  int // of the last id
	crashes int
	beats   uint64                    // so far
	running map[string]map[string]int // by worker: the jobs that it has, and their attempts
	saved   snapshot                  // before the first one: nothing
}

// failer is what the model needs of a test.
type failer interface {
	Context() context.Context
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// The limits are small, so that a few jobs reach them.
const (
	modelShare      = 2
	modelMaxRunning = 3
	modelMemory     = 100 // MiB of each sandbox
)

// newWorld empties Redis and starts the first process.
func newWorld(t *rapid.T, rdb, server redis.UniversalClient, crash *testbed.Crasher) *world {
	limits := farm.DefaultLimits()
	limits.QueueShare, limits.MaxQueueDepth, limits.MaxWaiting = modelShare, 6, 4
	limits.HiddenSeconds = limits.RetentionSeconds // longer than mostJumps, since Redis does not see the model's clock when it expires records
	limits.Quotas = farm.DefaultQuotas()
	limits.Quotas.MaxSandboxes = 5
	if rapid.Bool().Draw(t, "max_memory_mb is set") {
		limits.Quotas.MaxMemoryMB = 3*modelMemory + 1
	}
	if rapid.Bool().Draw(t, "max_queued is set") {
		limits.MaxQueued = 8
	}
	if rapid.Bool().Draw(t, "max_running is set") {
		limits.Quotas.MaxRunning = modelMaxRunning
	}
	w := &world{t: t, r: t, rdb: rdb, server: server, crash: crash, clock: time.Now().Add(-24 * time.Hour).Truncate(time.Millisecond), limits: limits, running: map[string]map[string]int{}, owner: map[string]string{}}
	w.tenant, w.other = storetest.Tenant, &books{tenant: "globex"}
	w.must(rdb.FlushAll(t.Context()).Err())
	w.start()
	w.each(func() { w.now = w.read() })
	return w
}

// start starts a process: what the one before it remembered is gone.
func (w *world) start() {
	w.crash.Heal()
	w.store = store.New(w.server, queue.EnqueueLua(), store.Options{Limits: w.limits, Now: w.tick})
	w.queue = queue.NewClient(w.server, nil)
	w.Dispatcher = dispatch.New(w.store, w.queue, w.limits, quiet)
	w.SetNow(func() time.Time { return w.clock.Add(time.Hour) }) // every job is old enough for the sweep
}

// tick is the store's clock. It moves with every look, so that no two jobs were accepted at once.
func (w *world) tick() time.Time {
	w.clock = w.clock.Add(time.Millisecond)
	return w.clock
}

func (w *world) must(err error) {
	if err != nil {
		w.t.Fatal(err)
	}
}

// newID names a record. The ids are short, since a person reads the failures.
func (w *world) newID(kind string) string {
	w.number++
	return fmt.Sprintf("%s_%d", kind, w.number)
}

// read reads the records of the tenant.
func (w *world) read() *records {
	keys := "sf:{" + w.tenant + "}:"
	found, err := storetest.ReadDump(w.t.Context(), w.rdb, keys)
	w.must(err)
	dump := storetest.Dump{}
	for name, v := range found {
		dump[strings.TrimPrefix(name, keys)] = v
	}
	r, err := decode(dump)
	w.must(err)
	return r
}

// steps are the records that a call may leave behind: as they were before, then after each of its scripts.
type steps []*records

// next is the prediction of the next script: a copy of the last one, to be changed.
func (s *steps) next() *records {
	r := s.last().clone()
	*s = append(*s, r)
	return r
}

func (s *steps) last() *records { return (*s)[len(*s)-1] }

// step makes a call that may crash, and compares what it left behind with what the rule predicts. The rule returns the error of a call that is
// refused, which changes nothing.
func (w *world) step(what string, rule func(*steps) error, call func(ctx context.Context) error) {
	predicted := steps{w.now}
	want := rule(&predicted)
	err, crashed := w.perform(what, call)
	after := w.read()
	if !crashed {
		if !sameKind(err, want) {
			w.t.Fatalf("%s gave the error %v, want %v", what, err, want)
		}
		predicted = predicted[len(predicted)-1:]
	}
	var diff string
	for _, r := range predicted {
		if diff = r.diff(after); diff == "" {
			break
		}
	}
	if diff != "" {
		w.t.Fatalf("%s (crashed: %v) does not leave what is predicted (-predicted +stored):\n%s", what, crashed, diff)
	}
	w.accept(what, after)
}

// call makes a call whose effect is not predicted; only the rules that hold for every change are checked.
func (w *world) call(what string, call func(ctx context.Context) error) (crashed bool) {
	err, crashed := w.perform(what, call)
	if err != nil && !crashed {
		w.t.Fatalf("%s: %v", what, err)
	}
	w.accept(what, w.read())
	return crashed
}

// perform makes a call that may crash at any of its commands, before or after Redis has run it. After a crash a new process takes over.
func (w *world) perform(what string, call func(ctx context.Context) error) (err error, crashed bool) { //nolint:revive,staticcheck // crashed qualifies err
	if w.r != nil {
		if at := rapid.IntRange(-6, 8).Draw(w.r, what+": crash at command"); at > 0 {
			w.crash.Arm(at, rapid.Bool().Draw(w.r, "the command was carried out"))
		}
	}
	err = call(w.t.Context())
	if crashed = w.crash.Dead(); crashed {
		w.crashes++
		w.start()
	}
	w.crash.Heal()
	return err, crashed
}

// accept checks what holds after every step, and makes it the state before the next one.
func (w *world) accept(what string, after *records) {
	w.legal(what, after)
	if found := after.violations(w.limits.QueueShare, w.limits.Quotas.MaxRunning); len(found) > 0 {
		w.t.Fatalf("after %s:\n%s", what, strings.Join(found, "\n"))
	}
	w.now = after
}

// legal checks that records only move forward, and that none disappears.
func (w *world) legal(what string, after *records) {
	for id, before := range w.now.Jobs {
		j := after.Jobs[id]
		switch {
		case j == nil:
			w.t.Fatalf("%s removed the job %s, which was %s", what, id, before.State)
		case before.State.Final() && *j != *before:
			w.t.Fatalf("%s changed %s, which was final: %+v → %+v", what, id, *before, *j)
		case j.Attempt < before.Attempt || j.GracefulRequeues < before.GracefulRequeues || j.Seq != before.Seq || j.Left != before.Left && before.Left || before.Cancel && !j.Cancel:
			w.t.Fatalf("%s moved %s back: %+v → %+v", what, id, *before, *j)
		}
	}
	for id, before := range w.now.Boxes {
		b := after.Boxes[id]
		switch {
		case b == nil:
			w.t.Fatalf("%s removed the sandbox %s, which was %s", what, id, before.State)
		case before.State.Final() && b.State != before.State:
			w.t.Fatalf("%s changed the sandbox %s, which was final: %+v → %+v", what, id, *before, *b)
		case b.Generation < before.Generation:
			w.t.Fatalf("%s lowered the generation of the sandbox %s: %d → %d", what, id, before.Generation, b.Generation)
		}
	}
}

// sameKind compares errors by what a caller sees of them.
func sameKind(got, want error) bool {
	for _, kind := range []error{store.ErrFenced, store.ErrNotClaimable, store.ErrMove, store.ErrCanceled} {
		if errors.Is(want, kind) || errors.Is(got, kind) {
			return errors.Is(want, kind) == errors.Is(got, kind)
		}
	}
	return (got == nil) == (want == nil) && farm.CodeOf(got) == farm.CodeOf(want)
}

func (w *world) kill(t *rapid.T) {
	worker := rapid.SampledFrom(modelWorkers).Draw(t, "worker")
	w.call("end of "+worker, func(ctx context.Context) error { return w.store.RemoveWorker(ctx, worker) })
	delete(w.running, worker)
}

func (w *world) revive(t *rapid.T) {
	w.beat(rapid.SampledFrom(modelWorkers).Draw(t, "worker"))
}

// beat sends a heartbeat that does not expire: a slow machine must not change what is predicted.
func (w *world) beat(worker string) {
	for id, attempt := range w.jobsOf(worker) {
		if j := w.now.Jobs[id]; j != nil && (j.State != farm.JobRunning || j.Attempt != attempt) { // its writes are fenced
			delete(w.running[worker], id)
		}
	}
	w.beats++
	w.call("heartbeat of "+worker, func(ctx context.Context) error {
		return w.store.Heartbeat(ctx, farm.Worker{ID: worker, Node: nodeOf(worker), Beat: w.beats, Jobs: maps.Clone(w.running[worker])})
	})
	w.must(w.rdb.Persist(w.t.Context(), "sf:worker:"+worker).Err())
}

func (w *world) sweep(*rapid.T) {
	w.call("sweep", func(ctx context.Context) error {
		_, err := w.Sweep(ctx, w.tenant)
		return err
	})
}

// write writes what a worker writes while a job runs.
func (w *world) write(t *rapid.T) {
	id := pick(t, "job", w.now.jobIDs())
	if id == "" {
		return
	}
	j := w.now.Jobs[id]
	attempt := j.Attempt - rapid.SampledFrom([]int{0, 0, 1}).Draw(t, "attempts ago")
	w.step("checkpoint of "+id, w.writeRule(id, attempt), func(ctx context.Context) error {
		return w.store.Checkpoint(ctx, w.ref(id), attempt, []byte("{}"))
	})
	w.step("reservation of "+id, w.writeRule(id, attempt), func(ctx context.Context) error {
		_, _, err := w.store.ReserveStored(ctx, w.ref(id), attempt, 1000)
		return err
	})
}

// writeRule predicts a write of a job's worker, which changes no record.
func (w *world) writeRule(id string, attempt int) func(*steps) error {
	return func(s *steps) error {
		if j := s.last().Jobs[id]; j.State != farm.JobRunning || j.Attempt != attempt {
			return store.ErrFenced
		}
		return nil
	}
}

// repair compares all counts with the records: nothing may have drifted, and nothing may be trimmed. What is stored is compared record by
// record, so that other steps come between.
func (w *world) repair(*rapid.T) {
	ctx := w.t.Context()
	drift, err := w.store.RepairUse(ctx, w.tenant)
	if err != nil || len(drift) > 0 {
		w.t.Fatalf("what counts against quotas has drifted by %v, %v", drift, err)
	}
	stored, _, err := w.store.RepairStored(ctx, w.tenant, 1, false)
	if err != nil || stored != (store.StoredDrift{}) {
		w.t.Fatalf("what is stored has drifted by %+v, %v", stored, err)
	}
	trimmed, err := w.store.Trim(ctx, w.tenant)
	if err != nil || trimmed != (store.Trimmed{}) {
		w.t.Fatalf("trimmed %+v, %v", trimmed, err)
	}
}

// prolong changes deadlines.
func (w *world) prolong(t *rapid.T) {
	box := pick(t, "sandbox", slices.DeleteFunc(w.now.boxIDs(), func(id string) bool { return !w.now.Boxes[id].State.Accepts() }))
	if box == "" {
		return
	}
	ttl, idle := rapid.IntRange(10, 9000).Draw(t, "ttl"), rapid.IntRange(0, 900).Draw(t, "idle")
	w.call("update of "+box, func(ctx context.Context) error {
		_, err := w.store.UpdateSandbox(ctx, w.ref(box), store.SandboxPatch{TTLSeconds: &ttl, IdleSeconds: &idle})
		return err
	})
}

// loseTask takes a task out of its queue whose worker dies at once.
func (w *world) loseTask(t *rapid.T) {
	if queue := pick(t, "queue", w.queues()); queue != "" {
		w.pop(queue)
	}
}

//go:build integration

package dispatch_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// jobRecord is what the model knows of a job.
type jobRecord struct {
	ID, Box, Worker, Queue              string
	Kind                                farm.JobKind
	State                               farm.JobState
	Attempt, GracefulRequeues           int
	Inline, Hidden, Left, Cancel, Calls bool
	Seq, Created                        int64

	waitsIn string // the queue share of which it has a slot, or for which it is parked; not predicted but checked by invariants
}

// waits reports whether the job has a place in the FIFO of its sandbox.
func (j *jobRecord) waits() bool { return !j.State.Final() && !j.Inline && !j.Left }

// urgent jobs are not refused.
func (j *jobRecord) urgent() bool {
	return j.Kind == farm.KindClose || j.Kind == farm.KindInterrupt || j.Kind == farm.KindRestart
}

// creates reports whether the job makes its sandbox.
func (j *jobRecord) creates() bool { return j.Kind == farm.KindCreate || j.Kind == farm.KindRun }

// boxRecord is what the model knows of a sandbox.
type boxRecord struct {
	ID, Node, Close string
	State           farm.SandboxState
	Generation      int
	Seq             int64

	charge              string
	open                bool // it counts as a sandbox
	expires, used, idle int64
}

// records are the jobs and sandboxes of the tenant at one moment.
type records struct {
	Jobs  map[string]*jobRecord
	Boxes map[string]*boxRecord

	dump storetest.Dump // without the prefix of the tenant's keys; nil in a prediction
}

// clone copies the records, so that a rule can change them.
func (r *records) clone() *records {
	c := &records{Jobs: map[string]*jobRecord{}, Boxes: map[string]*boxRecord{}}
	for id, j := range r.Jobs {
		job := *j
		c.Jobs[id] = &job
	}
	for id, b := range r.Boxes {
		box := *b
		c.Boxes[id] = &box
	}
	return c
}

// diff compares what is predicted with what is stored; "" if they are the same.
func (r *records) diff(stored *records) string {
	ignore := gocmp.FilterPath(func(p gocmp.Path) bool {
		field, ok := p.Last().(gocmp.StructField)
		return ok && (field.Name() == "" || field.Name()[0] >= 'a' && field.Name()[0] <= 'z')
	}, gocmp.Ignore())
	return gocmp.Diff(r, stored, gocmp.AllowUnexported(records{}, jobRecord{}, boxRecord{}), ignore)
}

// jobIDs are the ids in the order of acceptance.
func (r *records) jobIDs() []string {
	return slices.SortedFunc(maps.Keys(r.Jobs), func(a, b string) int { return cmp.Compare(r.Jobs[a].Seq, r.Jobs[b].Seq) })
}

func (r *records) boxIDs() []string {
	return slices.SortedFunc(maps.Keys(r.Boxes), func(a, b string) int { return cmp.Compare(r.Boxes[a].Seq, r.Boxes[b].Seq) })
}

// fifo are the jobs of a sandbox's FIFO in order: those that are unfinished, wait in it and have not left it, as they were accepted.
func (r *records) fifo(box string) []string {
	return slices.DeleteFunc(r.jobIDs(), func(id string) bool { return r.Jobs[id].Box != box || !r.Jobs[id].waits() })
}

// head reports whether a job is the first of its FIFO.
func (r *records) head(id string) bool {
	fifo := r.fifo(r.Jobs[id].Box)
	return len(fifo) > 0 && fifo[0] == id
}

// turn reports whether a queued job may run: it is the first of its FIFO, or not in one.
func (r *records) turn(id string) bool {
	j := r.Jobs[id]
	return j.Inline || j.Left || r.head(id)
}

// unfinished are the unfinished jobs of a sandbox, also those outside its FIFO.
func (r *records) unfinished(box string) []string {
	return slices.DeleteFunc(r.jobIDs(), func(id string) bool { return r.Jobs[id].Box != box || r.Jobs[id].State.Final() })
}

// alike counts the unfinished jobs of a sandbox that are of the same kind.
func (r *records) alike(j *farm.Job) (waiting, running int) {
	for _, id := range r.unfinished(j.SandboxID) {
		switch other := r.Jobs[id]; {
		case other.Kind != j.Kind:
		case other.State == farm.JobQueued:
			waiting++
		default:
			running++
		}
	}
	return waiting, running
}

// decode reads the records from a dump.
func decode(dump storetest.Dump) (*records, error) {
	r := &records{Jobs: map[string]*jobRecord{}, Boxes: map[string]*boxRecord{}, dump: dump}
	for name, v := range dump {
		kind, id, _ := strings.Cut(name, ":")
		f := fields{Hash: v.Hash}
		switch kind {
		case "job":
			r.Jobs[id] = &jobRecord{
				ID: id, Box: f.Hash["sandbox"], Worker: f.Hash["worker"], Queue: f.Hash["queue"], Kind: farm.JobKind(f.Hash["kind"]), State: farm.JobState(f.Hash["state"]),
				Attempt: int(f.int("attempt")), GracefulRequeues: int(f.int("spared")), Inline: f.is("inline"), Hidden: f.is("hidden"), Left: f.is("left"), Cancel: f.is("cancel"), Calls: f.is("cb"),
				Seq: f.int("seq"), Created: f.int("created"), waitsIn: f.Hash["aq"],
			}
		case "sbx":
			r.Boxes[id] = &boxRecord{
				ID: id, Node: f.Hash["node"], Close: f.Hash["close"], State: farm.SandboxState(f.Hash["state"]), Seq: f.int("seq"), Generation: int(max(f.int("gen"), 1)),
				charge: f.Hash["charge"], open: f.Hash["size"] != "", expires: f.int("expires"), used: f.int("used"), idle: f.int("idle"),
			}
		}
		if f.err != nil {
			return nil, fmt.Errorf("%s: %w", name, f.err)
		}
	}
	return r, nil
}

// fields reads the fields of a hash.
type fields struct {
	Hash map[string]string
	err  error
}

func (f *fields) is(name string) bool { return f.Hash[name] == "1" }

// int reads a whole number; 0 if there is none.
func (f *fields) int(name string) int64 {
	text := f.Hash[name]
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		f.err = fmt.Errorf("field %s: %w", name, err)
	}
	return n
}

// TestModelAfterMigration: records that an older release left behind satisfy the model once they are migrated, and all of their unfinished jobs
// come to their end.
func TestModelAfterMigration(t *testing.T) {
	t.Parallel()
	dump, err := storetest.LoadDump("../store/testdata/schema0.json")
	testbed.Must(t, err)
	for tenant, unfinished := range map[string]int{"acme": 10, "globex": 1, "initech": 10} {
		t.Run(tenant, func(t *testing.T) {
			t.Parallel()
			server, crash := testbed.NewRedis(t), &testbed.Crasher{}
			rdb := server.Client(t)
			w := &world{t: t, rdb: rdb, server: rdb, crash: crash, limits: farm.DefaultLimits(), running: map[string]map[string]int{}, owner: map[string]string{}}
			w.tenant = tenant
			w.clock = time.Date(2026, 11, 22, 13, 0, 0, 0, time.UTC)
			w.must(dump.Restore(t.Context(), rdb))
			w.start()
			from, err := w.store.Migrate(t.Context())
			testbed.Require(t, err == nil && from == 0, "Migrate = from %d, %v", from, err)
			w.now = w.read()
			n := 0
			for _, j := range w.now.Jobs {
				if !j.State.Final() {
					n++
				}
			}
			testbed.Diff(t, "jobs are unfinished after the migration", unfinished, n)
			w.accept("the migration", w.now)
			w.settle()
		})
	}
}

// queues are the queues with tasks.
func (w *world) queues() []string {
	keys, err := w.rdb.Keys(w.t.Context(), "asynq:{*}:pending").Result()
	w.must(err)
	slices.Sort(keys)
	for i, key := range keys {
		keys[i] = strings.TrimSuffix(strings.TrimPrefix(key, "asynq:{"), "}:pending")
	}
	return slices.DeleteFunc(keys, func(queue string) bool { return strings.HasPrefix(queue, "callback") })
}

// pop takes the next task of a queue, and returns the id of its job; "" if the queue is empty.
func (w *world) pop(queue string) string {
	id, err := w.rdb.RPop(w.t.Context(), "asynq:{"+queue+"}:pending").Result()
	if err != nil {
		return ""
	}
	w.must(w.rdb.Del(w.t.Context(), "asynq:{"+queue+"}:t:"+id).Err())
	job, _, _ := strings.Cut(id, ".")
	return job
}

// settle runs the farm without crashes until its queues are empty: then every accepted job has come to its end. The workers so far go on
// with what they have, or are dead.
func (w *world) settle() {
	dead := w.r == nil || rapid.Bool().Draw(w.r, "the workers are dead")
	w.r = nil
	registered, err := w.store.Workers(w.t.Context())
	w.must(err)
	workers := freshWorkers
	for _, worker := range registered {
		if dead {
			w.must(w.store.RemoveWorker(w.t.Context(), worker.ID))
			delete(w.running, worker.ID)
		} else {
			workers = append(workers, worker.ID)
		}
	}
	for n := 0; n < 20 && w.unfinished() > 0; n++ {
		for _, worker := range workers {
			w.beat(worker)
			for _, id := range slices.Sorted(maps.Keys(w.running[worker])) {
				w.fulfil(id)
			}
		}
		w.each(func() { w.sweep(nil) })
		for _, queue := range w.queues() {
			for id := w.pop(queue); id != ""; id = w.pop(queue) {
				w.carryOut(id, queue)
			}
		}
	}
	w.each(func() {
		for _, id := range w.unfinishedJobs() {
			w.t.Fatalf("%s never ends: %+v in sandbox %+v", id, *w.now.Jobs[id], w.now.Boxes[w.now.Jobs[id].Box])
		}
		w.repair(nil)
	})
}

// unfinished counts the unfinished jobs of all tenants.
func (w *world) unfinished() (n int) {
	w.each(func() { n += len(w.unfinishedJobs()) })
	return n
}

func (w *world) unfinishedJobs() []string {
	return slices.DeleteFunc(w.now.jobIDs(), func(id string) bool { return w.now.Jobs[id].State.Final() })
}

// freshWorkers are those of settle.
var freshWorkers = []string{"wrk_y", "wrk_z"}

// carryOut does what a worker does with a task.
func (w *world) carryOut(id, queue string) {
	worker := "wrk_y"
	if queue == farm.NodeQueue("n2") {
		worker = "wrk_z"
	}
	w.turn(id)
	j := w.now.Jobs[id]
	if j == nil {
		w.t.Fatalf("queue %s has a task of %s, which does not exist", queue, id)
	}
	if rule := w.claimRule(id, worker, w.alive); rule(&steps{w.now}) != nil {
		return // another task of the job was first
	}
	w.claimBy(id, worker)
	w.fulfil(id)
}

// fulfil takes a running job to its end.
func (w *world) fulfil(id string) {
	w.turn(id)
	j := w.now.Jobs[id]
	if j == nil { // Redis was restored from a snapshot that is older than the job
		if err := w.Finish(w.t.Context(), store.Finish{Ref: w.ref(id), Attempt: 1, State: farm.JobCompleted}); farm.CodeOf(err) != farm.CodeNotFound {
			w.t.Fatalf("end of %s, which Redis has lost: %v", id, err)
		}
		return
	}
	box := w.now.Boxes[j.Box]
	switch {
	case j.State != farm.JobRunning:
	case !box.State.Accepts() && j.Kind != farm.KindClose:
		w.end(id, w.now.Jobs[id].Attempt, farm.JobFailed)
	case j.creates():
		for range 2 {
			if state := w.now.Boxes[j.Box].State; state == farm.SandboxQueued || state == farm.SandboxStarting {
				w.advance(id)
			}
		}
		w.end(id, w.now.Jobs[id].Attempt, farm.JobCompleted)
	case j.Kind == farm.KindClose:
		w.call("close of "+box.ID, func(ctx context.Context) error {
			for _, other := range slices.Backward(w.now.unfinished(box.ID)) {
				if other != id {
					if err := w.Force(ctx, w.ref(other), farm.JobCanceled, nil); err != nil {
						return err
					}
				}
			}
			_, err := w.store.MoveSandbox(ctx, store.Move{Ref: w.ref(box.ID), To: farm.SandboxClosed})
			if box.State.Final() {
				return nil
			}
			return err
		})
		w.end(id, w.now.Jobs[id].Attempt, farm.JobCompleted)
	default:
		w.end(id, w.now.Jobs[id].Attempt, farm.JobCompleted)
	}
}

// requeue gives a job back, as a worker does that has no room for it, that stops, or whose engine or node is dead.
func (w *world) requeue(t *rapid.T) {
	active := slices.DeleteFunc(w.now.jobIDs(), func(id string) bool {
		j := w.now.Jobs[id]
		return j.State.Final() || j.Worker == "none" || j.State == farm.JobQueued && !j.creates()
	})
	id := pick(t, "job", active)
	if id == "" {
		return
	}
	j := w.now.Jobs[id]
	how := store.Requeue{
		Attempt:   j.Attempt - rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "attempts ago"),
		Elsewhere: j.creates() && (j.State == farm.JobQueued || rapid.Bool().Draw(t, "elsewhere")),
		Crashed:   rapid.Bool().Draw(t, "its worker died"),
	}
	how.Begun = !how.Elsewhere && rapid.Bool().Draw(t, "it goes on")
	w.step(fmt.Sprintf("requeue of %s: %+v", id, how), w.requeueRule(id, how), func(ctx context.Context) error {
		return w.store.Requeue(ctx, w.ref(id), how)
	})
}

// requeueRule predicts store.Requeue.
func (w *world) requeueRule(id string, how store.Requeue) func(*steps) error {
	return func(s *steps) error {
		j := s.last().Jobs[id]
		if j.State.Final() || j.Attempt != how.Attempt || how.Begun && j.State != farm.JobRunning {
			return store.ErrFenced
		}
		b := s.last().Boxes[j.Box]
		if how.Elsewhere && b.State != farm.SandboxQueued && b.State != farm.SandboxStarting {
			return store.ErrMove
		}
		r := s.next()
		j, b = r.Jobs[id], r.Boxes[j.Box]
		if how.Elsewhere {
			if b.State == farm.SandboxStarting || b.Node != "" {
				b.Generation++
			}
			b.State, b.Node = farm.SandboxQueued, ""
		}
		running := j.State == farm.JobRunning
		if j.Cancel && running && !how.Begun {
			return store.ErrCanceled
		}
		if running && j.Worker != "none" && !how.Crashed {
			j.GracefulRequeues++
		}
		if how.Begun {
			j.Worker = "none"
			return nil
		}
		if how.Elsewhere && strings.HasPrefix(j.Queue, farm.NodeQueue("")) {
			j.Queue = farm.QueueCPU
		}
		if !running {
			return nil
		}
		if b.State == farm.SandboxBusy && j.waits() {
			b.State = farm.SandboxReady
		}
		j.State, j.Worker = farm.JobQueued, ""
		return nil
	}
}

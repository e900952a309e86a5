//go:build integration

package dispatch_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
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
				charge: f.Hash["charge"], expires: f.int("expires"), used: f.int("used"), idle: f.int("idle"),
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

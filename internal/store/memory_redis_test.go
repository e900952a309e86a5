//go:build integration

package store_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// memoryWorld is a Redis of its own, with a sandbox for each tenant.
type memoryWorld struct {
	*testing.T
	rdb   redis.UniversalClient
	s     *store.Store
	boxes map[string]string // by tenant
}

func newMemoryWorld(t *testing.T) *memoryWorld {
	rdb := testbed.NewRedis(t, "--maxmemory-policy", "noeviction").Client(t)
	return &memoryWorld{T: t, rdb: rdb, s: store.New(rdb, storetest.NoTasks, store.Options{}), boxes: map[string]string{}}
}

func (w *memoryWorld) must(_ any, err error) {
	w.Helper()
	testbed.Must(w, err)
}

// job accepts a job of a tenant, in a sandbox of its own that is ready.
func (w *memoryWorld) job(tenant string) store.Accept {
	w.Helper()
	ctx := w.Context()
	if w.boxes[tenant] == "" {
		a := storetest.Create()
		a.Job.Tenant, a.Sandbox.Tenant = tenant, tenant
		w.must(w.s.Accept(ctx, a))
		w.must(w.s.Claim(ctx, a.Job.Ref(), "w"))
		for _, state := range []farm.SandboxState{farm.SandboxStarting, farm.SandboxReady} {
			w.must(w.s.MoveSandbox(ctx, store.Move{Ref: a.Sandbox.Ref(), To: state, Node: "n1"}))
		}
		w.must(w.s.Finish(ctx, store.Finish{Ref: a.Job.Ref(), Attempt: 1, State: farm.JobCompleted}))
		w.boxes[tenant] = a.Sandbox.ID
	}
	a := storetest.Execute(w.boxes[tenant])
	a.Job.Tenant, a.Job.CreatedAt = tenant, time.UnixMicro(1_800_000_000_123_456) // as long in each record
	return a
}

// finished makes finished jobs of a tenant with results of 30 KB, the oldest first.
func (w *memoryWorld) finished(tenant, callback string, n int) []farm.Ref {
	w.Helper()
	ctx := w.Context()
	result := &farm.Result{Execute: &farm.ExecuteResult{Stdout: strings.Repeat("x", 30_000)}}
	list := make([]farm.Ref, n)
	for i := range list {
		a := w.job(tenant)
		a.Job.CallbackURL = callback
		list[i] = a.Job.Ref()
		w.must(w.s.Accept(ctx, a))
		w.must(w.s.Claim(ctx, list[i], "w"))
		w.must(w.s.Finish(ctx, store.Finish{Ref: list[i], Attempt: 1, State: farm.JobCompleted, Result: result}))
	}
	return list
}

// fill sets the memory limit so that Redis uses so many percent of it.
func (w *memoryWorld) fill(percent float64) (limit float64) {
	w.Helper()
	limit = float64(w.used()) * 100 / percent
	w.must(nil, w.rdb.ConfigSet(w.Context(), "maxmemory", strconv.Itoa(int(limit))).Err())
	return limit
}

func (w *memoryWorld) used() int {
	w.Helper()
	info, err := w.rdb.InfoMap(w.Context(), "memory").Result()
	w.must(nil, err)
	used, err := strconv.Atoi(info["Memory"]["used_memory"])
	w.must(nil, err)
	return used
}

// above reports whether Redis uses more than a number of bytes, and not only by what its buffers take at one moment and not at the next: the size of
// about two jobs.
func (w *memoryWorld) above(bytes float64) bool {
	w.Helper()
	return float64(w.used()) >= bytes+64<<10
}

// forget calls ForgetFinished of a store whose clock is ahead, and checks the counts behind it.
func (w *memoryWorld) forget(ahead time.Duration) map[string]store.Forgotten {
	w.Helper()
	s := store.New(w.rdb, storetest.NoTasks, store.Options{Now: func() time.Time { return time.Now().Add(ahead) }})
	list, err := s.ForgetFinished(w.Context())
	w.must(nil, err)
	out := map[string]store.Forgotten{}
	for _, f := range list {
		out[f.Tenant] = f
	}
	for tenant := range w.boxes {
		if drift, checked, err := s.RepairJobMemory(w.Context(), tenant); err != nil || !checked || drift != (store.JobMemory{}) {
			w.Errorf("RepairJobMemory(%s) = %+v, %v, %v", tenant, drift, checked, err)
		}
	}
	return out
}

// kept counts the jobs that are still there, and checks that the oldest are gone.
func (w *memoryWorld) kept(list []farm.Ref) int {
	w.Helper()
	n := 0
	for _, ref := range list {
		_, err := w.s.Job(w.Context(), ref)
		switch code := farm.CodeOf(err); {
		case err == nil:
			n++
		case code != farm.CodeNotFound:
			w.Fatal(err)
		case n > 0:
			w.Errorf("job %s of %s is gone before older ones", ref.ID, ref.Tenant)
		}
	}
	return n
}

// TestOneTenantsFinishedJobsMakeRoom fills Redis with the jobs of one tenant: they make room, the oldest first, and those of others stay.
func TestOneTenantsFinishedJobsMakeRoom(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	loud, quiet := w.finished("loud", "", 200), w.finished("quiet", "", 10)

	w.fill(49)
	gone := w.forget(time.Hour)
	testbed.Check(t, len(gone) == 0, "below half of the memory %+v are removed", gone)
	limit := w.fill(59)
	gone = w.forget(10 * time.Second)
	testbed.Check(t, len(gone) == 0, "jobs that ended just now are removed: %+v", gone)
	for rounds := 0; w.above(limit / 2); rounds++ { // what is counted is an estimate
		if gone := w.forget(time.Hour); gone["loud"].Records == 0 || rounds > 20 {
			t.Fatalf("nothing is removed at %d of %.0f bytes: %+v", w.used(), limit, gone)
		}
	}
	n := w.kept(loud)
	testbed.Check(t, n >= 100 && n <= 190, "%d of %d jobs are left at half of the memory", n, len(loud))
	n = w.kept(quiet)
	testbed.Check(t, n == len(quiet), "the neighbour has lost %d jobs", len(quiet)-n)
	keys, err := w.rdb.Keys(t.Context(), "*"+loud[0].ID+"*").Result()
	testbed.Check(t, err == nil && len(keys) == 0, "a removed job left the keys %v, %v", keys, err)
	_, err = w.s.Accept(t.Context(), w.job("quiet"))
	testbed.Check(t, err == nil, "the neighbour is refused: %v", err)
}

// TestNewFinishedJobsMakeRoom fills Redis faster than jobs grow old. Beside another tenant they go as soon as they can have been read, down to
// 60 %; of a tenant alone they stay.
func TestNewFinishedJobsMakeRoom(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	loud := w.finished("loud", "", 200)
	w.fill(69)
	gone := w.forget(10 * time.Second)
	testbed.Check(t, len(gone) == 0, "a tenant alone lost jobs that ended just now: %+v", gone)
	quiet := w.finished("quiet", "", 10)
	limit := w.fill(69)
	gone = w.forget(0)
	testbed.Check(t, gone["loud"].Records != len(loud), "all jobs are removed at once: %+v", gone) // those of the last second stay
	for rounds := 0; w.above(0.6 * limit); rounds++ {
		if gone := w.forget(10 * time.Second); gone["loud"].Records == 0 || rounds > 20 {
			t.Fatalf("nothing is removed at %d of %.0f bytes: %+v", w.used(), limit, gone)
		}
	}
	n := w.kept(loud)
	testbed.Check(t, n >= 100, "%d of %d jobs are left at 60 %% of the memory", n, len(loud))
	n = w.kept(quiet)
	testbed.Check(t, n == len(quiet), "the neighbour has lost %d jobs", len(quiet)-n)
}

// TestTenantsWithinTheirShareLoseNothing: where something else than jobs fills Redis, no jobs are removed for it. Of two tenants with much, both
// lose the same.
func TestTenantsWithinTheirShareLoseNothing(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	a, b, small := w.finished("a", "", 60), w.finished("b", "", 100), w.finished("small", "", 3)
	limit := w.fill(60)
	for w.above(limit / 2) {
		gone := w.forget(time.Hour)
		testbed.Require(t, len(gone) != 0, "nothing is removed")
	}
	n, m := w.kept(a), w.kept(b)
	testbed.Check(t, n <= m+40 && m <= n+40 && n+m >= 100, "%d and %d jobs are left of 60 and 100", n, m) // by turns of a MiB
	w.must(nil, w.rdb.SetRange(t.Context(), "ballast", 64<<20-1, "x").Err())
	w.fill(90)
	before := w.kept(b)
	gone := w.forget(time.Hour)
	testbed.Check(t, len(gone) == 0 && w.kept(b) == before && w.kept(small) == len(small), "jobs are removed for other data: %+v", gone)
}

// lists makes lists of artifacts of a tenant of so many bytes, as they are counted.
func (w *memoryWorld) lists(tenant string, bytes int) {
	w.Helper()
	w.must(nil, w.rdb.HSet(w.Context(), "sf:{"+tenant+"}:stored", "manifests", bytes).Err())
	w.must(nil, w.rdb.SetRange(w.Context(), "lists of "+tenant, int64(bytes)-1, "x").Err())
}

// TestFinishedJobsMakeRoomForLists: lists of artifacts stay for days. They were not counted for their tenant, whose finished jobs stayed beside them; and
// with those of others, who had no more than their share, Redis was so full that all tenants were refused.
func TestFinishedJobsMakeRoomForLists(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	_, quiet := w.finished("evil", "", 200), w.finished("quiet", "", 200)
	w.lists("evil", int(w.memory("evil")))
	limit := w.fill(72) // a third of it each
	for rounds := 0; w.above(0.6 * limit); rounds++ {
		if gone := w.forget(time.Hour); gone["evil"].Records == 0 || rounds > 20 {
			t.Fatalf("at %d of %.0f bytes are removed %+v", w.used(), limit, gone)
		}
	}
	testbed.Diff(t, "finished jobs of the neighbour", len(quiet), w.kept(quiet))

	w = newMemoryWorld(t)
	w.finished("a", "", 100)
	w.finished("b", "", 100)
	w.job("evil")
	w.lists("evil", 2*int(w.memory("a")))
	limit = w.fill(74) // of these the lists have half: an equal share of 50 % for each of the others would leave more than 60 %
	for rounds := 0; w.above(0.6 * limit); rounds++ {
		if gone := w.forget(10 * time.Second); gone["a"].Records+gone["b"].Records == 0 || rounds > 20 {
			t.Fatalf("at %d of %.0f bytes are removed %+v", w.used(), limit, gone)
		}
	}
}

// TestCallbacksThatAreDueGoLast: a job whose callback is not delivered is removed only when its tenant has no others.
func TestCallbacksThatAreDueGoLast(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	owed, others := w.finished("loud", "https://example.com", 100), w.finished("loud", "", 50)
	w.finished("quiet", "", 1)
	limit := w.fill(60)
	for w.above(limit / 2) {
		gone := w.forget(time.Hour)
		testbed.Require(t, gone["loud"].Records != 0, "nothing is removed")
		if w.kept(owed) < len(owed) && w.kept(others) > 0 {
			t.Fatalf("a callback is given up beside %d other jobs", w.kept(others))
		}
	}
	w.fill(95)
	w.forget(time.Hour)
	n := w.kept(owed)
	left, err := w.s.Callbacks(t.Context(), "loud", 1000)
	testbed.Check(t, err == nil && n != len(owed) && len(left) == n, "%d callbacks are due for %d jobs of %d, %v", len(left), n, len(owed), err)
}

// TestCallbacksThatAreDueKeepNoOthers: one call looks at no more records than a tenant may have callbacks. With so many in front, nothing was removed, and
// Redis filled up. A job whose callback was delivered goes before those that expire later again.
func TestCallbacksThatAreDueKeepNoOthers(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	ctx := t.Context()
	const owed, size = 10_000, 6144
	first := w.finished("loud", "https://example.com", 1)[0]
	pipe := w.rdb.Pipeline()
	for i := range owed {
		id := fmt.Sprint("job_owed_", i)
		pipe.ZAdd(ctx, "sf:{loud}:callbacks", redis.Z{Score: float64(i), Member: id})
		pipe.ZAdd(ctx, "sf:{loud}:ended", redis.Z{Score: float64(time.Now().Add(2 * time.Hour).UnixMicro()), Member: fmt.Sprint(id, " ", size)})
	}
	pipe.HIncrBy(ctx, "sf:{loud}:mem", "finished", owed*size)
	w.must(pipe.Exec(ctx))
	others := w.finished("loud", "", 100)
	w.finished("quiet", "", 1)
	limit := w.fill(60)
	for rounds := 0; w.above(limit / 2); rounds++ {
		w.forget(time.Hour)
		testbed.Require(t, rounds < 5, "%d of %d jobs are left", w.kept(others), len(others))
	}
	n, m := w.kept(others), w.rdb.ZCard(ctx, "sf:{loud}:callbacks").Val()
	testbed.Check(t, n > 50 && n < len(others) && m == owed+1, "%d of %d jobs and %d callbacks are left", n, len(others), m)
	w.must(w.s.Job(ctx, first))

	w.must(nil, w.s.CallbackDone(ctx, first))
	w.fill(51)
	w.forget(time.Hour)
	_, err := w.s.Job(ctx, first)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound && w.kept(others) > 10, "%d others are left, and the job whose callback was delivered: %v", w.kept(others), err)
}

// TestFullRedisRefusesByKind: the fuller Redis is, the fewer kinds of jobs are accepted. What ends a sandbox always is.
func TestFullRedisRefusesByKind(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	work := w.job("acme")
	stop := storetest.Stop(farm.KindRestart, w.boxes["acme"], "")
	for _, c := range []struct {
		percent    float64
		work, stop bool
	}{{60, true, true}, {75, false, true}, {90, false, false}} {
		w.fill(c.percent)
		s := store.New(w.rdb, storetest.NoTasks, store.Options{}) // it has not read the memory limit before
		for _, accept := range []struct {
			store.Accept
			want bool
		}{{work, c.work}, {stop, c.stop}} {
			accept.Job.ID = farm.NewID(farm.JobPrefix)
			if _, err := s.Accept(t.Context(), accept.Accept); (err == nil) != accept.want || err != nil && farm.CodeOf(err) != farm.CodeExhausted {
				t.Errorf("%s at %v %%: %v, want it accepted: %v", accept.Job.Kind, c.percent, err, accept.want)
			}
		}
	}
	w.must(w.s.Accept(t.Context(), storetest.CloseJob(w.boxes["acme"])))
}

// closed makes sandboxes of a tenant with so many bytes of labels, and ends them, the oldest first.
func (w *memoryWorld) closed(tenant string, n, labels int) []farm.Ref {
	w.Helper()
	ctx := w.Context()
	list := make([]farm.Ref, n)
	for i := range list {
		a := storetest.Create()
		a.Job.Tenant, a.Sandbox.Tenant = tenant, tenant
		w.must(w.s.Accept(ctx, a))
		list[i] = a.Sandbox.Ref()
		w.must(w.s.UpdateSandbox(ctx, list[i], store.SandboxPatch{Labels: &map[string]string{"k": strings.Repeat("v", labels)}}))
		w.must(w.s.Claim(ctx, a.Job.Ref(), "w"))
		w.must(w.s.MoveSandbox(ctx, store.Move{Ref: list[i], To: farm.SandboxStarting, Node: "n1"}))
		w.must(w.s.MoveSandbox(ctx, store.Move{Ref: list[i], To: farm.SandboxFailed, Removed: i != 0})) // the container of the first one may run
		if i == 1 {
			w.must(nil, w.rdb.ZAdd(ctx, "sf:{"+tenant+"}:osj:"+list[i].ID, redis.Z{Member: "job_left"}).Err()) // and a job of the second one has not ended
		}
		w.must(w.s.Finish(ctx, store.Finish{Ref: a.Job.Ref(), Attempt: 1, State: farm.JobFailed}))
	}
	return list
}

// TestEndedSandboxesMakeRoom fills Redis with the records of sandboxes that one tenant has closed: they make room like finished jobs, but for one whose
// container may still run, which would be taken for a sandbox whose record Redis has lost, and one with jobs that have not ended.
func TestEndedSandboxesMakeRoom(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	loud, quiet := w.closed("loud", 200, 30_000), w.closed("quiet", 10, 30_000)
	w.boxes["loud"], w.boxes["quiet"] = loud[0].ID, quiet[0].ID // their counts are checked
	limit := w.fill(69)
	for rounds := 0; w.above(limit / 2); rounds++ {
		if gone := w.forget(time.Hour); gone["loud"].Records == 0 || rounds > 20 {
			t.Fatalf("nothing is removed at %d of %.0f bytes: %+v", w.used(), limit, gone)
		}
	}
	left := func(list []farm.Ref) (n int) {
		for _, ref := range list {
			if _, err := w.s.Sandbox(t.Context(), ref); err == nil {
				n++
			}
		}
		return n
	}
	n := left(loud)
	testbed.Check(t, n >= 80 && n <= 190, "%d of %d sandboxes are left at half of the memory", n, len(loud))
	n = left(quiet)
	testbed.Check(t, n == len(quiet), "the neighbour has lost %d sandboxes", len(quiet)-n)
	n = left(loud[:2])
	testbed.Check(t, n == 2, "the record of a sandbox whose container may still run, or that has jobs, is removed")
	for _, pattern := range []string{"*sbx:", "*egress:", "*pkg:"} {
		keys, err := w.rdb.Keys(t.Context(), pattern+loud[2].ID+"*").Result()
		testbed.Check(t, err == nil && len(keys) == 0, "a removed sandbox left the keys %v, %v", keys, err)
	}
	listed := 0
	for page := (store.Page{Limit: 500}); ; {
		found, next, err := w.s.Sandboxes(t.Context(), "loud", store.SandboxFilter{}, page)
		testbed.Must(t, err)
		if listed += len(found); next == "" {
			break
		}
		page.Cursor = next
	}
	testbed.Diff(t, "sandboxes in the list", left(loud), listed)
}

// TestCancelledCreatesAreBounded: the records of creates that were cancelled while they started stay for as long as their containers may run. No limit
// counted them, so one tenant filled Redis with them, and nobody's work was accepted for a week. They count as unfinished.
func TestCancelledCreatesAreBounded(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	ctx, limit := t.Context(), 16<<20
	quiet := w.job("quiet")
	w.must(nil, w.rdb.ConfigSet(ctx, "maxmemory", strconv.Itoa(limit)).Err())
	for n := 0; ; n++ {
		s := store.New(w.rdb, storetest.NoTasks, store.Options{}) // it has not read the memory before
		a := storetest.Create()
		a.Job.Tenant, a.Sandbox.Tenant = "loud", "loud"
		a.Sandbox.Spec.Labels = map[string]string{"k": strings.Repeat("v", 10_000)}
		if _, err := s.Accept(ctx, a); err != nil {
			testbed.Check(t, n > 100 && strings.Contains(err.Error(), "max_unfinished"), "create %d is refused: %v", n, err)
			break
		}
		w.must(s.Claim(ctx, a.Job.Ref(), "w"))
		w.must(s.MoveSandbox(ctx, store.Move{Ref: a.Sandbox.Ref(), To: farm.SandboxStarting, Node: "n1"}))
		w.must(s.MoveSandbox(ctx, store.Move{Ref: a.Sandbox.Ref(), To: farm.SandboxFailed}))
		w.must(s.Finish(ctx, store.Finish{Ref: a.Job.Ref(), Attempt: 1, State: farm.JobCanceled}))
		w.boxes["loud"] = a.Sandbox.ID // its counts are checked
		if n%50 == 0 {
			w.forget(time.Hour)
		}
	}
	testbed.Check(t, !w.above(0.55*float64(limit)), "Redis uses %d bytes of %d", w.used(), limit)
	w.must(w.s.Accept(ctx, quiet))
}

// TestRecordsOfTheReleaseBeforeThatMustStay: the release before counted ended sandboxes whose containers may still run as finished, among those that may go. There
// they stay, and count as unfinished from then on.
func TestRecordsOfTheReleaseBeforeThatMustStay(t *testing.T) {
	t.Parallel()
	w := newMemoryWorld(t)
	ctx, mem := t.Context(), "sf:{loud}:mem"
	box := w.closed("loud", 1, 30_000)[0]
	w.finished("loud", "", 60)
	w.finished("quiet", "", 1)
	before, err := w.s.JobMemory(ctx, "loud")
	w.must(nil, err)
	entry, err := w.rdb.ZRangeWithScores(ctx, "sf:{loud}:needed", 0, -1).Result()
	testbed.Require(t, err == nil && len(entry) == 1, "the index has %v, %v", entry, err)
	size, err := w.rdb.HGet(ctx, "sf:{loud}:sbx:"+box.ID, "size").Int64()
	w.must(nil, err)
	w.must(nil, errors.Join(w.rdb.Del(ctx, "sf:{loud}:needed").Err(), w.rdb.ZAdd(ctx, "sf:{loud}:ended", entry...).Err()))
	w.must(nil, errors.Join(w.rdb.HIncrBy(ctx, mem, "unfinished", -size).Err(), w.rdb.HIncrBy(ctx, mem, "finished", size).Err()))
	w.fill(60)
	gone := w.forget(time.Hour)["loud"]
	now, err := w.s.JobMemory(ctx, "loud")
	w.must(w.s.Sandbox(ctx, box))
	testbed.Check(t, err == nil && gone.Records > 0, "removed %+v, %v", gone, err)
	testbed.Diff(t, "counted", store.JobMemory{Unfinished: before[0].Unfinished, Finished: before[0].Finished - gone.Bytes}, now[0])
}

package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// memory reads what the jobs of the tenant count, and checks that a comparison with the jobs finds nothing wrong.
func (b *bundle) memory(t *testing.T) store.JobMemory {
	t.Helper()
	drift, checked, err := b.RepairJobMemory(t.Context(), Tenant)
	testbed.Check(t, err == nil && checked && drift == (store.JobMemory{}), "RepairJobMemory = %+v, %v, %v; want no drift", drift, checked, err)
	got, err := b.JobMemory(t.Context(), Tenant, "nobody")
	testbed.Check(t, err == nil && got[1] == (store.JobMemory{}), "JobMemory = %+v, %v", got, err)
	return got[0]
}

// jobMemoryIsExact takes jobs through random lives: what is counted for them is always what the jobs say, and nothing is left when all are gone.
func jobMemoryIsExact(t *testing.T, factory Factory) {
	const limit = 5
	b := setup(t, factory, func(l *farm.Limits) { l.MaxFinished = limit })
	box := b.box(t, farm.SandboxReady)
	random := rand.New(rand.NewPCG(12, 1)) //nolint:gosec // the same each time
	text := func(n int) string { return strings.Repeat("x", random.IntN(n)) }
	made := b.memory(t)
	for range 40 {
		a := Execute(box.ID)
		a.Request.Execute.Code = text(100_000) // sometimes a document
		a.Job.Hidden, a.Job.Inline = random.IntN(3) == 0, random.IntN(4) == 0
		if random.IntN(4) == 0 {
			a.Job.CallbackURL = "https://example.com"
		}
		before := b.memory(t)
		ref := b.accept(t, a).Job.Ref()
		b.accept(t, a) // the same call again
		now := b.memory(t)
		testbed.Check(t, now.Unfinished > before.Unfinished && now.Finished == before.Finished, "accepted: %+v after %+v", now, before)
		if random.IntN(5) > 0 {
			b.claim(t, ref, "w")
			for seq := range random.IntN(6) {
				event := farm.Event{ID: fmt.Sprintf("%d-1", seq+3), Name: farm.EventStdout, Text: text(30_000)} // some leave the window
				testbed.Must(t, b.AppendEvents(t.Context(), ref, 1, []farm.Event{event}))
			}
			for range random.IntN(3) {
				testbed.Must(t, b.Checkpoint(t.Context(), ref, 1, []byte(text(1000))))
			}
		}
		b.memory(t)
		end := store.Finish{Ref: ref, State: farm.JobCompleted, Result: &farm.Result{Execute: &farm.ExecuteResult{Stdout: text(60_000)}}, Token: "t"}
		if job := b.job(t, ref); job.State == farm.JobRunning {
			end.Attempt = 1
			end.Events = []farm.Event{{ID: "100-1", Name: farm.EventStdout, Text: text(4000)}}
			for range 2 { // a repeated call ends it once
				_, err := b.Finish(t.Context(), end)
				testbed.Must(t, err)
			}
		} else if _, _, err := b.Cancel(t.Context(), ref, nil); err != nil {
			t.Fatal(err)
		}
		after := b.memory(t)
		testbed.Check(t, after.Unfinished == before.Unfinished && after.Finished > before.Finished, "ended: %+v after %+v", after, before)
	}
	b.clock.forward(time.Duration(farm.DefaultLimits().HiddenSeconds)*time.Second + time.Hour)
	before := b.memory(t)
	n, err := b.Trim(t.Context(), Tenant) // to the bound, and hidden ones
	if after := b.memory(t); err != nil || n.Jobs == 0 || after.Finished >= before.Finished || after.Unfinished != made.Unfinished {
		t.Errorf("trimmed %+v, %v: %+v after %+v", n, err, after, before)
	}
	b.clock.forward(365 * 24 * time.Hour)
	_, err = b.Trim(t.Context(), Tenant)
	testbed.Must(t, err)
	left := b.memory(t)
	testbed.Check(t, left == (store.JobMemory{Unfinished: made.Unfinished}), "%+v is counted when all are gone", left)
	if n := b.rdb.ZCard(t.Context(), b.prefix+"{acme}:ended").Val(); n != 0 {
		t.Errorf("the index of finished jobs has %d entries", n)
	}
}

// jobMemoryIsRepaired: counts that are wrong are corrected, and the correction says by how much.
func jobMemoryIsRepaired(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ref := b.running(t)
	b.finish(t, b.job(t, ref), farm.JobCompleted)
	b.running(t)
	right := b.memory(t)
	key := b.prefix + "{acme}:mem"
	testbed.Must(t, b.rdb.HSet(t.Context(), key, "unfinished", right.Unfinished+7, "finished", -3).Err())
	want := store.JobMemory{Unfinished: 7, Finished: -3 - right.Finished}
	drift, checked, err := b.RepairJobMemory(t.Context(), Tenant)
	testbed.Check(t, err == nil && checked && drift == want, "RepairJobMemory = %+v, %v, %v; want %+v", drift, checked, err, want)
	now := b.memory(t)
	testbed.Check(t, now == right && right.Finished != 0 && right.Unfinished != 0, "counted %+v, want %+v", now, right)
}

// sandboxMemoryIsCounted takes a sandbox through its life: what its record, its packages, its egress log and its secrets have in Redis is counted,
// while it is open and from its end until its record expires, and is given back once.
func sandboxMemoryIsCounted(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ctx := t.Context()
	count := func(what string, wantUnfinished, wantFinished int64, change func() error) {
		t.Helper()
		before := b.memory(t)
		err := change()
		testbed.Require(t, err == nil, "%s: %v", what, err)
		now := b.memory(t)
		got := store.JobMemory{Unfinished: now.Unfinished - before.Unfinished, Finished: now.Finished - before.Finished}
		testbed.Diff(t, what, store.JobMemory{Unfinished: wantUnfinished, Finished: wantFinished}, got)
	}
	patch := func(box farm.Ref, p store.SandboxPatch) func() error {
		return func() error {
			_, err := b.UpdateSandbox(ctx, box, p)
			return err
		}
	}

	plain, labeled := Create(), Create()
	labeled.Sandbox.Spec.Labels = map[string]string{"k": strings.Repeat("v", 990)}
	labeled.Secrets = make([]byte, 500)
	b.accept(t, plain)
	size := b.memory(t).Unfinished
	b.accept(t, labeled)
	if more := b.memory(t).Unfinished - size; more < size+1490 || more > size+2600 { // the labels are in the job's record as well
		t.Errorf("a create with 990 bytes of labels and 500 of secrets counts %d, another one %d", more, size)
	}
	b.end(t, labeled.Sandbox.ID)

	box := b.box(t, farm.SandboxReady)
	text := strings.Repeat("v", 93)
	count("labels", 100, 0, patch(box, store.SandboxPatch{Labels: &map[string]string{"k": text[:92]}}))
	count("the same labels", 0, 0, patch(box, store.SandboxPatch{Labels: &map[string]string{"k": text[:92]}}))
	count("labels of a byte more", 1, 0, patch(box, store.SandboxPatch{Labels: &map[string]string{"k": text}}))
	count("no labels", -99, 0, patch(box, store.SandboxPatch{Labels: &map[string]string{}}))
	with := Execute(box.ID)
	with.Packages = []string{"numpy"}
	before := b.memory(t)
	b.accept(t, Execute(box.ID))
	job := b.memory(t).Unfinished - before.Unfinished
	count("packages", job+int64(len("numpy")+len(with.Job.ID)), 0, func() error { b.accept(t, with); return nil })
	before = b.memory(t)
	appendEntry := func() error {
		_, err := b.AppendEgress(ctx, store.EgressAppend{Sandbox: box, Generation: 1, Entries: egressEntries(0, 2)})
		return err
	}
	testbed.Must(t, appendEntry())
	entries := b.memory(t).Unfinished - before.Unfinished
	testbed.Check(t, entries >= 200 && entries <= 2000, "two entries of the egress log count %d bytes", entries)
	count("entries of the egress log", entries, 0, appendEntry)

	before = b.memory(t)
	b.move(t, store.Move{Ref: box, To: farm.SandboxLost, Removed: true})
	ended := b.memory(t)
	kept := ended.Finished - before.Finished
	testbed.Check(t, kept >= 2*entries && before.Unfinished-ended.Unfinished == kept, "ended: %+v after %+v", ended, before)
	count("a late entry of the egress log", 0, entries, appendEntry)

	open := b.memory(t).Unfinished
	box = b.box(t, farm.SandboxReady)
	before = b.memory(t)
	count("it ends, and its container may still run", 0, 0, func() error {
		_, err := b.MoveSandbox(ctx, store.Move{Ref: box, To: farm.SandboxLost})
		return err
	})
	count("its log", entries, 0, appendEntry)
	gone := func(generation int) error {
		_, err := b.MoveSandbox(ctx, store.Move{Ref: box, Removed: true, Generation: generation})
		return err
	}
	before = b.memory(t)
	testbed.Check(t, errors.Is(gone(2), store.ErrFenced) && b.memory(t) == before, "the container of a later generation is gone: %+v after %+v", b.memory(t), before)
	kept = before.Unfinished - open
	count("its container is gone", -kept, kept, func() error { return gone(1) })
	count("the same again", 0, 0, func() error { return gone(1) })
	count("a late entry of its log", 0, entries, appendEntry)
	ttl := b.rdb.TTL(ctx, b.prefix+"{acme}:sbx:"+box.ID).Val()
	testbed.Check(t, ttl <= time.Duration(farm.DefaultLimits().ClosedSeconds)*time.Second, "its record is kept for %s", ttl)

	b.clock.forward(365 * 24 * time.Hour)
	_, err := b.Trim(ctx, Tenant)
	testbed.Must(t, err)
	left := b.memory(t)
	testbed.Check(t, left == store.JobMemory{Unfinished: open}, "%+v is counted when all are gone, want %d bytes unfinished", left, open)
}

// trim calls Trim, and checks what it removed.
func (b *bundle) trim(t *testing.T, want store.Trimmed) {
	t.Helper()
	got, err := b.Trim(t.Context(), Tenant)
	testbed.Check(t, err == nil && got == want, "Trim = %+v, %v; want %+v", got, err, want)
}

// trimForgetsExpired: the indexes of an inactive tenant keep no entries of expired records, however many there were.
func trimForgetsExpired(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	b.trim(t, store.Trimmed{})
	waits := b.accept(t, Execute(box.ID)).Job // the oldest of all
	const many = 1200                         // more than two stretches
	pipe := b.rdb.Pipeline()
	for i := range many {
		for _, index := range []string{"jobs", "boxes"} {
			pipe.Do(t.Context(), "ZADD", b.prefix+"{acme}:"+index, 1000+i, fmt.Sprint("gone_", i))
		}
	}
	_, err := pipe.Exec(t.Context())
	testbed.Must(t, err)
	b.trim(t, store.Trimmed{Entries: 2 * many})
	b.trim(t, store.Trimmed{})
	for index, want := range map[string]int64{"jobs": 2, "boxes": 1} {
		testbed.Diff(t, fmt.Sprintf("%s: entries", index), want, b.rdb.ZCard(t.Context(), b.prefix+"{acme}:"+index).Val())
	}
	b.job(t, waits.Ref())
}

// trimLooksBehindOldSandboxes: entries of sandboxes that are gone are removed, also those behind many that live for long.
func trimLooksBehindOldSandboxes(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.box(t, farm.SandboxReady)
	const live, gone = 700, 1000 // more than a stretch of each
	pipe := b.rdb.Pipeline()
	for i := range live + gone {
		id := fmt.Sprint("sbx_", i)
		if i < live {
			pipe.HSet(t.Context(), b.prefix+"{acme}:sbx:"+id, "state", "ready", "doc", "{}")
		}
		for _, index := range []string{"boxes", "openboxes"} {
			pipe.Do(t.Context(), "ZADD", b.prefix+"{acme}:"+index, 1000+i, id)
		}
	}
	_, err := pipe.Exec(t.Context())
	testbed.Must(t, err)
	b.trim(t, store.Trimmed{Entries: 2 * gone})
	b.trim(t, store.Trimmed{})
	for _, index := range []string{"boxes", "openboxes"} {
		n := b.rdb.ZCard(t.Context(), b.prefix+"{acme}:"+index).Val()
		testbed.Check(t, n == live+1, "%s has %d entries, want %d", index, n, live+1)
	}
}

// endedWorkLeavesNoKeys: a thousand jobs, each in a sandbox of its own, leave no more keys than none once they have ended and expired.
func endedWorkLeavesNoKeys(t *testing.T, factory Factory) {
	b := setup(t, factory)
	work := func(n int) {
		t.Helper()
		for range n {
			box := b.box(t, farm.SandboxReady)
			job := b.accept(t, executeLarge(box.ID)).Job
			b.finish(t, b.claim(t, job.Ref(), "w").Job, farm.JobCompleted)
			_, err := b.MoveSandbox(t.Context(), store.Move{Ref: box, To: farm.SandboxClosing})
			testbed.Must(t, err)
			_, err = b.MoveSandbox(t.Context(), store.Move{Ref: box, To: farm.SandboxClosed})
			testbed.Must(t, err)
		}
		keys, err := b.rdb.Keys(t.Context(), b.prefix+"{acme}:*_*").Result() // of records: those that expire are gone some days later
		testbed.Must(t, err)
		pipe := b.rdb.Pipeline()
		for _, key := range keys {
			testbed.Check(t, b.rdb.TTL(t.Context(), key).Val() >= 0, "%s never expires", key)
			pipe.Del(t.Context(), key)
		}
		_, err = pipe.Exec(t.Context())
		testbed.Must(t, err)
		b.clock.forward(365 * 24 * time.Hour)
		_, err = b.Trim(t.Context(), Tenant)
		testbed.Must(t, err)
	}
	left := func() []string {
		t.Helper()
		keys, err := b.rdb.Keys(t.Context(), b.prefix+"{acme}:*").Result()
		testbed.Must(t, err)
		var sizes []string
		for _, key := range keys {
			size := int64(0)
			switch b.rdb.Type(t.Context(), key).Val() {
			case "zset":
				size = b.rdb.ZCard(t.Context(), key).Val()
			case "set":
				size = b.rdb.SCard(t.Context(), key).Val()
			default:
			}
			sizes = append(sizes, fmt.Sprint(strings.TrimPrefix(key, b.prefix), " ", size))
		}
		slices.Sort(sizes)
		return sizes
	}
	work(10)
	few := left()
	work(1000)
	testbed.Diff(t, "keys and entries that are left", few, left())
	b.wantDocuments(t, "after all jobs", 0)
}

// idempotencyKeys lists the keys of Redis that remember idempotency keys.
func (b *bundle) idempotencyKeys(t *testing.T) []string {
	t.Helper()
	keys, err := b.rdb.Keys(t.Context(), b.prefix+"{"+Tenant+"}:idem:*").Result()
	testbed.Must(t, err)
	return keys
}

// idempotencyKeysEndWithTheirJob: a key is forgotten with its job, whichever way that goes, but not if it names another job by then.
func idempotencyKeysEndWithTheirJob(t *testing.T, factory Factory) {
	const retention = 100
	b := setup(t, factory, func(l *farm.Limits) { l.MaxFinished, l.RetentionSeconds = 1, retention })
	box := b.box(t, farm.SandboxReady)
	run := func() farm.Ref {
		t.Helper()
		a := Execute(box.ID)
		a.Idempotency = &store.Idempotency{Key: "k", Fingerprint: "f"}
		ref := b.accept(t, a).Job.Ref()
		b.finish(t, b.claim(t, ref, "w").Job, farm.JobCompleted)
		return ref
	}
	first := run()
	key := b.idempotencyKeys(t)[0]
	ttl := b.rdb.TTL(t.Context(), key).Val()
	testbed.Check(t, ttl <= retention*time.Second, "the key is kept for %s, its job for %d s", ttl, retention)
	b.rdb.Del(t.Context(), key) // its time is over, and it is used again
	second := run()
	b.clock.forward(time.Duration(farm.DefaultLimits().HiddenSeconds)*time.Second + time.Millisecond)
	b.trim(t, store.Trimmed{Jobs: 2}) // the create job and the first one
	testbed.Diff(t, fmt.Sprintf("after the end of job %s the key names", first.ID), second.ID, b.rdb.HGet(t.Context(), key, "job").Val())
}

// trimBoundsFinishedJobs: the newest finished jobs stay, up to the bound, and all keys of the others are removed.
func trimBoundsFinishedJobs(t *testing.T, factory Factory) {
	const limit = 5
	b := setup(t, factory, func(l *farm.Limits) { l.MaxFinished = limit })
	box := b.box(t, farm.SandboxReady) // with a create job: one of the five
	waits := b.accept(t, Execute(b.box(t, farm.SandboxReady).ID)).Job
	owed := Execute(box.ID) // one of the five, or six with the other create job
	owed.Job.CallbackURL = "https://example.com"
	b.accept(t, owed)
	b.finish(t, b.claim(t, owed.Job.Ref(), "w").Job, farm.JobCompleted)
	var done []*farm.Job
	run := func() {
		t.Helper()
		a := Execute(box.ID)
		a.Idempotency = &store.Idempotency{Key: fmt.Sprint(len(done)), Fingerprint: "f"}
		job := b.accept(t, a).Job
		b.finish(t, b.claim(t, job.Ref(), "w").Job, farm.JobCompleted)
		done = append(done, job)
	}
	b.trim(t, store.Trimmed{}) // limit-1: two creates, one that waits, one whose callback is due
	run()
	b.trim(t, store.Trimmed{}) // limit
	run()
	b.trim(t, store.Trimmed{}) // limit+1, but a caller may wait for each of them
	b.clock.forward(time.Duration(farm.DefaultLimits().HiddenSeconds)*time.Second + time.Millisecond)
	b.trim(t, store.Trimmed{Jobs: 1}) // a create job
	run()
	run()
	b.clock.forward(time.Hour)
	run()
	b.trim(t, store.Trimmed{Jobs: 3}) // the other create job and the two oldest
	for i, job := range done {
		want := farm.Code("")
		if i < 2 {
			want = farm.CodeNotFound
		}
		_, err := b.Job(t.Context(), job.Ref())
		wantCode(t, fmt.Sprint("job ", i), err, want)
	}
	for _, job := range []*farm.Job{waits, owed.Job} {
		b.job(t, job.Ref())
	}
	jobs, _, err := b.Jobs(t.Context(), Tenant, store.JobFilter{}, store.Page{})
	testbed.Check(t, err == nil && len(jobs) == limit, "Jobs = %d, %v; want %d", len(jobs), err, limit)
	jobs, _, err = b.Jobs(t.Context(), Tenant, store.JobFilter{SandboxID: box.ID}, store.Page{})
	testbed.Check(t, err == nil && len(jobs) == limit-1, "Jobs of the sandbox = %d, %v; want %d", len(jobs), err, limit-1)
	for _, job := range done[:2] {
		keys, err := b.rdb.Keys(t.Context(), b.prefix+"*"+job.ID+"*").Result()
		testbed.Check(t, err == nil && len(keys) == 0, "a removed job left the keys %v, %v", keys, err)
	}
	keys := b.idempotencyKeys(t)
	testbed.Check(t, len(keys) == len(done)-2, "%d idempotency keys are left of %d jobs", len(keys), len(done)-2)
	again := Execute(box.ID)
	again.Idempotency = &store.Idempotency{Key: "0", Fingerprint: "other"}
	out := b.accept(t, again)
	testbed.Check(t, !out.Existing && out.Job.ID == again.Job.ID, "the idempotency key of a removed job returns %+v", out)
}

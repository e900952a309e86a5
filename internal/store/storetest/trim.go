package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// trim calls Trim, and checks what it removed.
func (b *bundle) trim(t *testing.T, want store.Trimmed) {
	t.Helper()
	if got, err := b.Trim(t.Context(), Tenant); err != nil || got != want {
		t.Errorf("Trim = %+v, %v; want %+v", got, err, want)
	}
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
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.trim(t, store.Trimmed{Entries: 2 * many})
	b.trim(t, store.Trimmed{})
	for index, want := range map[string]int64{"jobs": 2, "boxes": 1} {
		if n := b.rdb.ZCard(t.Context(), b.prefix+"{acme}:"+index).Val(); n != want {
			t.Errorf("%s has %d entries, want %d", index, n, want)
		}
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
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.trim(t, store.Trimmed{Entries: 2 * gone})
	b.trim(t, store.Trimmed{})
	for _, index := range []string{"boxes", "openboxes"} {
		if n := b.rdb.ZCard(t.Context(), b.prefix+"{acme}:"+index).Val(); n != live+1 {
			t.Errorf("%s has %d entries, want %d", index, n, live+1)
		}
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
			if _, err := b.MoveSandbox(t.Context(), store.Move{Ref: box, To: farm.SandboxClosing}); err != nil {
				t.Fatal(err)
			}
			if _, err := b.MoveSandbox(t.Context(), store.Move{Ref: box, To: farm.SandboxClosed}); err != nil {
				t.Fatal(err)
			}
		}
		keys, err := b.rdb.Keys(t.Context(), b.prefix+"{acme}:*_*").Result() // of records: those that expire are gone some days later
		if err != nil {
			t.Fatal(err)
		}
		pipe := b.rdb.Pipeline()
		for _, key := range keys {
			if b.rdb.TTL(t.Context(), key).Val() < 0 {
				t.Errorf("%s never expires", key)
			}
			pipe.Del(t.Context(), key)
		}
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.clock.forward(365 * 24 * time.Hour)
		if _, err := b.Trim(t.Context(), Tenant); err != nil {
			t.Fatal(err)
		}
	}
	left := func() []string {
		t.Helper()
		keys, err := b.rdb.Keys(t.Context(), b.prefix+"{acme}:*").Result()
		if err != nil {
			t.Fatal(err)
		}
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
	if diff := cmp.Diff(few, left()); diff != "" {
		t.Errorf("keys and entries that are left (-of 10 jobs +of 1000 more):\n%s", diff)
	}
	b.wantDocuments(t, "after all jobs", 0)
}

// idempotencyKeys lists the keys of Redis that remember idempotency keys.
func (b *bundle) idempotencyKeys(t *testing.T) []string {
	t.Helper()
	keys, err := b.rdb.Keys(t.Context(), b.prefix+"{"+Tenant+"}:idem:*").Result()
	if err != nil {
		t.Fatal(err)
	}
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
	if ttl := b.rdb.TTL(t.Context(), key).Val(); ttl > retention*time.Second {
		t.Errorf("the key is kept for %s, its job for %d s", ttl, retention)
	}
	b.rdb.Del(t.Context(), key) // its time is over, and it is used again
	second := run()
	b.clock.forward(time.Duration(farm.DefaultLimits().HiddenSeconds)*time.Second + time.Millisecond)
	b.trim(t, store.Trimmed{Jobs: 2}) // the create job and the first one
	if named := b.rdb.HGet(t.Context(), key, "job").Val(); named != second.ID {
		t.Errorf("after the end of job %s the key names %q, want %s", first.ID, named, second.ID)
	}
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
	if jobs, _, err := b.Jobs(t.Context(), Tenant, store.JobFilter{}, store.Page{}); err != nil || len(jobs) != limit {
		t.Errorf("Jobs = %d, %v; want %d", len(jobs), err, limit)
	}
	if jobs, _, err := b.Jobs(t.Context(), Tenant, store.JobFilter{SandboxID: box.ID}, store.Page{}); err != nil || len(jobs) != limit-1 {
		t.Errorf("Jobs of the sandbox = %d, %v; want %d", len(jobs), err, limit-1)
	}
	for _, job := range done[:2] {
		if keys, err := b.rdb.Keys(t.Context(), b.prefix+"*"+job.ID+"*").Result(); err != nil || len(keys) > 0 {
			t.Errorf("a removed job left the keys %v, %v", keys, err)
		}
	}
	if keys := b.idempotencyKeys(t); len(keys) != len(done)-2 {
		t.Errorf("%d idempotency keys are left of %d jobs", len(keys), len(done)-2)
	}
	again := Execute(box.ID)
	again.Idempotency = &store.Idempotency{Key: "0", Fingerprint: "other"}
	if out := b.accept(t, again); out.Existing || out.Job.ID != again.Job.ID {
		t.Errorf("the idempotency key of a removed job returns %+v", out)
	}
}

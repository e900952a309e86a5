package storetest

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// upload is an object of a job's staged upload.
func (b *bundle) upload(t *testing.T, job farm.Ref, bytes int64) {
	t.Helper()
	testbed.Must(t, b.KeepUploads(t.Context(), job, bytes))
	testbed.Must(t, b.documents.PutDocument(t.Context(), farm.StagingOf(job)+"0", []byte("x")))
}

// uploadsAreCharged: uploads count until they are removed, and what is beyond the quota is refused with the numbers.
func uploadsAreCharged(t *testing.T, factory Factory) {
	const limit = 10 << 20
	b := setup(t, factory)
	b.storageQuota(t, limit>>20)
	job, other := farm.Ref{Tenant: Tenant, ID: b.NewJobID()}, farm.Ref{Tenant: Tenant, ID: b.NewJobID()}
	full := func(err error, quota, used float64) {
		t.Helper()
		e, ok := errors.AsType[*farm.Error](err)
		if !ok || e.Code != farm.CodeExhausted || e.Quota == nil || e.Quota.Name != farm.QuotaStoredMB || e.Quota.Limit != quota || e.Quota.Used != used {
			t.Errorf("refused with %v", err)
		}
	}
	full(b.KeepUploads(t.Context(), job, limit+1), 10, 0)
	b.stored(t, store.Stored{})
	for _, bytes := range []int64{limit, limit - 1, limit, limit} {
		err := b.KeepUploads(t.Context(), job, bytes)
		testbed.Check(t, err == nil, "%d bytes: %v", bytes, err)
		b.stored(t, store.Stored{Kept: bytes})
	}
	full(b.KeepUploads(t.Context(), other, 1), 10, 10)
	b.storageQuota(t, 5) // a quota below what is used: less is allowed, more is not
	full(b.KeepUploads(t.Context(), job, limit+1), 5, 10)
	testbed.Must(t, b.KeepUploads(t.Context(), job, limit-1))
	testbed.Must(t, b.KeepUploads(t.Context(), job, 0))
	b.stored(t, store.Stored{})
	b.storageQuota(t, 0)
	full(b.KeepUploads(t.Context(), job, 1), 0, 0)
	b.storageQuota(t, -1)
	testbed.Must(t, b.KeepUploads(t.Context(), job, 1<<50))
}

// uploadsEndWithTheirJob: those of a job are kept until it ends, and those of a process that died for an hour.
func uploadsEndWithTheirJob(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	a := Execute(box.ID)
	b.upload(t, a.Job.Ref(), 7)
	b.accept(t, a)
	abandoned := farm.Ref{Tenant: Tenant, ID: b.NewJobID()}
	b.upload(t, abandoned, 5)
	b.clock.forward(59 * time.Minute)
	b.upload(t, abandoned, 6) // it is slow, but alive
	b.clock.forward(59 * time.Minute)
	b.trim(t, store.Trimmed{})
	b.stored(t, store.Stored{Kept: 13})
	b.clock.forward(2 * time.Minute)
	b.trim(t, store.Trimmed{Documented: 1})
	b.stored(t, store.Stored{Kept: 7})
	b.wantDocuments(t, "after an upload was abandoned", 1)
	_, _, err := b.Cancel(t.Context(), a.Job.Ref(), nil)
	testbed.Must(t, err)
	b.stored(t, store.Stored{Kept: 7}) // as long as it is there
	b.clock.forward(time.Second)
	b.trim(t, store.Trimmed{Documented: 1})
	b.stored(t, store.Stored{})
	b.wantDocuments(t, "after the end of its job", 0)
	n := b.rdb.Exists(t.Context(), b.prefix+"{acme}:kept", b.prefix+"{acme}:docs").Val()
	testbed.Check(t, n == 0, "%d of the indexes are left", n)
}

// copiesAreCharged: the copy of a file for a caller counts like an artifact, that of a link until some minutes after the link, that of a reader for an
// hour after its last sign of life. Only the latter may exceed the quota, as results of reads do.
func copiesAreCharged(t *testing.T, factory Factory) {
	const limit, room = 1 << 20, 64 << 20
	const link, content = limit - farm.ObjectBytes, room - farm.ObjectBytes // what the files may have
	b := setup(t, factory)
	b.storageQuota(t, limit>>20)
	linked, read := b.running(t), b.running(t)
	keep := func(job farm.Ref, size int64, life time.Duration) {
		t.Helper()
		testbed.Must(t, b.KeepCopy(t.Context(), job, size, life))
		testbed.Must(t, b.documents.PutDocument(t.Context(), farm.StagingOf(job)+"read", []byte("x")))
	}
	full := func(job farm.Ref, size int64, life time.Duration) {
		t.Helper()
		err := b.KeepCopy(t.Context(), job, size, life)
		testbed.Check(t, farm.CodeOf(err) == farm.CodeExhausted, "a copy of %d bytes is kept: %v", size, err)
	}
	full(linked, link+1, time.Second)
	keep(linked, link-1, 2*time.Hour)
	keep(linked, link, 2*time.Hour)
	full(read, content+1, 0)
	keep(read, content-1, 0)
	keep(read, content, 0)
	b.stored(t, store.Stored{Kept: limit + room})
	for _, job := range []farm.Ref{linked, read} { // the end of the job changes nothing: its caller reads the copy afterwards
		_, err := b.Finish(t.Context(), store.Finish{Ref: job, Attempt: 1, State: farm.JobCompleted, Result: &farm.Result{}, Token: job.ID})
		testbed.Must(t, err)
	}
	b.clock.forward(59 * time.Minute)
	keep(read, content, 0) // it is slow, but alive
	b.clock.forward(59 * time.Minute)
	b.trim(t, store.Trimmed{})
	b.clock.forward(2 * time.Minute)
	b.trim(t, store.Trimmed{Documented: 1})
	b.stored(t, store.Stored{Kept: limit})
	b.clock.forward(5 * time.Minute)
	b.trim(t, store.Trimmed{Documented: 1})
	b.stored(t, store.Stored{})
	b.wantDocuments(t, "after the link", 0)
}

// uploadsRace: fifty uploads of a tenth of the quota at the same time, and ten of them get it.
func uploadsRace(t *testing.T, factory Factory) {
	const callers, share = 50, 1 << 20
	b := setup(t, factory)
	b.storageQuota(t, 10*share>>20)
	var mu sync.Mutex
	var wg sync.WaitGroup
	granted := 0
	for range callers {
		wg.Go(func() {
			switch err := b.KeepUploads(t.Context(), farm.Ref{Tenant: Tenant, ID: b.NewJobID()}, share); {
			case err == nil:
				mu.Lock()
				granted++
				mu.Unlock()
			case farm.CodeOf(err) != farm.CodeExhausted:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	testbed.Check(t, granted == 10, "%d of %d callers uploaded a tenth of the quota each", granted, callers)
	b.stored(t, store.Stored{Kept: 10 * share})
}

// straysAreCharged: what a job has uploaded counts until it is removed, if the job ends before it has recorded that. Otherwise a tenant would fill the
// object store with jobs that fail.
func straysAreCharged(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.storageQuota(t, 1)
	put := func(a farm.Artifact) {
		testbed.Must(t, b.documents.PutDocument(t.Context(), a.Key, []byte("x")))
	}
	for _, state := range []farm.JobState{farm.JobFailed, farm.JobCanceled, farm.JobTimedOut, farm.JobLost, farm.JobCompleted} {
		job := b.running(t)
		j, err := b.Job(t.Context(), job)
		testbed.Must(t, err)
		recorded, stray := b.file(job, "recorded", 5), b.file(job, "stray", 7)
		for _, a := range []*farm.Artifact{&recorded, &stray} {
			a.SandboxID = j.SandboxID
			a.Key = farm.ArtifactObject(a, a.Name)
		}
		ok, _, err := b.ReserveStored(t.Context(), job, 1, farm.StoredBytes(5)+farm.StoredBytes(7))
		testbed.Require(t, ok && err == nil, "ReserveStored = %v, %v", ok, err)
		put(recorded)
		b.add(t, recorded)
		put(stray)
		testbed.Must(t, b.documents.PutDocument(t.Context(), farm.SnapshotsOf(job)+"1-0", []byte("x")))
		if state == farm.JobLost {
			_, err = b.Force(t.Context(), job, state, &farm.JobError{Code: farm.CodeUnavailable, Message: "lost"})
		} else {
			_, err = b.Finish(t.Context(), store.Finish{Ref: job, Attempt: 1, State: state, Token: job.ID})
		}
		testbed.Must(t, err)
		want := store.Stored{Bytes: 5, Artifacts: 1}
		if state == farm.JobCompleted { // its worker has recorded all that it has uploaded
			b.stored(t, want)
			testbed.Must(t, b.DropStrays(t.Context(), j.SandboxID, job))
		} else {
			b.stored(t, store.Stored{Bytes: 5, Artifacts: 1, Kept: farm.StoredBytes(7)})
			b.clock.forward(10*time.Minute - time.Second) // a worker that does not know yet may upload more
			b.trim(t, store.Trimmed{})
			b.clock.forward(time.Second)
			b.trim(t, store.Trimmed{Documented: 1})
			b.stored(t, want)
		}
		keys, aborted := b.documents.Keys(), b.documents.Aborted(farm.ArtifactsOf(j.SandboxID, job))
		testbed.Check(t, len(keys) == 1 && keys[0] == recorded.Key && aborted, "%s: the objects are %q, uploads aborted: %v", state, keys, aborted)
		_, err = b.DeleteArtifacts(t.Context(), []farm.Artifact{recorded})
		testbed.Must(t, err)
		testbed.Must(t, b.documents.Delete(t.Context(), recorded.Key))
	}
	b.stored(t, store.Stored{})
}

// keptIsRepaired: the count is that of the entries of the index of documents, and uploads whose job ended unnoticed go.
func keptIsRepaired(t *testing.T, factory Factory) {
	b := setup(t, factory)
	job, gone := b.running(t), farm.Ref{Tenant: Tenant, ID: b.NewJobID()}
	b.upload(t, job, 7)
	b.upload(t, gone, 5)
	repair := func(want, right int64) {
		t.Helper()
		if drift, checked, err := b.RepairStored(t.Context(), Tenant, 1000, true); err != nil || !checked || drift != (store.StoredDrift{Stored: store.Stored{Kept: want}}) {
			t.Errorf("RepairStored = %+v, %v, %v; want %d", drift, checked, err, want)
		}
		b.stored(t, store.Stored{Kept: right})
	}
	repair(0, 12)
	testbed.Must(t, b.rdb.HSet(t.Context(), b.prefix+"{acme}:stored", "kept", 20).Err())
	repair(8, 12)
	testbed.Must(t, b.rdb.ZRem(t.Context(), b.prefix+"{acme}:docs", "staging/"+job.ID).Err())
	repair(7, 5)
	testbed.Must(t, b.rdb.ZAdd(t.Context(), b.prefix+"{acme}:docs", redis.Z{Score: math.Inf(1), Member: "staging/" + gone.ID}).Err())
	repair(0, 5)
	b.clock.forward(time.Second)
	b.trim(t, store.Trimmed{Documented: 1})
	repair(0, 0)
}

// objectsInUseAreNoOrphans: what an open sandbox and a job that waits have in the object store is named, however long they live, until Trim has
// removed it. What no record names is an orphan.
func objectsInUseAreNoOrphans(t *testing.T, factory Factory) {
	b := setup(t, factory)
	wide := Create()
	wide.Sandbox.Spec.AllowHosts = strings.SplitAfter(strings.Repeat("a.example.com,", 5000), ",")
	wide.Request = &farm.Request{}
	b.accept(t, wide)
	waits := executeLarge(b.box(t, farm.SandboxReady).ID)
	b.upload(t, waits.Job.Ref(), 7)
	b.accept(t, waits)
	ours := b.documents.Keys()
	testbed.Require(t, len(ours) == 4, "there are %q", ours)
	lost := []string{
		"records/acme/sbx_lost/sandbox", "records/other/" + wide.Sandbox.ID + "/sandbox", "records/acme/" + waits.Job.ID, "records/x",
		"staging/acme/" + wide.Sandbox.ID + "/0", "staging/acme/job_lost/0",
	}
	orphans := func(when string, keys, want []string) {
		t.Helper()
		got, err := b.OrphanedObjects(t.Context(), keys)
		testbed.Must(t, err)
		testbed.Diff(t, "orphans "+when, want, got)
	}
	b.clock.forward(365 * 24 * time.Hour)
	b.trim(t, store.Trimmed{})
	orphans("after a year", slices.Concat(ours, lost), lost)
	orphans("without records", lost, lost)
	orphans("of none", nil, nil)
	_, _, err := b.Cancel(t.Context(), waits.Job.Ref(), nil)
	testbed.Must(t, err)
	_, err = b.MoveSandbox(t.Context(), store.Move{Ref: wide.Sandbox.Ref(), To: farm.SandboxFailed})
	testbed.Must(t, err)
	orphans("before they are removed", ours, nil)
	b.clock.forward(time.Duration(farm.DefaultLimits().RetentionSeconds)*time.Second + 2*time.Hour)
	b.trim(t, store.Trimmed{Documented: 3})
	orphans("after the end", ours, ours)
}

// readRoom is how many bytes of results of reads are kept beyond the quota.
const readRoom = 64 << 20

// documentBytes is how many bytes of records there are in the object store.
func (b *bundle) documentBytes() (size int64) {
	for key, data := range b.documents.All() {
		if strings.HasPrefix(key, "records/") {
			size += int64(len(data))
		}
	}
	return size
}

// charged checks that what the tenant keeps counts as many bytes as there are, and that a comparison finds nothing wrong.
func (b *bundle) charged(t *testing.T, when string) (kept int64) {
	t.Helper()
	kept = b.documentBytes()
	got, err := b.Stored(t.Context(), Tenant)
	testbed.Check(t, err == nil && got == (store.Stored{Kept: kept}), "%s: Stored = %+v, %v; there are %d bytes of documents", when, got, err, kept)
	drift, checked, err := b.RepairStored(t.Context(), Tenant, 1000, true)
	testbed.Check(t, err == nil && checked && drift == (store.StoredDrift{}), "%s: RepairStored = %+v, %v, %v", when, drift, checked, err)
	return kept
}

// documentsAreCharged takes jobs with documents of all kinds through random lives: at any time the tenant is charged for the bytes that are there.
func documentsAreCharged(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	random := rand.New(rand.NewPCG(12, 2)) //nolint:gosec // the same each time
	text := func(n int) string { return strings.Repeat("x", random.IntN(n)) }
	for range 40 {
		a := Execute(box.ID)
		a.Request.Execute.Code = text(100_000)
		if a.Job.Hidden = random.IntN(3) == 0; random.IntN(2) == 0 {
			a.Job.Redacted = a.Request
		}
		ref := b.accept(t, a).Job.Ref()
		b.charged(t, "accepted")
		if random.IntN(4) == 0 {
			_, _, err := b.Cancel(t.Context(), ref, nil)
			testbed.Must(t, err)
			b.charged(t, "canceled")
			continue
		}
		b.claim(t, ref, "w")
		for range random.IntN(5) {
			testbed.Must(t, b.AppendEvents(t.Context(), ref, 1, []farm.Event{stdout("", text(60_000))}))
			b.charged(t, "appended")
		}
		b.accept(t, a) // a repeated call
		b.charged(t, "accepted again")
		end := store.Finish{Ref: ref, Attempt: 1, State: farm.JobCompleted, Result: &farm.Result{Execute: &farm.ExecuteResult{Stdout: text(100_000)}}, Token: "t"}
		for range 2 {
			_, err := b.Finish(t.Context(), end)
			testbed.Must(t, err)
			b.charged(t, "ended")
		}
	}
	testbed.Check(t, b.charged(t, "at the end") != 0, "nothing was kept")
	b.clock.forward(365 * 24 * time.Hour)
	_, err := b.Trim(t.Context(), Tenant)
	testbed.Must(t, err)
	left := b.charged(t, "trimmed")
	testbed.Check(t, left == 0, "%d bytes are left", left)
}

// leave sets the tenant's quota to a MiB and fills it, but for some bytes.
func (b *bundle) leave(t *testing.T, bytes int64) {
	t.Helper()
	b.storageQuota(t, 1)
	filler := farm.Ref{Tenant: Tenant, ID: "filler"}
	testbed.Must(t, b.KeepUploads(t.Context(), filler, 0))
	used, err := b.Stored(t.Context(), Tenant)
	if err == nil && bytes < 1<<20-used.Used() {
		err = b.KeepUploads(t.Context(), filler, 1<<20-used.Used()-bytes)
	}
	testbed.Must(t, err)
}

// requestsNeedRoom: a long request that the tenant may not store is refused with the quota, and leaves nothing. A short one needs no room.
func requestsNeedRoom(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	a := executeLarge(box.ID)
	b.accept(t, a)
	needed := b.documentBytes()
	for _, free := range []int64{needed - 1, needed, needed + 1} {
		before, a := b.documentBytes(), executeLarge(box.ID)
		b.leave(t, free)
		_, err := b.Accept(t.Context(), a)
		e, ok := errors.AsType[*farm.Error](err)
		switch {
		case free >= needed && err != nil:
			t.Errorf("%d bytes of %d free: %v", free, needed, err)
		case free < needed && (!ok || e.Code != farm.CodeExhausted || e.Quota == nil || e.Quota.Name != farm.QuotaStoredMB || e.Quota.Limit != 1):
			t.Errorf("%d bytes of %d free: %v", free, needed, err)
		case free < needed && b.documentBytes() != before:
			t.Errorf("a refused request leaves %d bytes", b.documentBytes()-before)
		}
	}
	b.leave(t, 0)
	b.accept(t, Execute(box.ID))
}

// resultsNeedRoom: a long result that the tenant may not store does not end its job; what the end of the job frees counts as room. Reads have some
// room of their own.
func resultsNeedRoom(t *testing.T, factory Factory) {
	result := &farm.Result{Execute: &farm.ExecuteResult{Stdout: large}}
	encoded, err := json.Marshal(result)
	testbed.Must(t, err)
	needed := int64(len(encoded))
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	long := Execute(box.ID)
	long.Request.Execute.Code = large // which the end of the job frees
	for _, c := range []struct {
		name   string
		accept store.Accept
		frees  int64
	}{{"short request", Execute(box.ID), 0}, {"long request", long, 1}} {
		b.storageQuota(t, -1)
		before := b.documentBytes()
		ref := b.accept(t, c.accept).Job.Ref()
		b.claim(t, ref, "w")
		c.frees *= b.documentBytes() - before
		f := store.Finish{Ref: ref, Attempt: 1, State: farm.JobCompleted, Result: result, Token: "t"}
		for _, free := range []int64{needed - 1, needed} {
			b.leave(t, max(free-c.frees, 0))
			testbed.Require(t, free >= c.frees, "the request of %d bytes frees more than the result needs", c.frees)
			_, err := b.Finish(t.Context(), f)
			full := farm.CodeOf(err) == farm.CodeExhausted
			testbed.Check(t, full == (free < needed) && (full || err == nil), "%s, %d bytes of %d free: %v", c.name, free, needed, err)
			state := b.job(t, ref).State
			testbed.Check(t, (state == farm.JobRunning) == (free < needed), "%s, %d bytes of %d free: the job is %s", c.name, free, needed, state)
		}
	}
	b.leave(t, 0)
	read := Execute(box.ID)
	read.Job.Hidden = true
	ref := b.accept(t, read).Job.Ref()
	b.claim(t, ref, "w")
	filler := farm.Ref{Tenant: Tenant, ID: "reads"}
	b.storageQuota(t, -1)
	used, err := b.Stored(t.Context(), Tenant)
	testbed.Must(t, err)
	for _, over := range []int64{readRoom - needed + 1, readRoom - needed} {
		b.storageQuota(t, -1)
		testbed.Must(t, b.KeepUploads(t.Context(), filler, 1<<20+over-used.Used()))
		b.storageQuota(t, 1)
		_, err := b.Finish(t.Context(), store.Finish{Ref: ref, Attempt: 1, State: farm.JobCompleted, Result: result, Token: "t"})
		full := farm.CodeOf(err) == farm.CodeExhausted
		testbed.Check(t, full == (over+needed > readRoom) && (full || err == nil), "a read with %d bytes over the quota: %v", over, err)
	}
}

// eventsNeedRoom: events that the tenant may not store are refused; those that say why are not.
func eventsNeedRoom(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ref := b.runningJob(t)
	text := strings.Repeat("x", 20_000)
	testbed.Must(t, b.AppendEvents(t.Context(), ref, 1, []farm.Event{stdout("", text)})) // which the window takes
	needed := int64(0)
	for try, free := range []int64{0, 1} {
		if try == 1 {
			b.storageQuota(t, -1) // to see how much they need
			other := b.runningJob(t)
			before := b.documentBytes()
			for range 2 {
				testbed.Must(t, b.AppendEvents(t.Context(), other, 1, []farm.Event{stdout("", text)}))
			}
			needed = b.documentBytes() - before
			free = needed - 1
		}
		b.leave(t, free)
		before := b.documentBytes()
		err := b.AppendEvents(t.Context(), ref, 1, []farm.Event{stdout("", text)})
		e, ok := errors.AsType[*farm.Error](err)
		testbed.Check(t, ok && e.Code == farm.CodeExhausted && e.Quota != nil && e.Quota.Name == farm.QuotaStoredMB, "%d bytes free: %v", free, err)
		left := b.documentBytes() - before
		testbed.Check(t, left == 0, "%d bytes of refused events are left", left)
	}
	b.leave(t, needed)
	if err := b.AppendEvents(t.Context(), ref, 1, []farm.Event{stdout("", text)}); err != nil {
		t.Errorf("%d bytes free: %v", needed, err)
	}
	b.leave(t, 0)
	fill := stdout("", strings.Repeat("x", window-32-len(`{"name":"stdout","text":""}`)))
	notice := farm.Event{Name: farm.EventProgress, Progress: &farm.Progress{Message: "no room"}}
	for _, events := range [][]farm.Event{{fill}, {notice}, {notice, notice}} {
		err := b.AppendEvents(t.Context(), ref, 1, events)
		testbed.Check(t, err == nil, "%d events in full storage: %v", len(events), err)
	}
	notice.Progress = &farm.Progress{Message: strings.Repeat("x", 2<<10)}
	err := b.AppendEvents(t.Context(), ref, 1, []farm.Event{notice})
	testbed.Check(t, farm.CodeOf(err) == farm.CodeExhausted, "a long notice in full storage: %v", err)
	all := b.events(t, ref, "")
	testbed.Check(t, len(all) == 2+2+1+3, "%d events", len(all)) // queued, running, two of text, one that filled the window, notices
}

package storetest

import (
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// upload is an object of a job's staged upload.
func (b *bundle) upload(t *testing.T, job farm.Ref, bytes int64) {
	t.Helper()
	if err := b.KeepUploads(t.Context(), job, bytes); err != nil {
		t.Fatal(err)
	}
	if err := b.documents.PutDocument(t.Context(), farm.StagingOf(job)+"0", []byte("x")); err != nil {
		t.Fatal(err)
	}
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
		if err := b.KeepUploads(t.Context(), job, bytes); err != nil {
			t.Errorf("%d bytes: %v", bytes, err)
		}
		b.stored(t, store.Stored{Kept: bytes})
	}
	full(b.KeepUploads(t.Context(), other, 1), 10, 10)
	b.storageQuota(t, 5) // a quota below what is used: less is allowed, more is not
	full(b.KeepUploads(t.Context(), job, limit+1), 5, 10)
	if err := b.KeepUploads(t.Context(), job, limit-1); err != nil {
		t.Error(err)
	}
	if err := b.KeepUploads(t.Context(), job, 0); err != nil {
		t.Error(err)
	}
	b.stored(t, store.Stored{})
	b.storageQuota(t, 0)
	full(b.KeepUploads(t.Context(), job, 1), 0, 0)
	b.storageQuota(t, -1)
	if err := b.KeepUploads(t.Context(), job, 1<<50); err != nil {
		t.Error(err)
	}
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
	if _, _, err := b.Cancel(t.Context(), a.Job.Ref(), nil); err != nil {
		t.Fatal(err)
	}
	b.stored(t, store.Stored{Kept: 7}) // as long as it is there
	b.clock.forward(time.Second)
	b.trim(t, store.Trimmed{Documented: 1})
	b.stored(t, store.Stored{})
	b.wantDocuments(t, "after the end of its job", 0)
	if n := b.rdb.Exists(t.Context(), b.prefix+"{acme}:kept", b.prefix+"{acme}:docs").Val(); n != 0 {
		t.Errorf("%d of the indexes are left", n)
	}
}

// copiesAreCharged: the copy of a file for a caller counts like an upload, that of a link until some minutes after the link, that of a reader for an
// hour after its last sign of life. Only the latter may exceed the quota, as results of reads do.
func copiesAreCharged(t *testing.T, factory Factory) {
	const limit, room = 1 << 20, 64 << 20
	b := setup(t, factory)
	b.storageQuota(t, limit>>20)
	linked, read := b.running(t), b.running(t)
	keep := func(job farm.Ref, bytes int64, life time.Duration) {
		t.Helper()
		if err := b.KeepCopy(t.Context(), job, bytes, life); err != nil {
			t.Fatal(err)
		}
		if err := b.documents.PutDocument(t.Context(), farm.StagingOf(job)+"read", []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	full := func(job farm.Ref, bytes int64, life time.Duration) {
		t.Helper()
		if err := b.KeepCopy(t.Context(), job, bytes, life); farm.CodeOf(err) != farm.CodeExhausted {
			t.Errorf("%d bytes are kept: %v", bytes, err)
		}
	}
	full(linked, limit+1, time.Second)
	keep(linked, limit, 2*time.Hour)
	full(read, room+1, 0)
	keep(read, room, 0)
	b.stored(t, store.Stored{Kept: limit + room})
	for _, job := range []farm.Ref{linked, read} { // the end of the job changes nothing: its caller reads the copy afterwards
		if _, err := b.Finish(t.Context(), store.Finish{Ref: job, Attempt: 1, State: farm.JobCompleted, Result: &farm.Result{}, Token: job.ID}); err != nil {
			t.Fatal(err)
		}
	}
	b.clock.forward(59 * time.Minute)
	keep(read, room, 0) // it is slow, but alive
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
	if granted != 10 {
		t.Errorf("%d of %d callers uploaded a tenth of the quota each", granted, callers)
	}
	b.stored(t, store.Stored{Kept: 10 * share})
}

// keptIsRepaired: the count is that of the entries of the index of documents, and uploads whose job ended unnoticed go.
func keptIsRepaired(t *testing.T, factory Factory) {
	b := setup(t, factory)
	job, gone := b.running(t), farm.Ref{Tenant: Tenant, ID: b.NewJobID()}
	b.upload(t, job, 7)
	b.upload(t, gone, 5)
	repair := func(want, right int64) {
		t.Helper()
		if drift, checked, err := b.RepairStored(t.Context(), Tenant, 1000, true); err != nil || !checked || drift != (store.Stored{Kept: want}) {
			t.Errorf("RepairStored = %+v, %v, %v; want %d", drift, checked, err, want)
		}
		b.stored(t, store.Stored{Kept: right})
	}
	repair(0, 12)
	if err := b.rdb.HSet(t.Context(), b.prefix+"{acme}:stored", "kept", 20).Err(); err != nil {
		t.Fatal(err)
	}
	repair(8, 12)
	if err := b.rdb.ZRem(t.Context(), b.prefix+"{acme}:docs", "staging/"+job.ID).Err(); err != nil {
		t.Fatal(err)
	}
	repair(7, 5)
	if err := b.rdb.ZAdd(t.Context(), b.prefix+"{acme}:docs", redis.Z{Score: math.Inf(1), Member: "staging/" + gone.ID}).Err(); err != nil {
		t.Fatal(err)
	}
	repair(0, 5)
	b.clock.forward(time.Second)
	b.trim(t, store.Trimmed{Documented: 1})
	repair(0, 0)
}

package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// stored checks what the tenant of most tests stores.
func (b *bundle) stored(t *testing.T, want store.Stored) {
	t.Helper()
	got, err := b.Stored(t.Context(), Tenant)
	diff := cmp.Diff(want, got)
	testbed.Check(t, diff == "" && err == nil, "Stored: %v (-want +got):\n%s", err, diff)
}

// storedIsExact adds, replaces and deletes artifacts of a few jobs from many callers at once: the counts are those of what is left.
func storedIsExact(t *testing.T, factory Factory) {
	b := setup(t, factory)
	jobs := []farm.Ref{{Tenant: Tenant, ID: farm.NewID(farm.JobPrefix)}, {Tenant: Tenant, ID: farm.NewID(farm.JobPrefix)}}
	var wg sync.WaitGroup
	for caller := range 8 {
		random := rand.New(rand.NewPCG(1, uint64(caller)))
		wg.Go(func() {
			for range 15 {
				var list []farm.Artifact
				for range 1 + random.IntN(60) { // so that the manifests are sometimes documents
					name := fmt.Sprintf("%d/%s", random.IntN(400), strings.Repeat("x", 200))
					list = append(list, b.file(jobs[random.IntN(2)], name, random.Int64N(1<<40)))
				}
				err := error(nil)
				if random.IntN(3) == 0 {
					_, err = b.DeleteArtifacts(t.Context(), list)
				} else {
					err = b.AddArtifacts(t.Context(), 0, list)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var want store.Stored
	var left []farm.Artifact
	for cursor := ""; ; {
		found, next, err := b.Artifacts(t.Context(), Tenant, store.ArtifactFilter{}, store.Page{Limit: 100, Cursor: cursor})
		testbed.Must(t, err)
		for _, a := range found {
			want.Bytes, want.Artifacts = want.Bytes+a.Size, want.Artifacts+1
			left = append(left, *a)
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	testbed.Check(t, want.Artifacts != 0, "nothing is left to count")
	b.stored(t, want)
	docs := b.documents.Keys()
	testbed.Check(t, len(docs) <= len(jobs), "%d documents of %d manifests", len(docs), len(jobs))
	n, err := b.DeleteArtifacts(t.Context(), left)
	testbed.Check(t, err == nil && n == len(left), "DeleteArtifacts = %d, %v; want %d", n, err, len(left))
	b.stored(t, store.Stored{})
}

// storageIsReserved fills a tenant's storage to its limit, and frees it again.
func storageIsReserved(t *testing.T, factory Factory) {
	const limit, each = 10 << 20, farm.ObjectBytes
	b := setup(t, factory)
	b.storageQuota(t, limit>>20)
	job, other := b.running(t), b.running(t)
	reserve := func(job farm.Ref, bytes int64, want bool, wantFree int64) {
		t.Helper()
		if ok, free, err := b.ReserveStored(t.Context(), job, 1, bytes); err != nil || ok != want || free != wantFree {
			t.Errorf("ReserveStored(%d) = %v, %d free, %v; want %v, %d free", bytes, ok, free, err, want, wantFree)
		}
	}
	reserve(job, limit+1, false, limit)
	reserve(job, limit, true, 0)
	reserve(job, limit, true, 0) // a takeover reserves the same
	reserve(other, 1, false, 0)
	reserve(other, 0, true, 0)
	if _, _, err := b.ReserveStored(t.Context(), other, 1, -1); err == nil {
		t.Error("a job reserves less than nothing")
	}
	b.stored(t, store.Stored{Reserved: limit})
	reserve(job, limit-1, true, 0)
	reserve(other, 2, false, 1)
	reserve(other, 1, true, 0)
	b.stored(t, store.Stored{Reserved: limit})

	a := b.file(job, "a", limit-10-each)
	b.add(t, a)
	b.stored(t, store.Stored{Bytes: limit - 10 - each, Artifacts: 1, Reserved: 10})
	b.add(t, a)
	b.stored(t, store.Stored{Bytes: limit - 10 - each, Artifacts: 1, Reserved: 10})
	reserve(other, 2, false, 1)
	if _, err := b.Finish(t.Context(), store.Finish{Ref: job, Attempt: 1, State: farm.JobCompleted}); err != nil {
		t.Fatal(err)
	}
	b.stored(t, store.Stored{Bytes: limit - 10 - each, Artifacts: 1, Reserved: 1})
	reserve(other, 11, false, 10)
	reserve(other, 10, true, 0)
	if _, _, err := b.ReserveStored(t.Context(), job, 1, 1); err == nil {
		t.Error("a finished job reserves storage")
	}
	if _, _, err := b.ReserveStored(t.Context(), other, 2, 1); err == nil {
		t.Error("another attempt reserves storage")
	}
	requeued := b.running(t)
	testbed.Must(t, b.Requeue(t.Context(), requeued, store.Requeue{Attempt: 1}))
	if _, _, err := b.ReserveStored(t.Context(), requeued, 1, 1); !errors.Is(err, store.ErrFenced) {
		t.Errorf("a requeued job reserves storage: %v", err)
	}
	_, _, err := b.ReserveStored(t.Context(), farm.Ref{Tenant: Tenant, ID: "job_none"}, 1, 1)
	wantCode(t, "unknown job", err, farm.CodeNotFound)
	if n, err := b.DeleteArtifacts(t.Context(), []farm.Artifact{a}); err != nil || n != 1 {
		t.Errorf("DeleteArtifacts = %d, %v", n, err)
	}
	reserve(other, limit, true, 0)
	_, err = b.Force(t.Context(), other, farm.JobLost, &farm.JobError{Code: farm.CodeUnavailable, Message: "lost"})
	testbed.Must(t, err)
	b.stored(t, store.Stored{Kept: limit}) // what the job may have uploaded, see straysAreCharged
	reserve(b.running(t), 1, false, 0)
	b.clock.forward(11 * time.Minute)
	b.trim(t, store.Trimmed{Documented: 1})
	b.stored(t, store.Stored{})
	ok, _, err := b.ReserveStored(t.Context(), b.running(t), 1, limit+1)
	testbed.Check(t, err == nil && !ok, "more than the limit is reserved: %v, %v", ok, err)
	// A job whose reservation is used up, or was given back, ends like any other.
	used, unused := b.running(t), b.running(t)
	reserve(used, 5+each, true, 0)
	b.add(t, b.file(used, "b", 5))
	reserve(unused, 5, true, 0)
	reserve(unused, 0, true, 0)
	for _, job := range []farm.Ref{used, unused} {
		_, err := b.Finish(t.Context(), store.Finish{Ref: job, Attempt: 1, State: farm.JobCompleted})
		testbed.Check(t, err == nil, "finish a job that has nothing reserved: %v", err)
	}
	b.stored(t, store.Stored{Bytes: 5, Artifacts: 1})
	b.storageQuota(t, 0)
	reserve(b.running(t), 1, false, 0)
	b.storageQuota(t, -1)
	reserve(b.running(t), 1<<50, true, 0)
}

// emptyArtifactsAreCharged fills a tenant's storage with files without a byte, since each takes space of the object store and of its manifest.
func emptyArtifactsAreCharged(t *testing.T, factory Factory) {
	const limit = 1 << 20 / farm.ObjectBytes
	const rest = 1<<20 - limit*farm.ObjectBytes // what one file has, so that all fill it
	b := setup(t, factory)
	b.storageQuota(t, 1)
	job := b.running(t)
	free := func(want int64) {
		t.Helper()
		ok, got, err := b.ReserveStored(t.Context(), job, 1, want+1)
		testbed.Check(t, err == nil && !ok && got == want, "ReserveStored(%d) = %v, %d free, %v; want %d free", want+1, ok, got, err, want)
		ok, _, err = b.ReserveStored(t.Context(), job, 1, want)
		testbed.Check(t, err == nil && ok, "ReserveStored(%d) = %v, %v", want, ok, err)
	}
	list := []farm.Artifact{b.file(job, "rest", rest)}
	for i := range limit - 2 {
		list = append(list, b.file(job, fmt.Sprintf("empty%d", i), 0))
	}
	free(1 << 20)
	b.add(t, list...)
	b.stored(t, store.Stored{Bytes: rest, Artifacts: limit - 1, Reserved: farm.ObjectBytes}) // the rest is freed
	free(farm.ObjectBytes)
	b.add(t, b.file(job, "last", 0))
	b.stored(t, store.Stored{Bytes: rest, Artifacts: limit})
	free(0)
	used := b.used(t, farm.QuotaStoredMB)
	testbed.Check(t, used == 1, "%v MiB are used, want 1", used)
	n, err := b.DeleteArtifacts(t.Context(), list[1:2])
	testbed.Check(t, err == nil && n == 1, "DeleteArtifacts = %d, %v", n, err)
	free(farm.ObjectBytes)
}

// manifestsAreCharged has the lists of a tenant's artifacts among what it has in Redis: a new job is refused beyond the bound, and the count follows
// each change, also after a repair.
func manifestsAreCharged(t *testing.T, factory Factory) {
	b := setup(t, factory)
	job := b.running(t)
	counted := func() int64 {
		t.Helper()
		n, err := b.rdb.HGet(t.Context(), b.prefix+"{acme}:stored", "manifests").Int64()
		testbed.Must(t, err)
		return n
	}
	a, c := b.file(job, "a", 1), b.file(job, "a longer name", 1)
	b.add(t, a)
	first := counted()
	testbed.Diff(t, "bytes are counted", b.manifest(t, job), first)
	b.add(t, c)
	if n := counted(); n != b.manifest(t, job) || n <= first {
		t.Errorf("%d bytes are counted, want %d", n, b.manifest(t, job))
	}
	testbed.Must(t, b.rdb.HIncrBy(t.Context(), b.prefix+"{acme}:stored", "manifests", 7).Err())
	drift, done, err := b.RepairStored(t.Context(), Tenant, 1000, true)
	testbed.Check(t, err == nil && done && drift == (store.StoredDrift{Manifests: 7}), "RepairStored = %+v, %v, %v", drift, done, err)
	for _, one := range []farm.Artifact{a, c} {
		_, err := b.DeleteArtifacts(t.Context(), []farm.Artifact{one})
		testbed.Must(t, err)
	}
	n := counted()
	testbed.Check(t, n == 0, "%d bytes are counted of no artifacts", n)
}

// manifest is what the manifest of a job counts in Redis.
func (b *bundle) manifest(t *testing.T, job farm.Ref) int64 {
	t.Helper()
	const extra = 1024 // MANIFEST_EXTRA
	text, _ := b.rdb.HGet(t.Context(), b.prefix+"{acme}:mf:"+job.ID, "doc").Result()
	return int64(len(text)) + extra
}

// storageQuota sets the tenant's quota max_stored_mb.
func (b *bundle) storageQuota(t *testing.T, mb int) {
	t.Helper()
	testbed.Must(t, b.rdb.HSet(t.Context(), b.prefix+"{acme}:quota", "max_stored_mb", mb).Err())
}

// running makes a job that runs.
func (b *bundle) running(t *testing.T) farm.Ref {
	t.Helper()
	ref := b.accept(t, Execute(b.box(t, farm.SandboxReady).ID)).Job.Ref()
	b.claim(t, ref, "w")
	return ref
}

// storageRace: fifty jobs reserve a tenth of the limit each at the same time, and ten of them get it.
func storageRace(t *testing.T, factory Factory) {
	const callers, share = 50, 1 << 20
	b := setup(t, factory)
	b.storageQuota(t, 10*share>>20)
	var mu sync.Mutex
	var wg sync.WaitGroup
	granted := 0
	for range callers {
		job := b.running(t)
		wg.Go(func() {
			ok, _, err := b.ReserveStored(t.Context(), job, 1, share)
			if err == nil && ok {
				err = b.AddArtifacts(t.Context(), 0, []farm.Artifact{b.file(job, "a", share-farm.ObjectBytes)})
				mu.Lock()
				granted++
				mu.Unlock()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	testbed.Check(t, granted == 10, "%d of %d callers stored a tenth of the limit each", granted, callers)
	b.stored(t, store.Stored{Bytes: 10 * (share - farm.ObjectBytes), Artifacts: 10})
}

// storedIsRepaired: counts that are wrong are corrected, and the correction says by how much.
func storedIsRepaired(t *testing.T, factory Factory) {
	b := setup(t, factory)
	job := b.running(t)
	b.add(t, b.file(job, "a", 7), b.file(job, "b", 8))
	if ok, _, err := b.ReserveStored(t.Context(), job, 1, 100); err != nil || !ok {
		t.Fatal(ok, err)
	}
	right := store.Stored{Bytes: 15, Artifacts: 2, Reserved: 100}
	repair := func(want store.StoredDrift) {
		t.Helper()
		drift, checked, err := b.RepairStored(t.Context(), Tenant, 1000, true)
		testbed.Check(t, err == nil && checked && drift == want, "RepairStored = %+v, %v, %v; want %+v", drift, checked, err, want)
		b.stored(t, right)
	}
	repair(store.StoredDrift{})
	testbed.Must(t, b.rdb.HSet(t.Context(), b.prefix+"{acme}:stored", "bytes", 20, "artifacts", 1, "reserved", -3).Err())
	repair(store.StoredDrift{Stored: store.Stored{Bytes: 5, Artifacts: -1, Reserved: -103}})
	testbed.Must(t, b.rdb.Del(t.Context(), b.prefix+"{acme}:stored").Err())
	repair(store.StoredDrift{Stored: store.Stored{Bytes: -15, Artifacts: -2, Reserved: -100}, Manifests: -b.manifest(t, job)})
	drift, checked, err := b.RepairStored(t.Context(), "nobody", 1000, true)
	testbed.Check(t, err == nil && checked && drift == (store.StoredDrift{}), "RepairStored of an unknown tenant = %+v, %v, %v", drift, checked, err)
}

// storedIsRepairedWhileItChanges: a walk of many steps finds no drift where there is none, whatever changes between its steps, and all of it
// where there is some.
func storedIsRepairedWhileItChanges(t *testing.T, factory Factory) {
	const uploads = 600 // Redis scans smaller hashes in one step
	b := setup(t, factory)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var ids []farm.Ref
	right := store.Stored{}
	kept := map[string]int64{}
	keep := func(i int, bytes int64) {
		testbed.Must(t, b.KeepUploads(t.Context(), ids[i], bytes))
		right.Kept, kept[ids[i].ID] = right.Kept+bytes-kept[ids[i].ID], bytes
	}
	for i := range uploads {
		ids = append(ids, farm.Ref{Tenant: Tenant, ID: b.NewJobID()})
		keep(i, 1+random.Int64N(100))
	}
	files := map[int]farm.Artifact{}
	flip := func(i int) { // adds or deletes a file, of two in a manifest
		if a, there := files[i]; there {
			if n, err := b.DeleteArtifacts(t.Context(), []farm.Artifact{a}); err != nil || n != 1 {
				t.Fatal(n, err)
			}
			right.Bytes, right.Artifacts = right.Bytes-a.Size, right.Artifacts-1
			delete(files, i)
			return
		}
		files[i] = b.file(ids[i/2], fmt.Sprint(i), random.Int64N(1000))
		b.add(t, files[i])
		right.Bytes, right.Artifacts = right.Bytes+files[i].Size, right.Artifacts+1
	}
	change := func() {
		if random.IntN(2) == 0 {
			keep(random.IntN(uploads), random.Int64N(3))
		} else {
			flip(random.IntN(20))
		}
	}
	// walk goes to the end of a walk, with changes between its steps.
	walk := func(want store.Stored) (steps int) {
		t.Helper()
		for done := false; !done; steps++ {
			for range random.IntN(6) {
				change()
			}
			var drift store.StoredDrift
			var err error
			if drift, done, err = b.RepairStored(t.Context(), Tenant, 2, steps == 0); err != nil {
				t.Fatal(err)
			} else if done && drift != (store.StoredDrift{Stored: want}) {
				t.Fatalf("found %+v, want %+v", drift, want)
			}
		}
		b.stored(t, right)
		return steps
	}
	for range 4 {
		walk(store.Stored{})
	}
	for i := range 20 { // so that it takes some steps
		if _, there := files[i]; !there {
			flip(i)
		}
	}
	testbed.Must(t, b.rdb.HIncrBy(t.Context(), b.prefix+"{acme}:stored", "bytes", 7).Err())
	testbed.Must(t, b.rdb.HIncrBy(t.Context(), b.prefix+"{acme}:stored", "kept", -9).Err())
	steps := walk(store.Stored{Bytes: 7, Kept: -9})
	testbed.Check(t, steps >= 2, "a walk of %d step is none", steps)
	n, err := b.rdb.Exists(t.Context(), b.prefix+"{acme}:walk", b.prefix+"{acme}:walked").Result()
	testbed.Check(t, err == nil && n == 0, "%d keys are left of the walk, %v", n, err)
}

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
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func artifacts(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ctx, now := t.Context(), b.clock.Now()
	var all []farm.Artifact
	jobs := [3]string{farm.NewID(farm.JobPrefix), farm.NewID(farm.JobPrefix), farm.NewID(farm.JobPrefix)}
	for i := range 3 {
		all = append(all, farm.Artifact{
			ID: farm.ArtifactID(jobs[i], "a.png"), Tenant: Tenant, SandboxID: "sbx_1", JobID: jobs[i], Name: "a.png", Path: "a.png",
			Size: 3, CreatedAt: now, ExpiresAt: now.Add(time.Duration(i+1) * time.Hour), Key: "k",
		})
	}
	for range 2 { // a takeover adds them again
		testbed.Must(t, b.AddArtifacts(ctx, 0, all))
	}
	list := func(f store.ArtifactFilter) []farm.Artifact {
		t.Helper()
		page, next, err := b.Artifacts(ctx, Tenant, f, store.Page{})
		testbed.Check(t, err == nil && next == "", "Artifacts(%+v): next %q, %v", f, next, err)
		out := []farm.Artifact{}
		for _, a := range page {
			out = append(out, *a)
		}
		return out
	}
	testbed.Diff(t, "of the sandbox", []farm.Artifact{all[2], all[1], all[0]}, list(store.ArtifactFilter{SandboxID: "sbx_1"}))
	testbed.Diff(t, "of a job", all[1:2], list(store.ArtifactFilter{JobID: jobs[1]}))
	got := list(store.ArtifactFilter{JobID: jobs[1], SandboxID: "sbx_2"})
	testbed.Check(t, len(got) == 0, "of a job in another sandbox: %v", got)
	ref := farm.Ref{Tenant: Tenant, ID: all[0].ID}
	if got, err := b.Artifact(ctx, ref); err != nil || cmp.Diff(all[0], *got) != "" {
		t.Errorf("Artifact = %+v, %v", got, err)
	}
	b.clock.forward(time.Hour)
	_, err := b.Artifact(ctx, ref)
	wantCode(t, "expired artifact", err, farm.CodeNotFound)
	got = list(store.ArtifactFilter{})
	testbed.Check(t, len(got) == 2, "%d artifacts are listed after the first has expired, want 2", len(got))
	expired, err := b.ExpiredArtifacts(ctx, Tenant, 10)
	diff := cmp.Diff(all[:1], expired)
	testbed.Check(t, err == nil && diff == "", "ExpiredArtifacts (-want +got), %v:\n%s", err, diff)
	if n, err := b.DeleteArtifacts(ctx, expired); err != nil || n != len(expired) {
		t.Fatal(err)
	}
	expired, err = b.ExpiredArtifacts(ctx, Tenant, 10)
	testbed.Check(t, err == nil && len(expired) == 0, "ExpiredArtifacts after that = %v, %v", expired, err)
}

// file is an artifact of a job, as a worker makes it.
func (b *bundle) file(job farm.Ref, name string, size int64) farm.Artifact {
	now := b.clock.Now()
	return farm.Artifact{
		ID: farm.ArtifactID(job.ID, name), Tenant: job.Tenant, SandboxID: "sbx_1", JobID: job.ID, Name: name[strings.LastIndex(name, "/")+1:], Path: name, Size: size,
		ContentType: "text/plain", SHA256: strings.Repeat("0", 64), CreatedAt: now, ExpiresAt: now.Add(time.Hour), Key: "artifacts/" + name,
	}
}

func (b *bundle) add(t *testing.T, artifacts ...farm.Artifact) {
	t.Helper()
	testbed.Must(t, b.AddArtifacts(t.Context(), 0, artifacts))
}

// pages reads a whole list page by page.
func (b *bundle) pages(t *testing.T, f store.ArtifactFilter, limit int, between func()) []string {
	t.Helper()
	var got []string
	for cursor := ""; ; {
		found, next, err := b.Artifacts(t.Context(), Tenant, f, store.Page{Limit: limit, Cursor: cursor})
		testbed.Require(t, err == nil && len(found) <= limit, "a page of %d, %v; want %d at most", len(found), err, limit)
		got = append(got, ids(found, func(a *farm.Artifact) string { return a.ID })...)
		if cursor = next; cursor == "" {
			return got
		}
		between()
	}
}

// artifactsOfAJobAreOneManifest: however many files a job leaves, Redis has as many keys as for one, and the object store has one document.
func artifactsOfAJobAreOneManifest(t *testing.T, factory Factory) {
	b := setup(t, factory)
	job := farm.Ref{Tenant: Tenant, ID: farm.NewID(farm.JobPrefix)}
	b.add(t, b.file(job, "first", 1))
	keys := func() []string {
		t.Helper()
		found, err := b.rdb.Keys(t.Context(), b.prefix+"*").Result()
		testbed.Must(t, err)
		slices.Sort(found)
		return found
	}
	one := keys()
	docs := b.documents.Keys()
	testbed.Check(t, len(docs) == 0, "one artifact made the documents %v", docs)
	const files = 10_000
	var many []farm.Artifact
	for i := range files - 1 {
		many = append(many, b.file(job, fmt.Sprintf("dir/%d.txt", i), 10))
	}
	b.add(t, many...)
	testbed.Diff(t, fmt.Sprintf("keys (-with one artifact +with %d)", files), one, keys())
	n := b.rdb.HGet(t.Context(), b.prefix+"{acme}:mf:"+job.ID, "doc").Val()
	testbed.Check(t, len(n) <= 300, "the record has %d bytes of the manifest, want a reference", len(n))
	b.stored(t, store.Stored{Bytes: 1 + 10*(files-1), Artifacts: files})
	docs = b.documents.Keys()
	testbed.Check(t, len(docs) == 1, "%d artifacts made the documents %v, want one", files, docs)
	_, before := b.documents.Calls()
	for i := range 50 {
		got, err := b.Artifact(t.Context(), farm.Ref{Tenant: Tenant, ID: many[i].ID})
		testbed.Require(t, err == nil && cmp.Diff(&many[i], got) == "", "Artifact %d = %+v, %v", i, got, err)
	}
	_, after := b.documents.Calls()
	testbed.Check(t, after-before <= 1, "50 artifacts took %d reads of the document, want one", after-before)
	got := b.pages(t, store.ArtifactFilter{JobID: job.ID}, 200, func() {})
	testbed.Check(t, len(got) == files, "the job lists %d artifacts, want %d", len(got), files)
	if n, err := b.DeleteArtifacts(t.Context(), many[:1]); err != nil || n != 1 {
		t.Errorf("DeleteArtifacts = %d, %v", n, err)
	}
	b.stored(t, store.Stored{Bytes: 1 + 10*(files-2), Artifacts: files - 1})
	docs = b.documents.Keys()
	testbed.Check(t, len(docs) == 1, "a delete left the documents %v, want one", docs)
	if n, err := b.DeleteArtifacts(t.Context(), append(many, b.file(job, "first", 1))); err != nil || n != files-1 {
		t.Errorf("DeleteArtifacts of all = %d, %v; want %d", n, err, files-1)
	}
	b.stored(t, store.Stored{})
	docs = b.documents.Keys()
	testbed.Check(t, len(docs) == 0, "deleted artifacts left the documents %v", docs)
	left, err := b.rdb.Keys(t.Context(), b.prefix+"*mf*").Result()
	testbed.Check(t, err == nil && len(left) == 0, "deleted artifacts left the keys %v, %v", left, err)
}

// artifactPagesAreStable pages through lists while artifacts are added and deleted: those that existed before and still do come once, in order.
func artifactPagesAreStable(t *testing.T, factory Factory) {
	b := setup(t, factory)
	var all []farm.Artifact
	var jobs []farm.Ref
	for i := range 30 {
		job := farm.Ref{Tenant: Tenant, ID: farm.NewID(farm.JobPrefix)}
		var list []farm.Artifact
		for k := range 1 + i%5 {
			a := b.file(job, fmt.Sprint("file", k), 1)
			a.SandboxID = fmt.Sprint("sbx_", i%2)
			list = append(list, a)
		}
		b.add(t, list...)
		jobs, all = append(jobs, job), append(all, list...)
	}
	slices.Reverse(all)
	for name, f := range map[string]store.ArtifactFilter{
		"all": {}, "sandbox": {SandboxID: "sbx_1"}, "name": {Name: "file1"}, "job": {JobID: jobs[9].ID}, "job and sandbox": {JobID: jobs[9].ID, SandboxID: "sbx_1"},
		"name and sandbox": {Name: "file0", SandboxID: "sbx_0"}, "nothing": {Name: "none"}, "other sandbox": {JobID: jobs[9].ID, SandboxID: "sbx_0"},
		"unknown job": {JobID: "job_none"}, "unknown sandbox": {SandboxID: "sbx_none"},
	} {
		var want []string
		for i := range all {
			if a := &all[i]; (f.SandboxID == "" || f.SandboxID == a.SandboxID) && (f.JobID == "" || f.JobID == a.JobID) && (f.Name == "" || f.Name == a.Name) {
				want = append(want, a.ID)
			}
		}
		for _, limit := range []int{1, 2, 3, 7, 200} {
			testbed.Diff(t, fmt.Sprintf("%s in pages of %d", name, limit), want, b.pages(t, f, limit, func() {}))
		}
	}
	extra := map[string]bool{}
	got := b.pages(t, store.ArtifactFilter{}, 3, func() {
		first, late := farm.Ref{Tenant: Tenant, ID: farm.NewID(farm.JobPrefix)}, fmt.Sprint("late", len(extra))
		for _, a := range []farm.Artifact{b.file(first, late, 1), b.file(jobs[0], late, 1)} { // a new job, and one that is not listed yet
			b.add(t, a)
			extra[a.ID] = true
			_, err := b.DeleteArtifacts(t.Context(), []farm.Artifact{a})
			testbed.Must(t, err)
		}
		a := b.file(first, late, 1)
		b.add(t, a)
	})
	got = slices.DeleteFunc(got, func(id string) bool { return extra[id] })
	testbed.Diff(t, "while artifacts came and went", ids(pointers(all), func(a *farm.Artifact) string { return a.ID }), got)
}

// artifactPagesAreBoundedInBytes: a page ends with the manifest whose bytes reach the limit, and the next one goes on from there.
func artifactPagesAreBoundedInBytes(t *testing.T, factory Factory) {
	const limit, manifests, more = 2 << 20, 70, 3
	for sum, want := range map[int]int{limit - 1: manifests + 1, limit: manifests, limit + 1: manifests} {
		b := setup(t, factory)
		frame := 0 // bytes of a manifest beside the path
		add := func(size int) {
			a := b.file(farm.Ref{Tenant: Tenant, ID: farm.NewID(farm.JobPrefix)}, strings.Repeat("x", size-frame), 1)
			a.Name, a.Key = "a", "k"
			b.add(t, a)
			stored, err := b.rdb.HStrLen(t.Context(), b.prefix+"{"+Tenant+"}:mf:"+a.JobID, "doc").Result()
			testbed.Must(t, err)
			if frame == 0 {
				frame = int(stored) - size
			} else if int(stored) != size {
				t.Fatalf("a manifest has %d bytes, want %d", stored, size)
			}
		}
		for range more {
			add(1000)
		}
		for range manifests - 1 {
			add(limit / manifests)
		}
		add(sum - (manifests-1)*(limit/manifests))
		f := store.ArtifactFilter{Name: "a"}
		found, next, err := b.Artifacts(t.Context(), Tenant, f, store.Page{Limit: 200})
		testbed.Check(t, err == nil && len(found) == want && next != "", "of manifests of %d bytes a page has %d, next %q, %v; want %d", sum, len(found), next, err, want)
		testbed.Diff(t, "artifacts of all pages", manifests+more, len(b.pages(t, f, 200, func() {})))
	}
}

// aLongManifestEndsAPage: a list that held one while it waited for the next made others of the tenant, which had the places, wait for its memory.
func aLongManifestEndsAPage(t *testing.T, factory Factory) {
	b := setup(t, factory)
	const jobs = 3
	for range jobs {
		job := farm.Ref{Tenant: Tenant, ID: farm.NewID(farm.JobPrefix)}
		long := b.file(job, "dir/"+strings.Repeat("x", store.InlineBytes), 1)
		long.Name, long.Key = "long", "k"
		b.add(t, long, b.file(job, "a", 1))
	}
	f := store.ArtifactFilter{Name: "a"}
	found, next, err := b.Artifacts(t.Context(), Tenant, f, store.Page{Limit: 200})
	testbed.Check(t, err == nil && len(found) == 1 && next != "", "a page has the artifacts of %d long manifests, next %q, %v", len(found), next, err)
	testbed.Diff(t, "artifacts of all pages", jobs, len(b.pages(t, f, 200, func() {})))
}

func pointers[T any](list []T) []*T {
	out := make([]*T, len(list))
	for i := range list {
		out[i] = &list[i]
	}
	return out
}

// manifestsLost: a manifest that the object store has lost hides its own artifacts only, and is removed when they expire.
func manifestsLost(t *testing.T, factory Factory) {
	b := setup(t, factory)
	lost, kept := farm.Ref{Tenant: Tenant, ID: farm.NewID(farm.JobPrefix)}, farm.Ref{Tenant: Tenant, ID: farm.NewID(farm.JobPrefix)}
	var many []farm.Artifact
	for i := range 1000 {
		many = append(many, b.file(lost, fmt.Sprint("file", i), 1))
	}
	b.add(t, many...)
	b.add(t, b.file(kept, "a", 1))
	testbed.Must(t, b.documents.Delete(t.Context(), b.documents.Keys()...))
	got := b.pages(t, store.ArtifactFilter{}, 50, func() {})
	testbed.Check(t, len(got) == 1, "%d artifacts are listed, want the one whose manifest is there", len(got))
	_, err := b.Artifact(t.Context(), farm.Ref{Tenant: Tenant, ID: many[0].ID})
	testbed.Check(t, err != nil, "an artifact without a manifest is found")
	b.clock.forward(time.Hour)
	expired, err := b.ExpiredArtifacts(t.Context(), Tenant, 10)
	testbed.Check(t, err == nil && len(expired) == 1, "ExpiredArtifacts = %d, %v; want one", len(expired), err)
	b.stored(t, store.Stored{Bytes: 1, Artifacts: 1})
	outage := farm.Errorf(farm.CodeUnavailable, "down")
	b.documents.Fail(outage)
	wantCode(t, "an outage", b.AddArtifacts(t.Context(), 0, many), farm.CodeUnavailable)
	b.documents.Fail(nil)
	b.add(t, many...)
	b.stored(t, store.Stored{Bytes: 1001, Artifacts: 1001})
}

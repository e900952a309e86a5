package storetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// listsByTime filters jobs, sandboxes and artifacts by when they were created; both ends are exclusive.
func listsByTime(t *testing.T, factory Factory) {
	b := setup(t, factory)
	start := b.clock.Now()
	var jobs, boxes, artifacts [4]string
	for i := range jobs { // one of each, an hour apart
		a := Create()
		a.Sandbox.CreatedAt, a.Sandbox.Spec.Name = b.clock.Now(), fmt.Sprint("box", i%2)
		b.accept(t, a)
		jobs[i], boxes[i], artifacts[i] = a.Job.ID, a.Sandbox.ID, farm.ArtifactID(a.Job.ID, "f")
		if err := b.AddArtifacts(t.Context(), 0, []farm.Artifact{{
			ID: artifacts[i], Tenant: Tenant, SandboxID: a.Sandbox.ID, JobID: a.Job.ID, Name: fmt.Sprint("file", i%2),
			CreatedAt: b.clock.Now(), ExpiresAt: b.clock.Now().Add(24 * time.Hour),
		}}); err != nil {
			t.Fatal(err)
		}
		b.clock.forward(time.Hour)
	}
	hour := func(n int) time.Time { return start.Add(time.Duration(n) * time.Hour) }
	for name, test := range map[string]struct {
		created store.TimeRange
		want    []int
	}{
		"open":          {store.TimeRange{}, []int{3, 2, 1, 0}},
		"after":         {store.TimeRange{After: hour(1)}, []int{3, 2}},
		"just before":   {store.TimeRange{After: hour(1).Add(-time.Microsecond)}, []int{3, 2, 1}},
		"before":        {store.TimeRange{Before: hour(1)}, []int{0}},
		"between":       {store.TimeRange{After: hour(0), Before: hour(3)}, []int{2, 1}},
		"empty":         {store.TimeRange{After: hour(1), Before: hour(1)}, nil},
		"in the future": {store.TimeRange{After: hour(9)}, nil},
	} {
		check := func(what string, all [4]string, got []string, next string, err error) {
			t.Helper()
			var want []string
			for _, i := range test.want {
				want = append(want, all[i])
			}
			if diff := cmp.Diff(want, got); diff != "" || next != "" || err != nil {
				t.Errorf("%s %s: next %q, %v (-want +got):\n%s", what, name, next, err, diff)
			}
		}
		foundJobs, next, err := b.Jobs(t.Context(), Tenant, store.JobFilter{Created: test.created}, store.Page{})
		check("jobs", jobs, ids(foundJobs, func(j *farm.Job) string { return j.ID }), next, err)
		foundBoxes, next, err := b.Sandboxes(t.Context(), Tenant, store.SandboxFilter{Created: test.created}, store.Page{})
		check("sandboxes", boxes, ids(foundBoxes, func(s *farm.Sandbox) string { return s.ID }), next, err)
		foundArtifacts, next, err := b.Artifacts(t.Context(), Tenant, store.ArtifactFilter{Created: test.created}, store.Page{})
		check("artifacts", artifacts, ids(foundArtifacts, func(a *farm.Artifact) string { return a.ID }), next, err)
	}
	named, _, err := b.Sandboxes(t.Context(), Tenant, store.SandboxFilter{Name: "box1", Created: store.TimeRange{After: hour(1)}}, store.Page{})
	if got := ids(named, func(s *farm.Sandbox) string { return s.ID }); err != nil || len(got) != 1 || got[0] != boxes[3] {
		t.Errorf("sandboxes box1 after the first hour: %v, %v; want %s", got, err, boxes[3])
	}
	files, _, err := b.Artifacts(t.Context(), Tenant, store.ArtifactFilter{Name: "file0"}, store.Page{})
	if got := ids(files, func(a *farm.Artifact) string { return a.ID }); err != nil || !cmp.Equal(got, []string{artifacts[2], artifacts[0]}) {
		t.Errorf("artifacts file0: %v, %v", got, err)
	}
}

func ids[T any](items []*T, id func(*T) string) []string {
	var out []string
	for _, item := range items {
		out = append(out, id(item))
	}
	return out
}

// pagesAreBounded filters a long list down to nothing: each page looks at a bounded number of records, and a time range ends the list as
// soon as it is passed.
func pagesAreBounded(t *testing.T, factory Factory) {
	const jobs, most = 2500, 2000
	rdb := factory(t)
	b := setup(t, func(*testing.T) redis.UniversalClient { return rdb })
	tenant := b.prefix + "{" + Tenant + "}:"
	pipe := rdb.Pipeline()
	for i := range jobs { // as Accept writes them, but in one batch
		if i == jobs-100 {
			b.clock.forward(time.Hour)
		}
		id := fmt.Sprint("job_", i)
		pipe.HSet(t.Context(), tenant+"job:"+id, "doc", `{"id":"`+id+`"}`, "state", "queued", "kind", "execute", "created", b.clock.Now().UnixMicro())
		pipe.ZAdd(t.Context(), tenant+"jobs", redis.Z{Score: float64(i + 1), Member: id})
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	count := &commands{}
	rdb.AddHook(count)
	list := func(f store.JobFilter) (looked int64, next string) {
		t.Helper()
		before := count.n.Load()
		found, next, err := b.Jobs(t.Context(), Tenant, f, store.Page{Limit: 200})
		if err != nil || len(found) != 0 {
			t.Fatalf("Jobs = %d, %v; want none", len(found), err)
		}
		return count.n.Load() - before, next
	}
	none := []farm.JobState{farm.JobLost}
	n, next := list(store.JobFilter{States: none})
	if n > most+most/10 || next == "" {
		t.Errorf("a page of nothing took %d commands, next %q; want at most about %d, and a cursor", n, next, most)
	}
	if n, next = list(store.JobFilter{States: none, Created: store.TimeRange{After: b.clock.Now().Add(-time.Minute)}}); n > 250 || next != "" {
		t.Errorf("a time range of the last 100 jobs took %d commands, next %q; want one batch and no cursor", n, next)
	}
	pages, seen := 1, n
	for _, next = list(store.JobFilter{States: none}); next != ""; pages++ {
		var found []*farm.Job
		var err error
		if found, next, err = b.Jobs(t.Context(), Tenant, store.JobFilter{States: none}, store.Page{Limit: 200, Cursor: next}); err != nil || len(found) != 0 {
			t.Fatalf("page %d: %d jobs, %v", pages, len(found), err)
		}
	}
	if pages != 2 {
		t.Errorf("%d jobs took %d pages (%d commands), want 2", jobs, pages, seen)
	}
}

// labelsAreBounded filters sandboxes by a label that none has: each record is read as a whole, so a page looks at fewer.
func labelsAreBounded(t *testing.T, factory Factory) {
	const boxes, most = 900, 400
	rdb := factory(t)
	b := setup(t, func(*testing.T) redis.UniversalClient { return rdb })
	tenant := b.prefix + "{" + Tenant + "}:"
	pipe := rdb.Pipeline()
	for i := range boxes {
		id := fmt.Sprint("sbx_", i)
		pipe.HSet(t.Context(), tenant+"sbx:"+id, "doc", `{"id":"`+id+`"}`, "state", "ready")
		pipe.ZAdd(t.Context(), tenant+"boxes", redis.Z{Score: float64(i + 1), Member: id})
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	count := &commands{}
	rdb.AddHook(count)
	pages := 0
	for next := ""; pages == 0 || next != ""; pages++ {
		before := count.n.Load()
		found, after, err := b.Sandboxes(t.Context(), Tenant, store.SandboxFilter{Labels: map[string]string{"a": "b"}}, store.Page{Limit: 200, Cursor: next})
		if n := count.n.Load() - before; err != nil || len(found) != 0 || n > most+most/10 {
			t.Fatalf("page %d: %d sandboxes after %d commands, %v; want none, after at most about %d", pages, len(found), n, err, most)
		}
		next = after
	}
	if pages != 3 {
		t.Errorf("%d sandboxes took %d pages, want 3", boxes, pages)
	}
}

// commands counts the commands that are sent to Redis.
type commands struct{ n atomic.Int64 }

func (c *commands) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *commands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c *commands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

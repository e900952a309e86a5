package storetest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// parkedJobsAreCounted parks jobs of two tenants, and unparks them.
func parkedJobsAreCounted(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.QueueShare = 2 })
	ready := b.box(t, farm.SandboxReady) // in the queue of a node
	want := func(what string, want map[string]store.ParkedJobs) {
		t.Helper()
		got, err := b.Parked(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	want("nothing", map[string]store.ParkedJobs{})
	jobs := make([]*farm.Job, 0, 5)
	var since []time.Time
	for range 5 {
		since = append(since, b.clock.forward(time.Second))
		jobs = append(jobs, b.accept(t, Create()).Job)
	}
	want("three of one tenant", map[string]store.ParkedJobs{"cpu": {Jobs: 3, Since: since[2]}})
	for range 3 {
		b.clock.forward(time.Second)
		b.accept(t, of("other", Create()))
	}
	b.accept(t, Execute(ready.ID)) // alone in its queue
	want("one of another", map[string]store.ParkedJobs{"cpu": {Jobs: 4, Since: since[2]}})
	b.claim(t, jobs[0].Ref(), "w") // unparks the third one
	want("one less", map[string]store.ParkedJobs{"cpu": {Jobs: 3, Since: since[3]}})
	for _, job := range jobs[1:] {
		if _, _, err := b.Cancel(t.Context(), job.Ref(), nil); err != nil {
			t.Fatal(err)
		}
	}
	want("the other tenant's", map[string]store.ParkedJobs{"cpu": {Jobs: 1, Since: b.clock.Now()}})
	refs, _, err := b.Jobs(t.Context(), "other", store.JobFilter{}, store.Page{})
	if err != nil {
		t.Fatal(err)
	}
	for _, job := range refs {
		if _, _, err := b.Cancel(t.Context(), job.Ref(), nil); err != nil {
			t.Fatal(err)
		}
	}
	want("nothing again", map[string]store.ParkedJobs{})
}

// parkedJobsCountFromTheHead: a job that waited in its sandbox's FIFO counts as parked from when it became the head.
func parkedJobsCountFromTheHead(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.QueueShare = 1 })
	one, two := b.box(t, farm.SandboxReady), b.box(t, farm.SandboxReady)
	running := b.claim(t, b.accept(t, Execute(one.ID)).Job.Ref(), "w").Job
	b.accept(t, Execute(one.ID)) // behind it
	b.accept(t, Execute(two.ID)) // has the queue slot
	if got, err := b.Parked(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("Parked = %v, %v, while a job waits in its FIFO", got, err)
	}
	at := b.clock.forward(time.Hour)
	b.finish(t, running, farm.JobCompleted)
	got, err := b.Parked(t.Context())
	if diff := cmp.Diff(map[string]store.ParkedJobs{"node-n1": {Jobs: 1, Since: at}}, got); err != nil || diff != "" {
		t.Errorf("Parked: %v (-want +got):\n%s", err, diff)
	}
}

package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// waitingCreatesAreRead reads creates that wait, parked ones too, but those that a quota of their tenant holds back, or that are too young, or
// that a worker has begun.
func waitingCreatesAreRead(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.QueueShare = 2 })
	var ids []string
	var jobs []*farm.Job
	add := func(tenant string, count int) {
		t.Helper()
		for range count {
			b.clock.forward(time.Second)
			a := of(tenant, Create())
			a.Sandbox.Spec.Resources.MemoryMB = 100 + len(ids)
			ids, jobs = append(ids, a.Sandbox.ID), append(jobs, b.accept(t, a).Job)
		}
	}
	b.accept(t, Execute(b.box(t, farm.SandboxReady).ID)) // in another queue
	b.quota(t, farm.QuotaRunning, 4)                     // that job counts
	add(Tenant, 5)                                       // two in the queue, one that the share parks, two that the quota holds back
	add("other", 4)                                      // two in the queue, two that the share parks
	old := b.clock.forward(time.Second)
	add("other", 1)
	read := func(what string, before time.Time, most, more int, want ...string) {
		t.Helper()
		got, err := b.WaitingCreates(t.Context(), farm.QueueCPU, before, most)
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, box := range got.Sandboxes {
			found = append(found, box.ID)
			if box.Spec.Resources.MemoryMB != 100+slices.Index(ids, box.ID) {
				t.Errorf("%s: the record of %s has %d MiB", what, box.ID, box.Spec.Resources.MemoryMB)
			}
		}
		slices.Sort(found)
		slices.Sort(want)
		if diff := cmp.Diff(want, found); diff != "" || got.More != more {
			t.Errorf("%s: %d more, want %d (-want +got):\n%s", what, got.More, more, diff)
		}
	}
	waiting := slices.Concat(ids[:3], ids[5:9])
	read("all", old, 100, 0, slices.Clone(waiting)...)
	read("as many as may be read", old, 8, 0, slices.Clone(waiting)...)
	read("fewer", old, 6, 1, slices.Concat(ids[:3], ids[5:8])...)
	read("one", old, 1, 6, ids[0])
	read("none is old enough", old.Add(-time.Hour), 100, 0)
	b.claim(t, jobs[0].Ref(), "w")
	read("after a claim", old, 100, 0, slices.Concat(ids[1:3], ids[5:9])...)
	for _, job := range jobs[1:] {
		if _, _, err := b.Cancel(t.Context(), job.Ref(), nil); err != nil {
			t.Fatal(err)
		}
	}
	read("after the cancels", old, 100, 0)
}

// openSandboxesAreCounted counts what is on nodes, of all tenants.
func openSandboxesAreCounted(t *testing.T, factory Factory) {
	b := setup(t, factory)
	want := func(what string, want map[string]int) {
		t.Helper()
		got, err := b.CountOpenOn(t.Context(), "n1", "n2", "n3")
		if err != nil {
			t.Fatal(err)
		}
		for _, node := range []string{"n1", "n2", "n3"} {
			if got[node] != want[node] {
				t.Errorf("%s: %d on %s, want %d", what, got[node], node, want[node])
			}
		}
	}
	want("nothing", nil)
	var first farm.Ref
	for i, on := range []string{"n1", "n1", "n2"} {
		a := Create()
		if i == 1 {
			a = of("other", a)
		}
		a.Sandbox.Node, a.Job.Queue = on, farm.NodeQueue(on)
		if b.accept(t, a); i == 0 {
			first = a.Sandbox.Ref()
		}
	}
	want("three", map[string]int{"n1": 2, "n2": 1})
	b.end(t, first.ID)
	want("one has ended", map[string]int{"n1": 1, "n2": 1})
	if got, err := b.CountOpenOn(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("of no nodes: %v, %v", got, err)
	}
}

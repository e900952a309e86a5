package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

func fleetEventsAreToldOnce(t *testing.T, f Factory) {
	s, ctx := setup(t, f), t.Context()
	subject, seen := farm.SeenWorkerPrefix+"w1", `{"node":"n1","host":"h1"}`
	started := store.FleetNote{Subject: subject, To: seen, Event: farm.FleetEvent{At: time.Unix(1, 0).UTC(), Kind: farm.FleetWorkerStarted, Node: "n1", Host: "h1", Worker: "w1"}}
	for i, want := range []bool{true, false} {
		if noted, err := s.NoteFleet(ctx, started); err != nil || noted != want {
			t.Errorf("start %d: %v, %v", i, noted, err)
		}
	}
	for range 2 { // the second time nothing is known of the worker
		if err := s.RemoveWorker(ctx, "w1"); err != nil {
			t.Fatal(err)
		}
	}
	lost := store.FleetNote{Subject: subject, From: seen, Event: farm.FleetEvent{Kind: farm.FleetWorkerLost, Worker: "w1"}}
	if noted, err := s.NoteFleet(ctx, lost); err != nil || noted {
		t.Errorf("a worker that stopped is lost, too: %v, %v", noted, err)
	}
	if left, err := s.FleetSeen(ctx); err != nil || len(left) > 0 {
		t.Errorf("%v is remembered, %v", left, err)
	}
	got, err := s.FleetEvents(ctx, 10)
	if err != nil || len(got) != 2 || got[0].ID <= got[1].ID || got[0].At.IsZero() {
		t.Fatalf("events %+v, %v", got, err)
	}
	got[0].ID, got[1].ID, got[0].At = "", "", time.Time{}
	want := []farm.FleetEvent{{Kind: farm.FleetWorkerStopped, Node: "n1", Host: "h1", Worker: "w1"}, started.Event}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func fleetEventsAreBounded(t *testing.T, f Factory) {
	s, ctx := setup(t, f), t.Context()
	for i := range farm.MaxFleetEvents + 1 {
		if noted, err := s.NoteFleet(ctx, store.FleetNote{Event: farm.FleetEvent{Kind: farm.FleetNodeEnded, Node: fmt.Sprint(i)}}); err != nil || !noted {
			t.Fatal(noted, err)
		}
		if i+1 != farm.MaxFleetEvents-1 && i+1 < farm.MaxFleetEvents {
			continue
		}
		got, err := s.FleetEvents(ctx, 1000)
		if err != nil || len(got) != min(i+1, farm.MaxFleetEvents) || got[0].Node != fmt.Sprint(i) {
			t.Errorf("after %d events there are %d, %v", i+1, len(got), err)
		}
	}
	if got, err := s.FleetEvents(ctx, 3); err != nil || len(got) != 3 {
		t.Errorf("three events are %d, %v", len(got), err)
	}
}

func activityIsOfTheLastHour(t *testing.T, f Factory) {
	s, ctx := setup(t, f), t.Context()
	now := farm.MinuteOf(time.Now())
	for worker, minutes := range map[string][]farm.Minute{
		"wrk_1": {{At: now - 1, Ended: 2, Failed: 1, WaitMS: 10, RunMS: 20, MaxWaitMS: 9, Queues: map[string]int{"cpu": 2}}, {At: now - 10, Ended: 1}},
		"wrk_2": {{At: now - 61, Ended: 7}, {At: now - 1, Ended: 3, WaitMS: 5, RunMS: 6, MaxWaitMS: 4, Queues: map[string]int{"cpu": 1, "gpu": 2}}},
		"wrk_3": {{At: now - 100, Ended: 9}},
	} {
		for range 2 { // the second replaces the first
			if err := s.NoteActivity(ctx, worker, minutes); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := []farm.Minute{{At: now - 10, Ended: 1}, {At: now - 1, Ended: 5, Failed: 1, WaitMS: 15, RunMS: 26, MaxWaitMS: 9, Queues: map[string]int{"cpu": 3, "gpu": 2}}}
	for range 2 { // the second time without what was removed
		got, err := s.Activity(ctx)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v %s", err, diff)
		}
	}
}

// nodeDrains are returned with the lease, keep their beginning, and end on request or with the node.
func nodeDrains(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ctx := t.Context()
	drained := func(node string) bool {
		t.Helper()
		got, err := b.RenewNode(ctx, node)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if _, err := b.Drain(ctx, "n1"); farm.CodeOf(err) != farm.CodeNotFound || drained("n1") {
		t.Errorf("a node that is not drained: %v", err)
	}
	if err := b.EndDrain(ctx, "n1"); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("EndDrain of none = %v", err)
	}
	first := farm.Drain{Node: "n1", Since: time.Unix(1000, 0).UTC()}
	again := farm.Drain{Node: "n1", Since: time.Unix(2000, 0).UTC(), Idle: farm.DrainHibernate}
	other := farm.Drain{Node: "n2", Since: time.Unix(3000, 0).UTC(), Idle: farm.DrainClose}
	for _, d := range []farm.Drain{other, first, again} {
		if _, err := b.SetDrain(ctx, d); err != nil {
			t.Fatal(err)
		}
	}
	want := []farm.Drain{{Node: "n1", Since: first.Since, Idle: farm.DrainHibernate}, other}
	got, err := b.Drains(ctx)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v; drains (-want +got):\n%s", err, diff)
	}
	if one, err := b.Drain(ctx, "n1"); err != nil || one != want[0] {
		t.Errorf("Drain = %+v, %v", one, err)
	}
	if !drained("n1") || !drained("n2") || drained("n3") {
		t.Error("who renews a lease does not learn of the drain")
	}
	if err := b.EndDrain(ctx, "n1"); err != nil || drained("n1") {
		t.Errorf("the drain has not ended: %v", err)
	}
	if err := b.ReleaseNode(ctx, "n2"); err != nil || drained("n2") {
		t.Errorf("the drain outlived its node: %v", err)
	}
}

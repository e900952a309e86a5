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

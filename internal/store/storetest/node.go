package storetest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

var sizeOfNode = farm.Capacity{MemoryMB: 1000, CPUs: 4}

func (b *bundle) reserve(t *testing.T, r store.ReserveRequest) bool {
	t.Helper()
	if r.Node == "" {
		r.Node = "n1"
	}
	if r.Capacity == (farm.Capacity{}) {
		r.Capacity = sizeOfNode
	}
	ok, nodes, err := b.Reserve(t.Context(), r)
	testbed.Must(t, err)
	_, listed := nodes[r.Node]
	testbed.Check(t, listed, "node %s is not among %v", r.Node, nodes)
	return ok
}

func box(name string) farm.Ref { return farm.Ref{Tenant: Tenant, ID: "sbx_" + name} }

// capacityIsReservedOnce fills a node concurrently, to the last MiB and not beyond.
func capacityIsReservedOnce(t *testing.T, factory Factory) {
	b := setup(t, factory)
	var wg sync.WaitGroup
	got := make(chan farm.Ref, 64)
	for i := range 32 {
		wg.Go(func() {
			s := box(fmt.Sprint(i))
			for range 2 { // the second time as after a takeover
				if b.reserve(t, store.ReserveRequest{Sandbox: s, Want: farm.Capacity{MemoryMB: 100, CPUs: 0.1}}) {
					got <- s
				}
			}
		})
	}
	wg.Wait()
	close(got)
	in := map[farm.Ref]int{}
	for s := range got {
		in[s]++
	}
	testbed.Diff(t, "sandboxes of 100 MiB have a reservation on a node of 1000 MiB", 10, len(in))
	reservations, err := b.Reservations(t.Context(), "n1")
	testbed.Require(t, err == nil && len(reservations) == 10, "Reservations = %v, %v", reservations, err)
	for s, n := range in {
		if want := (store.Reservation{Size: farm.Capacity{MemoryMB: 100, CPUs: 0.1}, At: b.clock.Now(), Generation: 1}); n != 2 || !cmp.Equal(want, reservations[s]) {
			t.Errorf("sandbox %s: %d of 2 calls reserved, reservation %+v", s.ID, n, reservations[s])
		}
		nodes, err := b.Unreserve(t.Context(), "n1", sizeOfNode, s, 1)
		want := (farm.Capacity{MemoryMB: 900, CPUs: 0.9})
		testbed.Check(t, err == nil && cmp.Equal(want, nodes["n1"].Reserved), "after one is released: %+v, %v", nodes, err)
		break
	}
	if !b.reserve(t, store.ReserveRequest{Sandbox: box("late"), Want: farm.Capacity{MemoryMB: 100, CPUs: 0.1}}) {
		t.Error("the released capacity is not free")
	}
}

func reservationEdgeCases(t *testing.T, factory Factory) {
	b := setup(t, factory)
	for name, c := range map[string]struct {
		want farm.Capacity
		fits bool
	}{
		"memory to the last": {farm.Capacity{MemoryMB: 1000, CPUs: 1}, true},
		"memory over":        {farm.Capacity{MemoryMB: 1001, CPUs: 1}, false},
		"cores to the last":  {farm.Capacity{MemoryMB: 1, CPUs: 4}, true},
		"cores over":         {farm.Capacity{MemoryMB: 1, CPUs: 4.001}, false},
	} {
		testbed.Diff(t, name, c.fits, b.reserve(t, store.ReserveRequest{Node: name, Sandbox: box("1"), Want: c.want}))
	}
	r := store.ReserveRequest{Sandbox: box("big"), Want: farm.Capacity{MemoryMB: 5000, CPUs: 9}, Force: true}
	testbed.Check(t, b.reserve(t, r), "a forced reservation was refused")
	if b.reserve(t, store.ReserveRequest{Sandbox: box("small"), Want: farm.Capacity{MemoryMB: 1, CPUs: 0.1}}) {
		t.Error("a node over its capacity accepted a reservation")
	}
	r.Force, r.Want = false, farm.Capacity{MemoryMB: 400, CPUs: 1} // shrinks
	if !b.reserve(t, r) || !b.reserve(t, store.ReserveRequest{Sandbox: box("small"), Want: farm.Capacity{MemoryMB: 600, CPUs: 3}}) {
		t.Error("a reservation that shrank released nothing")
	}
	r.Want.MemoryMB++
	testbed.Check(t, !b.reserve(t, r), "a reservation grew over the capacity")
}

// largeReservationsGoFirst lets a large sandbox wait while small ones pass it, until it has waited long enough.
func largeReservationsGoFirst(t *testing.T, factory Factory) {
	b := setup(t, factory)
	small := func(name string) store.ReserveRequest {
		return store.ReserveRequest{Sandbox: box(name), Want: farm.Capacity{MemoryMB: 300, CPUs: 0.1}, Since: b.clock.Now()}
	}
	large := store.ReserveRequest{Sandbox: box("large"), Want: farm.Capacity{MemoryMB: 800, CPUs: 1}, Since: b.clock.Now()}
	if !b.reserve(t, small("1")) || b.reserve(t, large) || !b.reserve(t, small("2")) {
		t.Fatal("a large sandbox that has just come blocks small ones")
	}
	b.clock.forward(time.Minute)
	testbed.Check(t, !b.reserve(t, large) && !b.reserve(t, small("3")), "a small sandbox overtook a large one that has waited for a minute")
	other := small("3")
	other.Node = "n2"
	testbed.Check(t, b.reserve(t, other), "a sandbox was blocked on a node for which no other one waits")
	for _, name := range []string{"1", "2"} {
		_, err := b.Unreserve(t.Context(), "n1", sizeOfNode, box(name), 1)
		testbed.Must(t, err)
	}
	testbed.Check(t, !b.reserve(t, small("4")) && b.reserve(t, large), "the large sandbox did not get the capacity that it waited for")
	testbed.Check(t, !b.reserve(t, small("4")), "a full node accepted a reservation")
	_, err := b.Unreserve(t.Context(), "n1", sizeOfNode, large.Sandbox, 1)
	testbed.Must(t, err)
	testbed.Check(t, b.reserve(t, small("4")), "the small sandbox still waits after the large one has ended")
}

// unseen makes the row of a node older: the clock of Redis cannot be set.
func (b *bundle) unseen(t *testing.T, node string, by time.Duration) {
	t.Helper()
	key := b.prefix + "{room}:nodes"
	fields := strings.Fields(b.rdb.HGet(t.Context(), key, node).Val())
	testbed.Require(t, len(fields) == 5, "row of node %s: %q", node, fields)
	seen, err := strconv.ParseInt(fields[4], 10, 64)
	testbed.Must(t, err)
	fields[4] = strconv.FormatInt(seen-by.Microseconds(), 10)
	testbed.Must(t, b.rdb.HSet(t.Context(), key, node, strings.Join(fields, " ")).Err())
}

// nodesWithoutWorkersAreRemoved by the clock of Redis: a worker whose own clock is wrong removes no worker and is not removed.
func nodesWithoutWorkersAreRemoved(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.reserve(t, store.ReserveRequest{Node: "n1", Sandbox: box("1"), Want: farm.Capacity{MemoryMB: 1, CPUs: 1}})
	want := map[string]store.NodeCapacity{
		"n1": {Capacity: sizeOfNode, Reserved: farm.Capacity{MemoryMB: 1, CPUs: 1}}, "n2": {Capacity: farm.Capacity{MemoryMB: 7, CPUs: 0.5}},
	}
	for _, skew := range []time.Duration{0, 40 * time.Second, -40 * time.Second, 24 * time.Hour} {
		skewed := store.New(b.rdb, Tasks, store.Options{Prefix: b.prefix, Now: func() time.Time { return time.Now().Add(skew) }})
		t.Cleanup(func() { _ = skewed.Close() })
		nodes, err := skewed.ReportCapacity(t.Context(), "n2", farm.Capacity{MemoryMB: 7, CPUs: 0.5})
		diff := cmp.Diff(want, nodes)
		testbed.Check(t, err == nil && diff == "", "clock off by %s: %v; nodes (-want +got):\n%s", skew, err, diff)
		nodes, err = b.ReportCapacity(t.Context(), "n2", farm.Capacity{MemoryMB: 7, CPUs: 0.5})
		diff = cmp.Diff(want, nodes)
		testbed.Check(t, err == nil && diff == "", "another clock is off by %s: %v; nodes (-want +got):\n%s", skew, err, diff)
	}
	b.unseen(t, "n1", 31*time.Second)
	testbed.Must(t, b.rdb.HSet(t.Context(), b.prefix+"{room}:nodes", "n3", "no row").Err()) // that cannot be decoded
	delete(want, "n1")
	nodes, err := b.ReportCapacity(t.Context(), "n2", farm.Capacity{MemoryMB: 7, CPUs: 0.5})
	diff := cmp.Diff(want, nodes)
	testbed.Check(t, err == nil && diff == "", "%v; nodes after n1 stopped reporting (-want +got):\n%s", err, diff)
}

// A reservation of a later generation of a sandbox is not replaced, and not released, by a worker that has an earlier one.
func reservationsAreFenced(t *testing.T, factory Factory) {
	for name, sandbox := range map[string]farm.Ref{"sandbox": box("1"), "pool member": {ID: "sbx_member"}} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, factory)
			r := store.ReserveRequest{Node: "n1", Capacity: sizeOfNode, Sandbox: sandbox, Want: farm.Capacity{MemoryMB: 100, CPUs: 1}}
			for generation := range 4 { // each one may follow any earlier one, and itself; 0 is not checked
				r.Generation = generation
				for range 2 {
					testbed.Check(t, b.reserve(t, r), "generation %d got no reservation", generation)
				}
			}
			for _, force := range []bool{false, true} {
				r.Generation, r.Force = 2, force
				ok, _, err := b.Reserve(t.Context(), r)
				testbed.Check(t, !ok && errors.Is(err, store.ErrFenced), "an earlier generation reserves: %v, %v", ok, err)
			}
			left := func(generation, want int) {
				t.Helper()
				if _, err := b.Unreserve(t.Context(), "n1", sizeOfNode, sandbox, generation); err != nil {
					t.Error(err)
				}
				got, err := b.Reservations(t.Context(), "n1")
				if err != nil || len(got) != want || want > 0 && got[sandbox].Generation != 3 {
					t.Errorf("after a release by generation %d: %+v, %v", generation, got, err)
				}
			}
			left(1, 1)
			left(2, 1)
			left(3, 0)
		})
	}
}

// workersWithABrokenRow lists the workers whose rows can be decoded: one that cannot must not make all look dead.
func workersWithABrokenRow(t *testing.T, factory Factory) {
	b := setup(t, factory)
	testbed.Must(t, b.Heartbeat(t.Context(), farm.Worker{ID: "w1", Node: "n1"}))
	b.rdb.SAdd(t.Context(), b.prefix+"workers", "w2")
	b.rdb.Set(t.Context(), b.prefix+"worker:w2", "{", time.Minute)
	workers, err := b.Workers(t.Context())
	testbed.Check(t, err == nil && len(workers) == 1 && workers[0].ID == "w1", "Workers = %+v, %v", workers, err)
}

func fleetEventsAreToldOnce(t *testing.T, f Factory) {
	s, ctx := setup(t, f), t.Context()
	subject, seen := farm.SeenWorkerPrefix+"w1", `{"node":"n1","host":"h1"}`
	started := store.FleetNote{Subject: subject, To: seen, Event: farm.FleetEvent{At: time.Unix(1, 0).UTC(), Kind: farm.FleetWorkerStarted, Node: "n1", Host: "h1", Worker: "w1"}}
	for i, want := range []bool{true, false} {
		noted, err := s.NoteFleet(ctx, started)
		testbed.Check(t, err == nil && noted == want, "start %d: %v, %v", i, noted, err)
	}
	for range 2 { // the second time nothing is known of the worker
		testbed.Must(t, s.RemoveWorker(ctx, "w1"))
	}
	lost := store.FleetNote{Subject: subject, From: seen, Event: farm.FleetEvent{Kind: farm.FleetWorkerLost, Worker: "w1"}}
	noted, err := s.NoteFleet(ctx, lost)
	testbed.Check(t, err == nil && !noted, "a worker that stopped is lost, too: %v, %v", noted, err)
	left, err := s.FleetSeen(ctx)
	testbed.Check(t, err == nil && len(left) == 0, "%v is remembered, %v", left, err)
	got, err := s.FleetEvents(ctx, 10)
	testbed.Require(t, err == nil && len(got) == 2 && got[0].ID > got[1].ID && !got[0].At.IsZero(), "events %+v, %v", got, err)
	got[0].ID, got[1].ID, got[0].At = "", "", time.Time{}
	want := []farm.FleetEvent{{Kind: farm.FleetWorkerStopped, Node: "n1", Host: "h1", Worker: "w1"}, started.Event}
	testbed.Diff(t, "events", want, got)
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
	got, err := s.FleetEvents(ctx, 3)
	testbed.Check(t, err == nil && len(got) == 3, "three events are %d, %v", len(got), err)
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
			testbed.Must(t, s.NoteActivity(ctx, worker, minutes))
		}
	}
	want := []farm.Minute{{At: now - 10, Ended: 1}, {At: now - 1, Ended: 5, Failed: 1, WaitMS: 15, RunMS: 26, MaxWaitMS: 9, Queues: map[string]int{"cpu": 3, "gpu": 2}}}
	for range 2 { // the second time without what was removed
		got, err := s.Activity(ctx)
		diff := cmp.Diff(want, got)
		testbed.Check(t, err == nil && diff == "", "%v %s", err, diff)
	}
}

// nodeDrains are returned with the lease, keep their beginning, and end on request or with the node.
func nodeDrains(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ctx := t.Context()
	drained := func(node string) bool {
		t.Helper()
		got, err := b.RenewNode(ctx, node)
		testbed.Must(t, err)
		return got
	}
	_, err := b.Drain(ctx, "n1")
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound && !drained("n1"), "a node that is not drained: %v", err)
	err = b.EndDrain(ctx, "n1")
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "EndDrain of none = %v", err)
	first := farm.Drain{Node: "n1", Since: time.Unix(1000, 0).UTC()}
	again := farm.Drain{Node: "n1", Since: time.Unix(2000, 0).UTC(), Idle: farm.DrainHibernate}
	other := farm.Drain{Node: "n2", Since: time.Unix(3000, 0).UTC(), Idle: farm.DrainClose}
	for _, d := range []farm.Drain{other, first, again} {
		_, err := b.SetDrain(ctx, d)
		testbed.Must(t, err)
	}
	want := []farm.Drain{{Node: "n1", Since: first.Since, Idle: farm.DrainHibernate}, other}
	got, err := b.Drains(ctx)
	diff := cmp.Diff(want, got)
	testbed.Check(t, err == nil && diff == "", "%v; drains (-want +got):\n%s", err, diff)
	one, err := b.Drain(ctx, "n1")
	testbed.Check(t, err == nil && one == want[0], "Drain = %+v, %v", one, err)
	testbed.Check(t, drained("n1") && drained("n2") && !drained("n3"), "who renews a lease does not learn of the drain")
	err = b.EndDrain(ctx, "n1")
	testbed.Check(t, err == nil && !drained("n1"), "the drain has not ended: %v", err)
	err = b.ReleaseNode(ctx, "n2")
	testbed.Check(t, err == nil && !drained("n2"), "the drain outlived its node: %v", err)
}

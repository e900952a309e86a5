package storetest

import (
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/store"
)

const nodePatience = 5 * time.Minute

// age makes a lease older: the clock of Redis cannot be set.
func (b *bundle) age(t *testing.T, by time.Duration, nodes ...string) {
	t.Helper()
	for _, node := range nodes {
		if err := b.rdb.ZIncrBy(t.Context(), b.prefix+"{nodes}:leases", -float64(by.Microseconds()), node).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// stopFor makes the last check of the leases older, as if the farm had been stopped.
func (b *bundle) stopFor(t *testing.T, d time.Duration, nodes ...string) {
	t.Helper()
	b.age(t, d, nodes...)
	if err := b.rdb.DecrBy(t.Context(), b.prefix+"{nodes}:checked", d.Microseconds()).Err(); err != nil {
		t.Fatal(err)
	}
}

// check checks the leases and returns those that have lapsed.
func (b *bundle) check(t *testing.T, live, used []string) map[string]bool {
	t.Helper()
	leases, err := b.CheckNodes(t.Context(), nodePatience, live, used)
	if err != nil {
		t.Fatalf("CheckNodes = %v", err)
	}
	out := map[string]bool{}
	for _, l := range leases {
		out[l.Node] = l.Age >= nodePatience
	}
	return out
}

func wantLapsed(t *testing.T, what string, got, want map[string]bool) {
	t.Helper()
	for node, lapsed := range want {
		if g, known := got[node]; !known || g != lapsed {
			t.Errorf("%s: node %s has lapsed: %v (known: %v), want %v", what, node, g, known, lapsed)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s: leases %v, want those of %v", what, got, want)
	}
}

// nodeLeasesLapse renews leases by the clock of Redis, whatever those of workers say, and removes only those that have lapsed.
func nodeLeasesLapse(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ctx := t.Context()
	skewed := store.New(b.rdb, Tasks, store.Options{Prefix: b.prefix, Now: func() time.Time { return time.Now().Add(-24 * time.Hour) }})
	t.Cleanup(func() { _ = skewed.Close() })
	for node, s := range map[string]*store.Store{"n1": b.Store, "n2": skewed} {
		if _, err := s.RenewNode(ctx, node); err != nil {
			t.Fatal(err)
		}
	}
	wantLapsed(t, "renewed", b.check(t, nil, []string{"n1", "n3"}), map[string]bool{"n1": false, "n2": false, "n3": false})
	b.age(t, nodePatience-30*time.Second, "n1")
	b.age(t, nodePatience, "n2", "n3")
	if lapsed, err := b.NodeLapsed(ctx, "n1", nodePatience); lapsed || err != nil {
		t.Errorf("before the patience: NodeLapsed = %v, %v", lapsed, err)
	}
	if dropped, err := b.DropNodeLease(ctx, "n1", nodePatience); dropped || err != nil {
		t.Errorf("before the patience: DropNodeLease = %v, %v", dropped, err)
	}
	wantLapsed(t, "n3 has a live worker", b.check(t, []string{"n3"}, []string{"n2"}), map[string]bool{"n1": false, "n2": true, "n3": false})
	if lapsed, err := b.NodeLapsed(ctx, "n2", nodePatience); !lapsed || err != nil {
		t.Errorf("after the patience: NodeLapsed = %v, %v", lapsed, err)
	}
	if dropped, err := b.DropNodeLease(ctx, "n2", nodePatience); !dropped || err != nil {
		t.Errorf("after the patience: DropNodeLease = %v, %v", dropped, err)
	}
	if lapsed, err := b.NodeLapsed(ctx, "n2", nodePatience); lapsed || err != nil {
		t.Errorf("without a lease: NodeLapsed = %v, %v", lapsed, err)
	}
	wantLapsed(t, "dropped", b.check(t, nil, nil), map[string]bool{"n1": false, "n3": false})
}

// stoppedFarmEndsNoNode stops the whole farm for a day: the leases count on from there, except those that had lapsed before.
func stoppedFarmEndsNoNode(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.check(t, []string{"n1", "n2", "n3"}, nil)
	b.age(t, nodePatience-time.Minute, "n2")
	b.age(t, nodePatience, "n3")
	b.stopFor(t, 24*time.Hour, "n1", "n2", "n3")
	wantLapsed(t, "after a day", b.check(t, nil, nil), map[string]bool{"n1": false, "n2": false, "n3": true})
	b.age(t, time.Minute, "n1", "n2")
	wantLapsed(t, "a minute later", b.check(t, nil, nil), map[string]bool{"n1": false, "n2": true, "n3": true})

	b.stopFor(t, -time.Hour, "n1", "n2", "n3") // the clock of Redis was set back
	wantLapsed(t, "after the clock was set back", b.check(t, nil, nil), map[string]bool{"n1": false, "n2": true, "n3": true})
	if err := b.rdb.Del(t.Context(), b.prefix+"{nodes}:checked").Err(); err != nil {
		t.Fatal(err)
	}
	b.age(t, 24*time.Hour, "n1")
	if got := b.check(t, nil, nil); got["n1"] {
		t.Errorf("when it is not known when they were checked: %v", got)
	}
}

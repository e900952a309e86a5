package storetest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
)

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

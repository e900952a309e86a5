package dispatch_test

import (
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
)

// A create that claimed a member of a node's pool waits for that node, and goes to any when the node has no worker left.
func TestStrandedCreateGoesElsewhere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := storetest.Create()
	a.Job.Queue, a.Sandbox.Node = farm.NodeQueue("n1"), "n1"
	job := b.submit(t, a)
	b.SetNow(func() time.Time { return time.Now().Add(time.Minute) })
	if err := b.store.Heartbeat(t.Context(), farm.Worker{ID: "w1", Node: "n1"}); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Sweep(t.Context(), storetest.Tenant); n != 0 || err != nil {
		t.Errorf("while its node has a worker: Sweep = %d, %v", n, err)
	}
	if err := b.store.Goodbye(t.Context(), "w1"); err != nil {
		t.Fatal(err)
	}
	if err := b.store.Heartbeat(t.Context(), farm.Worker{ID: "w2", Node: "n2"}); err != nil {
		t.Fatal(err)
	}
	for want := range 2 { // once, and then it is where it belongs
		if n, err := b.Sweep(t.Context(), storetest.Tenant); n != 1-want || err != nil {
			t.Errorf("round %d: Sweep = %d, %v", want, n, err)
		}
	}
	if state, err := b.queue.State(t.Context(), farm.QueueCPU, job.ID); err != nil || state != "pending" {
		t.Errorf("its task on the queue of all nodes is %q, %v", state, err)
	}
	c, err := b.store.Claim(t.Context(), job.Ref(), "w2")
	if err != nil || c.Sandbox.Node != "" {
		t.Errorf("claim = %+v, %v", c, err)
	}
}

package storetest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// waitOfAJob asks what a job waits for behind the jobs of its sandbox, without a slot of its queue share, and beyond max_running.
func waitOfAJob(t *testing.T, factory Factory) {
	b := setup(t, factory, func(l *farm.Limits) { l.QueueShare = 2 })
	check := func(what string, job *farm.Job, want store.Wait) {
		t.Helper()
		got, err := b.Wait(t.Context(), job)
		want.Share = 2
		if want == (store.Wait{Share: 2}) {
			want = store.Wait{}
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: error %v (-want +got):\n%s", what, err, diff)
		}
	}
	var creates []*farm.Job
	for range 3 {
		b.clock.forward(time.Millisecond)
		creates = append(creates, b.accept(t, Create()).Job)
	}
	create := store.Wait{Position: 1, Slots: 2, Running: 2, MaxRunning: -1, Queue: farm.QueueCPU, SandboxState: farm.SandboxQueued}
	check("a create with a slot", creates[0], create)
	parked := create
	parked.Parked = true
	check("a create without a slot", creates[2], parked)
	second, third := b.accept(t, Execute(creates[0].SandboxID)).Job, b.accept(t, Execute(creates[0].SandboxID)).Job
	behind := create
	behind.Position, behind.Before, behind.Slots, behind.Head, behind.HeadKind, behind.HeadState = 2, 1, 0, creates[0].ID, farm.KindCreate, farm.JobQueued
	check("behind a create", second, behind)
	running := b.claim(t, creates[0].Ref(), "w").Job
	check("a running job", running, store.Wait{})
	behind.HeadState, behind.Running = farm.JobRunning, 3
	behind.Position, behind.Before = 2, 2
	check("behind a create that runs", third, behind)

	box := b.box(t, farm.SandboxReady)
	b.quota(t, farm.QuotaRunning, 3)
	last := b.accept(t, Execute(box.ID)).Job
	check("beyond max_running", last, store.Wait{
		Position: 1, Parked: true, Running: 3, MaxRunning: 3, Queue: farm.NodeQueue("n1"), Node: "n1", SandboxState: farm.SandboxReady,
	})
	check("a read, which does not wait in the FIFO", b.accept(t, Read(box.ID)).Job, store.Wait{
		Position: 1, Slots: 1, Running: 3, MaxRunning: 3, Queue: farm.NodeQueue("n1"), Node: "n1", SandboxState: farm.SandboxReady,
	})
}

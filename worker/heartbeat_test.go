package worker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/execution"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// A row that cannot be decoded must not make the worker look dead.
func TestHeartbeatDoesNotNeedTheStatusOfTheNode(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.pooling(64<<10, "python=2")
	broken := b.member(w)
	key := ""
	for _, k := range b.Redis.Keys() {
		if strings.HasSuffix(k, "m:"+broken.ID) {
			key = k
		}
	}
	b.Redis.HSet(key, "doc", "{")
	workertest.Must(t, b.Store.RemoveWorker(t.Context(), w.id))
	err := w.refreshStatus(t.Context())
	testbed.Check(t, err != nil && strings.Contains(err.Error(), broken.ID), "refreshStatus = %v, want the error of the member", err)
	w.registered.Store(true)
	workertest.Must(t, w.beat(t.Context()))
	workers, err := b.Store.Workers(t.Context())
	workertest.Must(t, err)
	if !slices.ContainsFunc(workers, func(found farm.Worker) bool { return found.ID == w.id }) {
		t.Error("the worker is not registered")
	}
}

// While the worker prepares, and the engine hangs, the lease of the node is renewed all the same.
func TestLeaseIsRenewedWhileTheWorkerPrepares(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	b.Fake.CloseClientConnections()
	b.Fake.Close()
	workertest.Must(t, b.Store.RemoveWorker(t.Context(), w.id))
	workertest.Must(t, w.beat(t.Context()))
	leases, err := b.Store.CheckNodes(t.Context(), time.Minute, nil, nil)
	testbed.Check(t, err == nil && len(leases) == 1 && leases[0].Node == w.node.ID(), "leases = %+v, %v", leases, err)
	workers, err := b.Store.Workers(t.Context())
	testbed.Check(t, err == nil && len(workers) == 0, "a worker that still prepares is registered: %+v, %v", workers, err)
}

// A worker whose registration is gone, or older than its last heartbeat, compares containers and records at once: Redis has lost data.
func TestHeartbeatNoticesLostRecords(t *testing.T) {
	t.Parallel()
	for what, lose := range map[string]func(b *bundle, w *Worker, old farm.Worker){
		"wiped": func(b *bundle, _ *Worker, _ farm.Worker) { b.Redis.FlushAll() },
		"restored from an older snapshot": func(b *bundle, _ *Worker, old farm.Worker) {
			b.Redis.FlushAll()
			workertest.Must(b.T, b.Store.Heartbeat(b.T.Context(), old))
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			w := b.worker()
			w.registered.Store(true)
			workertest.Must(t, w.beat(t.Context()))
			workers, err := b.Store.Workers(t.Context())
			workertest.Must(t, err)
			workertest.Must(t, w.beat(t.Context()))

			box := b.contained(w)
			lose(b, w, workers[0])
			workertest.Must(t, w.beat(t.Context()))
			w.background.Wait()
			b.SandboxIs(box, farm.SandboxReady)
		})
	}
}

// A worker learns by its heartbeat that its node is drained, and says so in the same one.
func TestHeartbeatTellsOfADrain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	w.registered.Store(true)
	reported := func() bool {
		t.Helper()
		workertest.Must(t, w.beat(t.Context()))
		workers, err := b.Store.Workers(t.Context())
		workertest.Must(t, err)
		return slices.ContainsFunc(workers, func(found farm.Worker) bool { return found.ID == w.id && found.Draining })
	}
	testbed.Require(t, !reported() && w.placement.Accepts(farm.QueueCPU), "it drains from the start")
	_, err := b.Store.SetDrain(t.Context(), farm.Drain{Node: w.node.ID(), Since: time.Now()})
	workertest.Must(t, err)
	testbed.Check(t, reported() && !w.placement.Accepts(farm.QueueCPU), "it takes creates in spite of the drain")
	workertest.Must(t, b.Store.EndDrain(t.Context(), w.node.ID()))
	testbed.Check(t, !reported() && w.placement.Accepts(farm.QueueCPU), "it takes no creates after the drain")
}

func TestActivityIsBoundedAndStoredWhenItChanges(t *testing.T) {
	t.Parallel()
	var a activity
	var stored []farm.Minute
	writes := 0
	write := func(_ context.Context, m []farm.Minute) error {
		stored = m
		writes++
		return nil
	}
	start := time.Unix(60_000_000, 0)
	job := &farm.Job{CreatedAt: start, StartedAt: start.Add(30 * time.Millisecond)}
	for i := range 200 { // more than an hour of minutes with a job
		a.add(start.Add(time.Duration(i)*time.Minute), "cpu", job, execution.Outcome{State: farm.JobCompleted, Run: 5 * time.Millisecond})
	}
	end := start.Add(199 * time.Minute)
	a.add(end, "cpu", &farm.Job{CreatedAt: start, StartedAt: start.Add(50 * time.Millisecond)}, execution.Outcome{State: farm.JobTimedOut})
	a.add(end.Add(-5*time.Minute), "cpu", job, execution.Outcome{State: farm.JobCanceled}) // the clock was set back
	err := a.store(t.Context(), func(context.Context, []farm.Minute) error { return errors.New("no Redis") })
	testbed.Check(t, err != nil, "the error is lost")
	for range 2 {
		testbed.Must(t, a.store(t.Context(), write))
	}
	testbed.Check(t, writes == 1 && len(stored) == 60, "%d writes, %d minutes", writes, len(stored))
	want := farm.Minute{At: farm.MinuteOf(end), Ended: 3, Failed: 1, WaitMS: 110, MaxWaitMS: 50, RunMS: 5, Queues: map[string]int{"cpu": 3}}
	testbed.Diff(t, "", want, stored[len(stored)-1])
}

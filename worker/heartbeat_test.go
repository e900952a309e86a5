package worker

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
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
	if err := w.refreshStatus(t.Context()); err == nil || !strings.Contains(err.Error(), broken.ID) {
		t.Errorf("refreshStatus = %v, want the error of the member", err)
	}
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
	if err != nil || len(leases) != 1 || leases[0].Node != w.node.ID() {
		t.Errorf("leases = %+v, %v", leases, err)
	}
	workers, err := b.Store.Workers(t.Context())
	if err != nil || len(workers) != 0 {
		t.Errorf("a worker that still prepares is registered: %+v, %v", workers, err)
	}
}

package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// cpuDepth says that something waits for a node.
type cpuDepth struct{}

func (cpuDepth) Depths(context.Context) ([]farm.QueueDepth, error) {
	return []farm.QueueDepth{{Name: farm.QueueCPU, Depth: 1}, {Name: "node-n1", Depth: 3}}, nil
}

// scaleFarm is a farm with an empty node of 4 GiB and a full one. The clock of its API stands so much later than now.
func scaleFarm(t *testing.T, later time.Duration) *bundle {
	t.Helper()
	now := time.Now().Add(later)
	b := setup(t, withAdmin, func(_ *api.Config, d *api.Deps) { d.Queues, d.Now = cpuDepth{}, func() time.Time { return now } })
	size := farm.Capacity{MemoryMB: 4096, CPUs: 4}
	b.rebeat(func(w *farm.Worker) {
		w.Node, w.Queues, w.Slots, w.Capacity = "empty", []string{farm.QueueCPU}, 4, size
		if w.Images = []farm.Image{{Name: "python", Languages: []string{"python"}}}; w.ID == "" {
			t.Error("a worker without an id")
		}
	})
	workers, err := b.store.Workers(t.Context())
	if err != nil || len(workers) != 1 {
		t.Fatalf("workers %v, %v", workers, err)
	}
	full := workers[0]
	full.ID, full.Node, full.Reserved = "wrk_full", "full", size
	if err := b.store.Heartbeat(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bundle) scale() wire.NodeNeed {
	b.t.Helper()
	list := get[wire.Items[wire.NodeNeed]](b, http.StatusOK, "GET", "/v1/scale", nil, asOps()...)
	if len(list.Items) != 1 {
		b.t.Fatalf("%d kinds: %+v", len(list.Items), list.Items)
	}
	return list.Items[0]
}

// waits submits a create that no worker runs.
func (b *bundle) waits(size farm.Resources) {
	b.t.Helper()
	box := &farm.Sandbox{
		ID: farm.NewID(farm.SandboxPrefix), Tenant: "acme", CreatedAt: time.Now(), Spec: farm.SandboxSpec{Image: "python", TTLSeconds: 3600, Resources: size},
	}
	_, err := b.store.Accept(b.t.Context(), store.Accept{
		Job:     &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: "acme", Kind: farm.KindCreate, SandboxID: box.ID, Queue: farm.QueueCPU},
		Request: &farm.Request{Sandbox: &box.Spec}, Sandbox: box,
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// What waits raises the number of nodes that are wanted, in the answer and in the metrics.
func TestScaleSaysHowManyNodesAreWanted(t *testing.T) {
	t.Parallel()
	b := scaleFarm(t, service.ScaleAfter+10*time.Minute)
	for range 6 { // two fit into a node
		b.waits(farm.Resources{MemoryMB: 2048, CPUs: 2})
	}
	want := wire.NodeNeed{
		Kind: "cpu", Nodes: 2, Wanted: 4, Idle: []string{}, Waiting: 6, Placeable: 2, Asked: wire.Room{MemoryMB: 12288, CPUs: 12},
		Capacity: wire.Room{MemoryMB: 8192, CPUs: 8}, Promised: wire.Room{MemoryMB: 4096, CPUs: 4},
	}
	got := b.scale()
	if got.OldestSeconds < 60 || got.OldestSeconds > 605 {
		t.Errorf("the oldest has waited for %v s", got.OldestSeconds)
	}
	got.OldestSeconds = 0
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	_, text := b.do("GET", "/metrics", nil, asOps()...)
	for _, line := range []string{`sandfarm_scale_nodes{kind="cpu",model=""} 2`, `sandfarm_scale_nodes_wanted{kind="cpu",model=""} 4`, `sandfarm_scale_creates_waiting{kind="cpu",model=""} 6`} {
		if !strings.Contains(string(text), "\n"+line+"\n") {
			t.Errorf("the metrics lack %s", line)
		}
	}
	b.problem(farm.CodeUnauthorized, http.StatusForbidden, "GET", "/v1/scale", nil, asAcme()...)
}

// Creates that have just come do not count yet; the empty node could be removed.
func TestScaleLeavesBurstsTheirTime(t *testing.T) {
	t.Parallel()
	b := scaleFarm(t, 0)
	b.waits(farm.Resources{MemoryMB: 2048, CPUs: 2})
	if got := b.scale(); got.Waiting != 0 || got.Wanted != 1 || got.IdleNodes != 1 || !cmp.Equal(got.Idle, []string{"empty"}) {
		t.Errorf("need %+v", got)
	}
}

// A node with a hibernated sandbox has no reservation, and is not idle.
func TestScaleKeepsNodesWithOpenSandboxes(t *testing.T) {
	t.Parallel()
	b := scaleFarm(t, 0)
	node := b.node(b.sandbox(asAcme()...))
	b.rebeat(func(w *farm.Worker) {
		if w.Node == "empty" {
			w.Node = node
		}
	})
	if got := b.scale(); got.Nodes != 2 || got.Wanted != 2 || got.IdleNodes != 0 {
		t.Errorf("need %+v", got)
	}
}

// The answer is remembered for 2 seconds, and the clock stands.
func TestScaleIsRemembered(t *testing.T) {
	t.Parallel()
	b := scaleFarm(t, 0)
	first := b.scale()
	b.rebeat(func(w *farm.Worker) { w.Draining = true })
	if second := b.scale(); !cmp.Equal(first, second) {
		t.Errorf("first %+v, then %+v", first, second)
	}
}

package api_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A node is drained, says what is left until nothing is, and takes sandboxes again after the end of the drain.
func TestDrainOfANode(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin, func(c *api.Config, _ *api.Deps) {
		c.Keys[0].Scopes = []string{string(farm.ScopeRun)} // it sees what is its tenant's
	})
	box := b.sandbox(asAcme()...)
	node := b.node(box)
	b.rebeat(func(w *farm.Worker) { w.Node = node })
	target := "/v1/nodes/" + node + "/drain"
	b.problem(farm.CodeNotFound, http.StatusNotFound, "GET", target, nil, asOps()...)
	b.problem(farm.CodeNotFound, http.StatusNotFound, "DELETE", target, nil, asOps()...)
	if p := b.problem(farm.CodeNotFound, http.StatusNotFound, "POST", "/v1/nodes/none/drain", nil, asOps()...); !strings.Contains(p.Detail, "/v1/workers") {
		t.Errorf("the problem does not say where the nodes are named: %s", p.Detail)
	}
	if p := b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", target, `{"idle":"sleep"}`, asOps()...); !strings.Contains(p.Detail, "keep, hibernate and close") {
		t.Errorf("the problem does not say what is allowed: %s", p.Detail)
	}

	first := get[wire.Drain](b, http.StatusOK, "POST", target, nil, asOps()...)
	if first.Node != node || first.Idle != "keep" || first.State != "draining" || first.Sandboxes != 1 || first.EndsBy == nil {
		t.Errorf("the drain is %+v", first)
	}
	second := get[wire.Drain](b, http.StatusOK, "POST", target, `{"idle":"hibernate"}`, asOps()...)
	if second.Idle != "hibernate" || !second.Since.Equal(first.Since) {
		t.Errorf("a second drain is %+v, after %+v", second, first)
	}
	if got := get[wire.Drain](b, http.StatusOK, "GET", target, nil, asOps()...); got.Idle != "hibernate" {
		t.Errorf("the drain reads %+v", got)
	}

	workers := get[wire.Items[wire.Worker]](b, http.StatusOK, "GET", "/v1/workers", nil, asOps()...).Items
	if len(workers) != 1 || workers[0].Drain == nil || workers[0].Drain.Sandboxes != 1 {
		t.Errorf("the operator sees workers %+v", workers)
	}
	own := get[wire.Items[wire.Worker]](b, http.StatusOK, "GET", "/v1/workers", nil, asAcme()...).Items
	if len(own) != 1 || own[0].Drain != nil {
		t.Errorf("the tenant sees workers %+v", own)
	}

	_, err := b.store.MoveSandbox(t.Context(), store.Move{Ref: farm.Ref{Tenant: "acme", ID: box}, To: farm.SandboxLost})
	testbed.Must(t, err)
	if got := get[wire.Drain](b, http.StatusOK, "GET", target, nil, asOps()...); got.State != "draining" || got.Sandboxes != 0 {
		t.Errorf("while the worker does not know of the drain: %+v", got)
	}
	b.rebeat(func(w *farm.Worker) { w.Draining = true })
	if got := get[wire.Drain](b, http.StatusOK, "GET", target, nil, asOps()...); got.State != "drained" || got.EndsBy != nil {
		t.Errorf("when nothing is left: %+v", got)
	}
	_, metrics := b.do("GET", "/metrics", nil, asOps()...)
	if !strings.Contains(string(metrics), "\nsandfarm_workers_draining 1\n") {
		t.Error("the metrics do not count the draining worker")
	}
	if answer, body := b.do("DELETE", target, nil, asOps()...); answer.StatusCode != http.StatusNoContent {
		t.Errorf("end of the drain: %d %s", answer.StatusCode, body)
	}
	b.problem(farm.CodeNotFound, http.StatusNotFound, "GET", target, nil, asOps()...)
	b.server.Stop() // writes the audit
	entries, _, err := b.store.Audit(t.Context(), "", store.TimeRange{}, store.Page{Limit: 100})
	testbed.Must(t, err)
	routes := map[string]bool{}
	for _, e := range entries {
		routes[e.Route+" "+e.Subject] = true
	}
	for _, route := range []string{"POST /v1/nodes/:id/drain", "DELETE /v1/nodes/:id/drain"} {
		if !routes[route+" "+node] {
			t.Errorf("the audit has no %s of node %s: %v", route, node, routes)
		}
	}
}

// No create claims a member of the pool of a drained node.
func TestPoolOfADrainedNodeIsLeft(t *testing.T) {
	t.Parallel()
	b := setup(t)
	m := b.member("n1", "")
	b.rebeat(func(w *farm.Worker) { w.Draining = true })
	if got := b.made(); got == m {
		t.Error("a create got a sandbox of the drained node")
	}
}

// rebeat changes the registrations of all workers.
func (b *bundle) rebeat(change func(*farm.Worker)) {
	b.t.Helper()
	workers, err := b.store.Workers(b.t.Context())
	testbed.Must(b.t, err)
	for _, w := range workers {
		change(&w)
		testbed.Must(b.t, b.store.Heartbeat(b.t.Context(), w))
	}
}

// node is the node of a sandbox.
func (b *bundle) node(box string) string {
	b.t.Helper()
	found, err := b.store.Sandbox(b.t.Context(), farm.Ref{Tenant: "acme", ID: box})
	testbed.Must(b.t, err)
	return found.Node
}

// member adds a member to a node's warm pool. A problem marks the node's engine as unavailable; empty: none.
func (b *bundle) member(node, problem string) string {
	b.t.Helper()
	l := farm.DefaultLimits()
	m := store.Member{ID: farm.NewID(farm.SandboxPrefix), Node: node, Image: "python", Network: farm.NetworkNone}
	m.Resources = farm.Resources{MemoryMB: l.Memory.Default, CPUs: l.CPUs.Default, PIDs: l.PIDs.Default, DiskMB: l.Disk.Default}
	err := b.store.BeginMember(b.t.Context(), m)
	if err == nil {
		err = b.store.MemberReady(b.t.Context(), m)
	}
	if err == nil {
		err = b.store.Heartbeat(b.t.Context(), farm.Worker{
			ID: "wrk_of_" + node, Node: node, Problem: problem, Images: []farm.Image{{Name: "python", Languages: []string{"python"}}},
			Capacity: farm.Capacity{MemoryMB: 8192, CPUs: 8}, Pool: []farm.PoolStock{{Image: "python", Target: 1, Ready: 1}},
		})
	}
	testbed.Must(b.t, err)
	return m.ID
}

// noWatch is a store whose subscriptions fail.
type noWatch struct{ *store.Store }

func (noWatch) Watch(context.Context, string) (*store.Watch, error) {
	return nil, farm.Errorf(farm.CodeUnavailable, "Redis takes no subscriptions")
}

// A create whose wait cannot be set up is refused before it claims a sandbox of the pool.
func TestRefusedWaitClaimsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.member("n1", "")
	server, err := api.New(api.Config{}, api.Deps{Store: noWatch{b.store}, Submitter: b.worker, Blobs: b.blobs, Queues: depths{}})
	testbed.Must(t, err)
	defer server.Stop()
	web := httptest.NewServer(server.Handler())
	defer web.Close()
	well := b.web
	b.web = web
	b.problem(farm.CodeUnavailable, http.StatusServiceUnavailable, "POST", "/v1/sandboxes?wait=20", `{"network":"none"}`)
	b.problem(farm.CodeUnavailable, http.StatusServiceUnavailable, "POST", "/v1/run?wait=20", `{"network":"none","code":"1"}`)
	b.web = well
	if m, err := b.store.Member(t.Context(), id); err != nil || m.State != store.MemberIdle {
		t.Errorf("the pool's sandbox is %+v, %v", m, err)
	}
	testbed.Diff(t, "sandbox of a create that can be waited for", id, b.made())
}

// made creates a sandbox and returns its id.
func (b *bundle) made() string {
	b.t.Helper()
	return get[wire.Created](b, http.StatusCreated, "POST", "/v1/sandboxes?wait=20", `{"network":"none"}`).Sandbox.ID
}

// A pool member whose engine does not answer is not claimed.
func TestPoolOfAnUnavailableEngineIsSkipped(t *testing.T) {
	t.Parallel()
	b := setup(t)
	silent, well := b.member("n1", "The container engine does not answer."), b.member("n2", "")
	if got := b.made(); got != well {
		t.Errorf("the create got %s; the silent engine has %s", got, silent)
	}
	if got := b.made(); got == silent {
		t.Error("a create got the sandbox of the silent engine")
	}
}

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
	testbed.Must(t, b.store.Heartbeat(t.Context(), full))
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
	testbed.Must(b.t, err)
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
	testbed.Diff(t, "", want, got)
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

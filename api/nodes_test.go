package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
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

	if _, err := b.store.MoveSandbox(t.Context(), store.Move{Ref: farm.Ref{Tenant: "acme", ID: box}, To: farm.SandboxLost}); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		b.t.Fatal(err)
	}
	for _, w := range workers {
		change(&w)
		if err := b.store.Heartbeat(b.t.Context(), w); err != nil {
			b.t.Fatal(err)
		}
	}
}

// node is the node of a sandbox.
func (b *bundle) node(box string) string {
	b.t.Helper()
	found, err := b.store.Sandbox(b.t.Context(), farm.Ref{Tenant: "acme", ID: box})
	if err != nil {
		b.t.Fatal(err)
	}
	return found.Node
}

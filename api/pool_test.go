package api_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

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
	if err != nil {
		b.t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
	if got := b.made(); got != id {
		t.Errorf("a create that can be waited for got the sandbox %s, not that of the pool", got)
	}
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

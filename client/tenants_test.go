package client_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// The methods on tenants call their routes, and a refusal by a quota keeps its numbers.
func TestTenants(t *testing.T) {
	t.Parallel()
	var seen []string
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen = append(seen, r.Method+" "+r.URL.RequestURI()+" "+string(body))
		switch r.URL.Path {
		case "/v1/tenants":
			_ = json.NewEncoder(w).Encode(wire.List[wire.Tenant]{Items: []wire.Tenant{{Name: "acme"}}})
		case "/v1/limits":
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = w.Write([]byte(`{"code":"exhausted","quota":{"name":"max_running","limit":2,"used":3}}`))
		default:
			_, _ = w.Write([]byte(`{}`))
		}
	}))
	t.Cleanup(web.Close)
	c, err := client.New(web.URL)
	testbed.Must(t, err)
	ctx, gpus := t.Context(), 0
	for _, do := range []func() error{
		func() error { _, err := c.Usage(ctx, 0); return err },
		func() error { _, err := c.TenantUsage(ctx, "acme", 7); return err },
		func() error { _, err := c.Tenant(ctx, "acme"); return err },
		func() error {
			_, err := c.ChangeTenant(ctx, "acme", wire.TenantChange{Set: wire.TenantRequest{MaxGPUs: &gpus}, Default: []string{"max_cpus"}})
			return err
		},
		func() error { _, err := c.SetTenant(ctx, "acme", wire.TenantRequest{MaxGPUs: &gpus}); return err },
	} {
		if err := do(); err != nil {
			t.Error(err)
		}
	}
	for tenant, err := range c.Tenants(ctx) {
		if err != nil || tenant.Name != "acme" {
			t.Errorf("Tenants gives %q, %v", tenant.Name, err)
		}
	}
	want := []string{
		"GET /v1/usage ", "GET /v1/tenants/acme/usage?days=7 ", "GET /v1/tenants/acme ",
		`PATCH /v1/tenants/acme {"set":{"max_gpus":0},"default":["max_cpus"]}`, `PUT /v1/tenants/acme {"max_gpus":0}`, "GET /v1/tenants?limit=200 ",
	}
	testbed.Diff(t, "requests", want, seen)
}

// The methods on nodes call their routes; a node's id may contain anything.
func TestNodes(t *testing.T) {
	t.Parallel()
	var seen []string
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen = append(seen, r.Method+" "+r.URL.RequestURI()+" "+string(body))
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		_, _ = w.Write([]byte(`{"state":"drained"}`))
	}))
	t.Cleanup(web.Close)
	c, err := client.New(web.URL)
	testbed.Must(t, err)
	idle := "close"
	for _, do := range []func() (wire.Drain, error){
		func() (wire.Drain, error) { return c.DrainNode(t.Context(), "AB:CD/1", wire.DrainRequest{Idle: &idle}) },
		func() (wire.Drain, error) { return c.NodeDrain(t.Context(), "n1") },
	} {
		if d, err := do(); err != nil || d.State != "drained" {
			t.Errorf("%+v, %v", d, err)
		}
	}
	if err := c.EndNodeDrain(t.Context(), "n1"); err != nil {
		t.Error(err)
	}
	want := []string{`POST /v1/nodes/AB:CD%2F1/drain {"idle":"close"}`, "GET /v1/nodes/n1/drain ", "DELETE /v1/nodes/n1/drain "}
	testbed.Diff(t, "requests", want, seen)
}

package client_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestSandboxFilterByState(t *testing.T) {
	t.Parallel()
	var open []string
	for _, state := range farm.SandboxStates() {
		if !state.Final() {
			open = append(open, string(state))
		}
	}
	for want, filter := range map[string]client.SandboxFilter{
		"":                      {},
		"closed":                {State: "closed", Open: true},
		strings.Join(open, ","): {Open: true},
	} {
		var got string
		c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got = r.URL.Query().Get("state")
			reply(t, w, http.StatusOK, wire.List[wire.Sandbox]{})
		}))
		for range c.Sandboxes(t.Context(), filter) {
			t.Error("a sandbox from an empty list")
		}
		testbed.Diff(t, fmt.Sprintf("%+v", filter), want, got)
	}
}

func TestInstallSendsTheNamesAndGivesTheJob(t *testing.T) {
	t.Parallel()
	var asked wire.PackagesRequest
	var uri, key string
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uri, key = r.Method+" "+r.URL.RequestURI(), r.Header.Get("Idempotency-Key")
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		reply(t, w, http.StatusOK, wire.Job{ID: "job_1", Kind: "install", State: "completed", Result: &wire.Result{Install: &wire.InstallResult{
			Packages: []wire.InstalledOne{{Name: "nope", Requested: "nope", Status: "failed", Message: "there is no such package"}},
		}}})
	}))
	request := wire.PackagesRequest{Packages: []string{"numpy", "pandas>=2"}, Manager: new("pip")}
	job, err := c.Install(t.Context(), "sbx_1", request, client.WithWait(20*time.Second))
	if err != nil || client.Failure(job) != nil || job.Result == nil || job.Result.Install == nil {
		t.Fatalf("%+v, %v: a package that failed is a result", job, err)
	}
	if got := job.Result.Install.Packages[0]; got.Status != "failed" || got.Message != "there is no such package" {
		t.Errorf("got %+v", got)
	}
	if uri != "POST /v1/sandboxes/sbx_1/packages?wait=20" || key == "" {
		t.Errorf("asked %q with the key %q", uri, key)
	}
	testbed.Diff(t, "request", request, asked)
}

// Each method asks for its route, escapes names, and returns what the farm answers.
func TestRoutes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	acme, drained, installed := wire.Tenant{Name: "acme"}, wire.Drain{State: "drained"}, wire.Package{Name: "numpy", Status: "installed", Version: "2.3.5"}
	request, change := wire.TenantRequest{MaxGPUs: new(0)}, wire.TenantChange{Set: wire.TenantRequest{MaxGPUs: new(0)}, Default: []string{"max_cpus"}}
	ofPackage := func(name string, opts ...client.CallOption) func(*client.Client) (any, error) {
		return func(c *client.Client) (any, error) { return c.Package(ctx, "sbx_1", name, opts...) }
	}
	for want, test := range map[string]struct {
		answer any
		call   func(*client.Client) (any, error)
	}{
		"GET /v1/usage ":                                         {wire.Usage{Tenant: "acme"}, func(c *client.Client) (any, error) { return c.Usage(ctx, 0) }},
		"GET /v1/tenants/acme/usage?days=7 ":                     {wire.Usage{Tenant: "acme"}, func(c *client.Client) (any, error) { return c.TenantUsage(ctx, "acme", 7) }},
		"GET /v1/tenants/acme ":                                  {acme, func(c *client.Client) (any, error) { return c.Tenant(ctx, "acme") }},
		`PUT /v1/tenants/acme {"max_gpus":0}`:                    {acme, func(c *client.Client) (any, error) { return c.SetTenant(ctx, "acme", request) }},
		"GET /v1/nodes/n1/drain ":                                {drained, func(c *client.Client) (any, error) { return c.NodeDrain(ctx, "n1") }},
		"DELETE /v1/nodes/n1/drain ":                             {nil, func(c *client.Client) (any, error) { return nil, c.EndNodeDrain(ctx, "n1") }},
		"POST /v1/sandboxes/sbx_1/restart ":                      {wire.Job{ID: "job_1"}, func(c *client.Client) (any, error) { return c.Restart(ctx, "sbx_1") }},
		"GET /v1/sandboxes/sbx_1/packages/numpy ":                {installed, ofPackage("numpy")},
		"GET /v1/sandboxes/sbx_1/packages/@types%2Fnode ":        {installed, ofPackage("@types/node")},
		"GET /v1/sandboxes/sbx_1/packages/..%2F..%2Fjobs ":       {installed, ofPackage("../../jobs")},
		"GET /v1/sandboxes/sbx_1/packages/a%3Fb%23c ":            {installed, ofPackage("a?b#c")},
		"GET /v1/sandboxes/sbx_1/packages/left-pad?manager=npm ": {installed, ofPackage("left-pad", client.WithManager("npm"))},
		`POST /v1/sandboxes/sbx_1/restart {"context":"b"}`: {wire.Job{ID: "job_1"}, func(c *client.Client) (any, error) {
			return c.Restart(ctx, "sbx_1", client.WithKernel("b"))
		}},
		`PATCH /v1/tenants/acme {"set":{"max_gpus":0},"default":["max_cpus"]}`: {acme, func(c *client.Client) (any, error) {
			return c.ChangeTenant(ctx, "acme", change)
		}},
		`POST /v1/nodes/AB:CD%2F1/drain {"idle":"close"}`: {drained, func(c *client.Client) (any, error) {
			return c.DrainNode(ctx, "AB:CD/1", wire.DrainRequest{Idle: new("close")})
		}},
		"GET /v1/tenants?limit=200 ": {wire.List[wire.Tenant]{Items: []wire.Tenant{acme}}, func(c *client.Client) (any, error) {
			var all wire.List[wire.Tenant]
			for tenant, err := range c.Tenants(ctx) {
				if err != nil {
					return all, err
				}
				all.Items = append(all.Items, tenant)
			}
			return all, nil
		}},
		"GET /v1/sandboxes/sbx_1/packages ": {wire.Items[wire.Package]{Items: []wire.Package{installed}}, func(c *client.Client) (any, error) {
			list, err := c.Packages(ctx, "sbx_1")
			return wire.Items[wire.Package]{Items: list}, err
		}},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			var asked string
			c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				asked = r.Method + " " + r.RequestURI + " " + string(body)
				if test.answer == nil {
					w.WriteHeader(http.StatusNoContent)
					return
				}
				reply(t, w, http.StatusOK, test.answer)
			}))
			got, err := test.call(c)
			testbed.Must(t, err)
			testbed.Diff(t, "request", want, asked)
			testbed.Diff(t, "answer", test.answer, got)
		})
	}
}

package client_test

import (
	"encoding/json"
	"fmt"
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
	testbed.Diff(t, "", request, asked)
}

func TestPackagesListsThem(t *testing.T) {
	t.Parallel()
	want := []wire.Package{{Name: "numpy", Status: "installed", Version: "2.3.5", Manager: "pip"}, {Name: "left-pad", Status: "installing", JobID: "job_1", Manager: "npm"}}
	var uri string
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uri = r.URL.RequestURI()
		reply(t, w, http.StatusOK, wire.Items[wire.Package]{Items: want})
	}))
	got, err := c.Packages(t.Context(), "sbx_1")
	if err != nil || uri != "/v1/sandboxes/sbx_1/packages" {
		t.Errorf("%v, asked %q", err, uri)
	}
	testbed.Diff(t, "", want, got)
}

func TestPackageEscapesTheName(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ name, want string }{
		"Plain": {"numpy", "numpy"},
		"Scope": {"@types/node", "@types%2Fnode"},
		"Dots":  {"../../jobs", "..%2F..%2Fjobs"},
		"Query": {"a?b#c", "a%3Fb%23c"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var uri string
			c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				uri = r.RequestURI
				reply(t, w, http.StatusOK, wire.Package{Name: test.name, Status: "not_found"})
			}))
			got, err := c.Package(t.Context(), "sbx_1", test.name)
			if err != nil || got.Status != "not_found" || uri != "/v1/sandboxes/sbx_1/packages/"+test.want {
				t.Errorf("%+v, %v, asked %q", got, err, uri)
			}
		})
	}
}

func TestPackageOfAnUnknownSandboxIsNotFound(t *testing.T) {
	t.Parallel()
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refuse(t, w, http.StatusNotFound, "not_found", "there is no sandbox sbx_1")
	}))
	if _, err := c.Package(t.Context(), "sbx_1", "numpy"); client.CodeOf(err) != "not_found" {
		t.Errorf("%v", err)
	}
}

func TestPackageOfAManager(t *testing.T) {
	t.Parallel()
	var uri string
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uri = r.RequestURI
		reply(t, w, http.StatusOK, wire.Package{Name: "left-pad", Status: "installed"})
	}))
	if _, err := c.Package(t.Context(), "sbx_1", "left-pad", client.WithManager("npm")); err != nil || uri != "/v1/sandboxes/sbx_1/packages/left-pad?manager=npm" {
		t.Errorf("%v, asked %q", err, uri)
	}
}

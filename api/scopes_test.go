package api_test

import (
	"context"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// withScopes gives the server a key for each scope, named after it.
func withScopes(c *api.Config, _ *api.Deps) {
	for _, scope := range farm.Scopes() {
		c.Keys = append(c.Keys, api.KeyConfig{Tenant: "acme", SHA256: hash(string(scope)), Scopes: []string{string(scope)}})
	}
}

// scopeOf is the scope that an operation must need.
func scopeOf(method, path string) farm.Scope {
	admin := regexp.MustCompile(`^/v1/(keys|audit|tenants|nodes|activity|events|scale)(/|$)`)
	protocol := regexp.MustCompile(`^/mcp(/|$)|/messages/$`) // their tools check the scope
	port := regexp.MustCompile(`/(ports/\{port\}/|tcp/)`)    // a server may do anything for any request
	switch {
	case port.MatchString(path):
		return farm.ScopeRun
	case path == "/metrics":
		return farm.ScopeMetrics
	case strings.HasSuffix(path, "/attach"): // who attaches may write
		return farm.ScopeRun
	case admin.MatchString(path):
		return farm.ScopeAdmin
	case strings.HasPrefix(path, "/v1/sandboxes/{id}/fs"), path == "/v1/sandboxes/{id}/watch": // what can be read includes the variables of programs
		return farm.ScopeRun
	case method == http.MethodGet, method == http.MethodHead, protocol.MatchString(path):
		return farm.ScopeRead
	default:
		return farm.ScopeRun
	}
}

func TestEveryRouteNeedsItsScope(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes)
	checked := 0
	for name, body := range operations(b) {
		method, path, _ := strings.Cut(name, " ")
		if slices.Contains([]string{"/healthz", "/readyz", "/openapi.json", "/docs", "/check"}, path) || strings.HasSuffix(path, "/sse") {
			continue // open to all, or a stream that does not end
		}
		checked++
		need := scopeOf(method, path)
		path = regexp.MustCompile(`\{[a-z_]+\}`).ReplaceAllString(path, "x")
		for _, has := range farm.Scopes() {
			answer, text := b.do(method, path, body, "X-API-Key", string(has))
			refused := answer.StatusCode == http.StatusForbidden
			if refused == farm.Allows([]farm.Scope{has}, need) || answer.StatusCode == http.StatusUnauthorized {
				t.Errorf("%s needs %s; a key with %s is answered %d: %s", name, need, has, answer.StatusCode, text)
			}
		}
	}
	if checked < 40 {
		t.Fatalf("only %d routes were checked", checked)
	}
}

func TestAReadKeyStartsNoWork(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes)
	run, read := []string{"X-API-Key", "run"}, []string{"X-API-Key", "read", "Accept", "application/json, text/event-stream", "Content-Type", "application/json"}
	box := b.sandbox(run...)
	jobs := func() int {
		page := get[struct{ Items []any }](b, http.StatusOK, "GET", "/v1/jobs", nil, run...)
		return len(page.Items)
	}
	before := jobs()
	call := func(tool, arguments string) string {
		t.Helper()
		answer, text := b.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+tool+`","arguments":`+arguments+`}}`, read...)
		if answer.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %d: %s", tool, answer.StatusCode, text)
		}
		return string(text)
	}
	if text := call("list_sandboxes", "{}"); !strings.Contains(text, box) {
		t.Errorf("a read key does not see its sandboxes: %s", text)
	}
	for tool, arguments := range map[string]string{
		"create_sandbox": "{}", "close_sandbox": `{"sandbox_id":"` + box + `"}`, "execute_python_code": `{"sandbox_id":"` + box + `","code":"1"}`,
		"execute_terminal_command": `{"sandbox_id":"` + box + `","command":"true"}`, "install_packages_in_sandbox": `{"sandbox_id":"` + box + `","package_names":["six"]}`,
		"restart_kernel": `{"sandbox_id":"` + box + `"}`, "upload_file_to_sandbox": `{"sandbox_id":"` + box + `","dest_path":"a","content":"b"}`,
		"cancel_job": `{"job_id":"` + farm.NewID(farm.JobPrefix) + `"}`,
	} {
		if text := call(tool, arguments); !strings.Contains(text, "scope run") {
			t.Errorf("%s: %s", tool, text)
		}
	}
	for target, body := range map[string]string{"/mcp/tools/create_sandbox": "{}", "/sandbox/create": "{}", "/sandbox/" + box + "/execute": `{"code":"1"}`} {
		if answer, text := b.do("POST", target, body, read...); answer.StatusCode < http.StatusBadRequest || !strings.Contains(string(text), "scope run") {
			t.Errorf("%s: status %d: %s", target, answer.StatusCode, text)
		}
	}
	if after := jobs(); after != before {
		t.Errorf("a read key started %d jobs", after-before)
	}
}

func TestKeysOfTheSettingsWithoutScopesKeepTheirRights(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	mine := []string{"X-API-Key", key}
	for _, target := range []string{"/v1/jobs", "/v1/workers", "/v1/queues", "/metrics"} {
		if answer, _ := b.do("GET", target, nil, mine...); answer.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d", target, answer.StatusCode)
		}
	}
	b.sandbox(mine...)
}

// sevenCallbacks says that callbacks of all tenants wait.
type sevenCallbacks struct{}

func (sevenCallbacks) Depths(context.Context) ([]farm.QueueDepth, error) {
	return []farm.QueueDepth{{Name: "callbacks", Depth: 7}}, nil
}

func TestKeysSeeTheirOwnCallbacks(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes, func(c *api.Config, d *api.Deps) {
		d.Queues = sevenCallbacks{}
		c.Keys = append(c.Keys, api.KeyConfig{Tenant: "rival", SHA256: hash("rival"), Scopes: []string{"run"}})
	})
	get[wire.Job](b, http.StatusOK, "POST", "/v1/run?wait=20", `{"code": "1", "callback_url": "https://hooks.example.com/x"}`, "X-API-Key", "run")
	for secret, want := range map[string]int{"run": 1, "rival": 0, "admin": 7} {
		queues := get[wire.Items[wire.Queue]](b, http.StatusOK, "GET", "/v1/queues", nil, "X-API-Key", secret).Items
		if i := slices.IndexFunc(queues, func(q wire.Queue) bool { return q.Name == "callbacks" }); i < 0 || queues[i].Depth != want {
			t.Errorf("%s sees %+v, want %d callbacks", secret, queues, want)
		}
	}
}

// A key sees of the fleet what concerns its tenant; admins and keys of the settings without scopes see all of it.
func TestKeysSeeTheirOwnFleet(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes, func(c *api.Config, _ *api.Deps) {
		c.Keys = append(c.Keys, api.KeyConfig{Tenant: "rival", SHA256: hash("rival"), Scopes: []string{"run"}})
	})
	for _, node := range []string{"n1", "n2"} { // the fake worker starts sandboxes on n1
		w := farm.Worker{
			ID: "wrk_" + node, Node: node, Host: "host-" + node, Slots: 4, Running: 3, Sandboxes: 9, Queues: []string{"cpu"}, Machine: &farm.Machine{MemoryMB: 1 << 20, CPUs: 64},
			Capacity: farm.Capacity{MemoryMB: 1 << 19, CPUs: 64}, GPUs: []farm.GPUDevice{{ID: "GPU-1", Model: "a100", Leased: true}}, Images: []farm.Image{{Name: "python"}},
		}
		if err := b.store.Heartbeat(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
	b.sandbox("X-API-Key", "run")
	for secret, want := range map[string][]string{"run": {"wrk_n1"}, "read": {"wrk_n1"}, "rival": nil, "admin": {"wrk_1", "wrk_n1", "wrk_n2"}} {
		var ids []string
		for _, w := range get[wire.Items[wire.Worker]](b, http.StatusOK, "GET", "/v1/workers", nil, "X-API-Key", secret).Items {
			ids = append(ids, w.ID)
			if secret != "admin" && (w.Host != "" || w.Slots != 0 || w.Running != 0 || w.Sandboxes != 1 || w.Machine != nil || w.Capacity != (wire.Room{}) || len(w.GPUs) != 0 || len(w.Images) != 1) {
				t.Errorf("%s sees %+v", secret, w)
			}
			if open := map[string]int{"n1": 1}[w.Node]; secret == "admin" && w.Sandboxes != open { // not the 9 in which it runs jobs
				t.Errorf("%s sees %d sandboxes on %s, want %d", secret, w.Sandboxes, w.Node, open)
			}
		}
		slices.Sort(ids)
		if !slices.Equal(ids, want) {
			t.Errorf("%s sees the workers %v, want %v", secret, ids, want)
		}
		queues := get[wire.Items[wire.Queue]](b, http.StatusOK, "GET", "/v1/queues", nil, "X-API-Key", secret).Items
		if !slices.ContainsFunc(queues, func(q wire.Queue) bool { return q.Name == "cpu" && (secret == "admin" || q.Depth+q.Running == 0) }) {
			t.Errorf("%s sees the queues %+v", secret, queues)
		}
		if devices := slices.ContainsFunc(queues, func(q wire.Queue) bool { return q.GPUs+q.GPUsLeased > 0 }); devices != (secret == "admin") {
			t.Errorf("%s sees devices: %+v", secret, queues)
		}
	}
}

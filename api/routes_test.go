package api_test

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// operations lists the documented /v1 operations, each with a valid body.
func operations(b *bundle) map[string]string {
	spec := get[struct {
		Paths map[string]map[string]json.RawMessage
	}](b, http.StatusOK, "GET", "/openapi.json", nil)
	bodies := map[string]string{
		"/execute": `{"code":"1"}`, "/commands": `{"command":"true"}`, "/packages": `{"packages":["six"]}`, "/move": `{"from":"a","to":"b"}`,
		"/processes": `{"command":"true"}`, "/signal": `{"signal":"SIGTERM"}`, "/resize": `{"cols":80,"rows":24}`, "/port-links": `{"port":80}`,
		"/copy": `{"from":"a","to":"b"}`, "/link": `{"path":"a","target":"b"}`, "/fs/{path}": `{"mode":"0600"}`,
	}
	out := map[string]string{}
	for path, item := range spec.Paths {
		for method := range item {
			body := "{}"
			for suffix, text := range bodies {
				if strings.HasSuffix(path, suffix) {
					body = text
				}
			}
			out[strings.ToUpper(method)+" "+path] = body
		}
	}
	return out
}

func TestEveryRouteNeedsAKey(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	checked := 0
	for name, body := range operations(b) {
		method, path, _ := strings.Cut(name, " ")
		if slices.Contains([]string{"/healthz", "/readyz", "/openapi.json", "/docs", "/check"}, path) {
			continue
		}
		checked++
		path = regexp.MustCompile(`\{[a-z_]+\}`).ReplaceAllString(path, "x")
		for _, headers := range [][]string{nil, {"Authorization", "Bearer wrong"}, {"X-API-Key", "wrong"}, {"Authorization", key}, {"Authorization", "Basic " + key}, {"Authorization", "Bearer " + hash(key)}} {
			if method == "HEAD" || strings.HasPrefix(path, "/mcp/tools/") { // no body, or one in another shape
				if answer, _ := b.do(method, path, nil, headers...); answer.StatusCode != http.StatusUnauthorized {
					t.Errorf("%s: status %d", name, answer.StatusCode)
				}
				continue
			}
			b.problem(farm.CodeUnauthorized, http.StatusUnauthorized, method, path, body, headers...)
		}
	}
	if checked < 30 {
		t.Fatalf("only %d routes were checked", checked)
	}
	b.problem(farm.CodeUnauthorized, http.StatusUnauthorized, "GET", "/v1/no-such-route", nil)
	for _, headers := range [][]string{{"Authorization", "Bearer " + key}, {"authorization", "bearer " + key}, {"X-API-Key", key}} {
		if answer, _ := b.do("GET", "/v1/sandboxes", nil, headers...); answer.StatusCode != http.StatusOK {
			t.Errorf("%v: status %d", headers, answer.StatusCode)
		}
	}
}

func TestEveryRouteHidesForeignThings(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	mine := []string{"X-API-Key", key}
	box := b.sandbox(mine...)
	job := get[struct{ ID, Result json.RawMessage }](b, http.StatusOK, "POST", "/v1/sandboxes/"+box+"/execute?wait=20", `{"code":"make a.txt"}`, mine...)
	var jobID string
	var result struct{ Artifacts []struct{ ID string } }
	testbed.Must(t, json.Unmarshal(job.ID, &jobID))
	testbed.Must(t, json.Unmarshal(job.Result, &result))
	own := strings.NewReplacer("/sandboxes/{id}", "/sandboxes/"+box, "/jobs/{id}", "/jobs/"+jobID, "/artifacts/{id}", "/artifacts/"+result.Artifacts[0].ID, "{path}", "a.txt", "{name}", "six")
	never := strings.NewReplacer("/sandboxes/{id}", "/sandboxes/"+farm.NewID(farm.SandboxPrefix), "/jobs/{id}", "/jobs/"+farm.NewID(farm.JobPrefix),
		"/artifacts/{id}", "/artifacts/"+farm.ArtifactID(farm.NewID(farm.JobPrefix), "a.txt"), "{path}", "a.txt", "{name}", "six")
	junk := strings.NewReplacer("{id}", strings.Repeat("a", 3000), "{path}", "a.txt", "{name}", "six")
	checked := 0
	for name, body := range operations(b) {
		method, path, _ := strings.Cut(name, " ")
		if !strings.Contains(path, "{id}") || scopeOf(method, path) == farm.ScopeAdmin { // admins see all tenants
			continue
		}
		checked++
		headers := []string{"X-API-Key", otherKey}
		if strings.HasSuffix(path, "/files") && method == "POST" {
			headers = append(headers, "Content-Type", "application/x-tar")
		}
		if method == "HEAD" {
			if answer, _ := b.do(method, own.Replace(path), nil, headers...); answer.StatusCode != http.StatusNotFound {
				t.Errorf("%s: status %d", name, answer.StatusCode)
			}
			continue
		}
		for _, target := range []string{own.Replace(path), never.Replace(path), junk.Replace(path)} {
			b.problem(farm.CodeNotFound, http.StatusNotFound, method, target, body, headers...)
		}
	}
	if checked < 20 {
		t.Fatalf("only %d routes were checked", checked)
	}
	if answer, _ := b.do("GET", "/v1/sandboxes/"+box, nil, mine...); answer.StatusCode != http.StatusOK {
		t.Fatal("the owner must still find it")
	}
	for _, list := range []string{"/v1/sandboxes", "/v1/jobs", "/v1/artifacts", "/v1/jobs?job_id=" + jobID, "/v1/jobs?sandbox_id=" + box, "/v1/artifacts?job_id=" + jobID} {
		page := get[struct{ Items []any }](b, http.StatusOK, "GET", list, nil, "X-API-Key", otherKey)
		if page.Items == nil || len(page.Items) != 0 {
			t.Errorf("%s shows a foreign tenant %v", list, page.Items)
		}
	}
}

func TestWrongMethodAndPath(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.problem(farm.CodeInvalid, http.StatusMethodNotAllowed, "PUT", "/v1/jobs", nil)
	b.problem(farm.CodeInvalid, http.StatusMethodNotAllowed, "POST", "/v1/jobs/x", nil)
	for _, path := range []string{"/v1/no-such-route", "/nothing", "/v1/sandboxes/", "//v1/sandboxes", "/v1//sandboxes", "/v1/x/../sandboxes"} {
		b.problem(farm.CodeNotFound, http.StatusNotFound, "GET", path, nil)
	}
}

func TestIDOfAnotherKindIsNamed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box, job := farm.NewID(farm.SandboxPrefix), farm.NewID(farm.JobPrefix)
	for path, want := range map[string]string{
		"/v1/sandboxes/" + job:                  "There is no sandbox \"" + job + "\": this is the id of a job.",
		"/v1/jobs/" + box:                       "There is no job \"" + box + "\": this is the id of a sandbox.",
		"/v1/jobs/" + job[:len(job)-1]:          "There is no job \"" + job[:len(job)-1] + "\".",
		"/v1/artifacts/" + box:                  "There is no artifact \"" + box + "\": this is the id of a sandbox.",
		"/v1/sandboxes/" + job + "/files/a.txt": "There is no sandbox \"" + job + "\": this is the id of a job.",
		"/v1/sandboxes/" + job + "/processes":   "There is no sandbox \"" + job + "\": this is the id of a job.",
	} {
		if p := b.problem(farm.CodeNotFound, http.StatusNotFound, "GET", path, nil); p.Detail != want {
			t.Errorf("%s: %q, want %q", path, p.Detail, want)
		}
	}
}

func TestHostAndOriginOfAServerWithoutKeys(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, host := range []string{"evil.example", "evil.example:8000", "10.0.0.1", "127.0.0.1.evil.example", "localhost.evil.example"} {
		b.problem(farm.CodeUnauthorized, http.StatusForbidden, "GET", "/v1/sandboxes", nil, "Host", host)
	}
	for _, host := range []string{"localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:8000", "farm.localhost"} {
		if answer, _ := b.do("GET", "/v1/sandboxes", nil, "Host", host); answer.StatusCode != http.StatusOK {
			t.Errorf("host %s: status %d", host, answer.StatusCode)
		}
	}
	b.problem(farm.CodeUnauthorized, http.StatusForbidden, "POST", "/v1/sandboxes", "{}", "Sec-Fetch-Site", "cross-site")
	b.problem(farm.CodeUnauthorized, http.StatusForbidden, "POST", "/v1/sandboxes", "{}", "Origin", "http://evil.example")
}

func TestOpenAPIIsWhole(t *testing.T) {
	t.Parallel()
	b := setup(t)
	spec := get[map[string]any](b, http.StatusOK, "GET", "/openapi.json", nil)
	var walk func(any)
	references := 0
	walk = func(node any) {
		switch node := node.(type) {
		case map[string]any:
			if ref, ok := node["$ref"].(string); ok {
				references++
				place := any(spec)
				for _, part := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
					m, _ := place.(map[string]any)
					if place = m[part]; place == nil {
						t.Fatalf("%s leads nowhere", ref)
					}
				}
			}
			for _, value := range node {
				walk(value)
			}
		case []any:
			for _, value := range node {
				walk(value)
			}
		}
	}
	walk(spec)
	if references < 50 || spec["openapi"] != "3.1.0" {
		t.Fatalf("%d references, version %v", references, spec["openapi"])
	}
	ids := map[string]bool{}
	for path, item := range spec["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			o := op.(map[string]any)
			id, _ := o["operationId"].(string)
			if ids[id] || id == "" || o["summary"] == "" || len(o["responses"].(map[string]any)) < 2 {
				t.Errorf("%s %s: id %q, summary %q", method, path, id, o["summary"])
			}
			ids[id] = true
		}
	}
	// Every field of every type has a description.
	for name, component := range spec["components"].(map[string]any)["schemas"].(map[string]any) {
		properties, _ := component.(map[string]any)["properties"].(map[string]any)
		for field, schema := range properties {
			if schema.(map[string]any)["description"] == nil {
				t.Errorf("%s.%s has no description", name, field)
			}
		}
	}
}

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
		testbed.Must(t, b.store.Heartbeat(t.Context(), w))
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

package api_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
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
	if err := json.Unmarshal(job.ID, &jobID); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(job.Result, &result); err != nil {
		t.Fatal(err)
	}
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

package api_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

type specParameter struct {
	Name, In, Description string
	Schema                struct{ Maximum float64 }
}

type specOperation struct {
	Parameters []specParameter
	Responses  map[string]struct {
		Ref     string `json:"$ref"`
		Headers map[string]any
	}
}

func (o specOperation) parameter(name string) (specParameter, bool) {
	i := slices.IndexFunc(o.Parameters, func(p specParameter) bool { return p.Name == name })
	if i < 0 {
		return specParameter{}, false
	}
	return o.Parameters[i], true
}

type spec struct {
	Paths, Webhooks map[string]map[string]specOperation
	Components      struct {
		Headers map[string]any
		Schemas map[string]struct {
			Properties map[string]struct {
				Items struct {
					Properties map[string]struct{ Enum []string }
				}
			}
		}
	}
}

func TestOpenAPIDescribesWhatTheRoutesDo(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *api.Config, _ *api.Deps) { c.Limits = farm.DefaultLimits(); c.Limits.WaitMaxSeconds = 17 })
	doc := get[spec](b, http.StatusOK, "GET", "/openapi.json", nil)
	if tool, _ := doc.Paths["/mcp/tools/{tool}"]["post"].parameter("tool"); !strings.Contains(tool.Description, "tool") {
		t.Errorf("{tool} is %q", tool.Description)
	}
	var keyed []string
	for path, item := range doc.Paths {
		for method, operation := range item {
			if wait, ok := operation.parameter("wait"); ok && wait.Schema.Maximum != 17 {
				t.Errorf("%s %s: the maximum of wait is %g, not that of the setting", method, path, wait.Schema.Maximum)
			}
			if _, ok := operation.parameter("Idempotency-Key"); ok {
				keyed = append(keyed, method+" "+path)
			}
			for status, response := range operation.Responses {
				if response.Ref == "" && response.Headers["X-Request-Id"] == nil {
					t.Errorf("%s %s: answer %s has no headers", method, path, status)
				}
			}
		}
	}
	slices.Sort(keyed)
	const base = "/v1/sandboxes/{id}"
	want := []string{
		"delete " + base + "/files/{path}", "post /v1/jobs/batch", "post /v1/run", "post /v1/sandboxes", "post " + base + "/commands", "post " + base + "/execute",
		"post " + base + "/files", "post " + base + "/files/move", "post " + base + "/hibernate", "post " + base + "/interrupt", "post " + base + "/packages",
		"post " + base + "/processes", "post " + base + "/restart", "post " + base + "/resume", "put " + base + "/files/{path}",
	}
	testbed.Diff(t, "routes with an Idempotency-Key", want, keyed)
	if kinds := doc.Components.Schemas["BatchRequest"].Properties["jobs"].Items.Properties["kind"].Enum; !slices.Contains(kinds, "install") {
		t.Errorf("a batch holds %v", kinds)
	}
	if _, ok := doc.Webhooks["job_finished"]["post"].parameter("webhook-signature"); !ok {
		t.Errorf("webhooks are %v", doc.Webhooks)
	}
	create := doc.Paths["/v1/sandboxes"]["post"].Responses["202"]
	if create.Headers["Location"] == nil || create.Headers["Preference-Applied"] == nil {
		t.Errorf("headers of a create are %v", create.Headers)
	}
}

// On every route that documents the key, a second call with the same key returns the job of the first.
func TestDescribedIdempotencyKeysAreHonoured(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := "/v1/sandboxes/" + b.sandbox()
	for i, c := range [][3]string{
		{"PUT", box + "/files/a.txt?wait=0", "x"},
		{"POST", box + "/files/move?wait=0", `{"from":"a.txt","to":"b.txt"}`},
		{"DELETE", box + "/files/b.txt?wait=0", ""},
		{"POST", box + "/interrupt", `{}`},
		{"POST", box + "/packages", `{"packages":["six"]}`},
		{"POST", box + "/commands", `{"command":"true"}`},
	} {
		var ids [2]string
		for n := range ids {
			ids[n] = get[struct{ ID string }](b, http.StatusAccepted, c[0], c[1], c[2], "Idempotency-Key", "key-"+string(rune('a'+i))).ID
		}
		if ids[0] == "" || ids[0] != ids[1] {
			t.Errorf("%s %s: jobs %v", c[0], c[1], ids)
		}
	}
}

func TestBatchAcceptsEveryDocumentedKind(t *testing.T) {
	t.Parallel()
	b := setup(t)
	doc := get[spec](b, http.StatusOK, "GET", "/openapi.json", nil)
	for _, kind := range doc.Components.Schemas["BatchRequest"].Properties["jobs"].Items.Properties["kind"].Enum {
		_, text := b.do("POST", "/v1/jobs/batch", `{"jobs":[{"kind":"`+kind+`"}]}`)
		if strings.Contains(string(text), "cannot be in a batch") {
			t.Errorf("%s: %s", kind, text)
		}
	}
}

// Each operation has an answer that is a success: 101 is that of a WebSocket.
func TestEveryOperationCanSucceed(t *testing.T) {
	t.Parallel()
	doc := get[spec](setup(t), http.StatusOK, "GET", "/openapi.json", nil)
	for path, item := range doc.Paths {
		for method, operation := range item {
			success := false
			for status := range operation.Responses {
				success = success || status == "101" || strings.HasPrefix(status, "2") || strings.HasPrefix(status, "3")
			}
			if !success {
				t.Errorf("%s %s has no answer that is a success", method, path)
			}
		}
	}
}

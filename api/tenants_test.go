package api_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// withAdmin gives the server a tenant and an operator.
func withAdmin(c *api.Config, _ *api.Deps) {
	c.Keys = []api.KeyConfig{{Tenant: "acme", SHA256: hash(key)}, {Tenant: "ops", SHA256: hash(otherKey), Scopes: []string{string(farm.ScopeAdmin)}}}
}

func asAcme() []string { return []string{"Authorization", "Bearer " + key} }
func asOps() []string  { return []string{"Authorization", "Bearer " + otherKey} }

// quotaOf finds a quota in a list.
func quotaOf(t *testing.T, list []wire.Quota, name string) wire.Quota {
	t.Helper()
	for _, q := range list {
		if q.Name == name {
			return q
		}
	}
	t.Fatalf("there is no quota %s in %v", name, list)
	return wire.Quota{}
}

func decode[T any](t *testing.T, text []byte) T {
	t.Helper()
	var out T
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return out
}

func limit(n float64) *float64 { return &n }

// A quota that the operator sets is told to a caller beyond it: its name, its value and what is used.
func TestQuotaRefusesWithItsNumbers(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin)
	set := get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/acme", `{"max_sandboxes": 1, "max_memory_mb": 512, "max_cpus": 0.5}`, asOps()...)
	if diff := cmp.Diff(map[string]float64{"max_sandboxes": 1, "max_memory_mb": 512, "max_cpus": 0.5}, set.Own); diff != "" || set.Name != "acme" {
		t.Errorf("tenant %s, own quotas (-want +got):\n%s", set.Name, diff)
	}
	answer, body := b.do("POST", "/v1/sandboxes", `{"resources": {"memory_mb": 600, "cpus": 0.1}}`, asAcme()...)
	p := decode[wire.Problem](t, body)
	if answer.StatusCode != http.StatusTooManyRequests || p.Code != "exhausted" || answer.Header.Get("Retry-After") != "" {
		t.Errorf("a sandbox larger than the quota: %d %+v, headers %v", answer.StatusCode, p, answer.Header)
	}
	testbed.Diff(t, "quota of the problem", &wire.Quota{Name: "max_memory_mb", Limit: limit(512), Used: 0}, p.Quota)
	get[wire.Created](b, http.StatusAccepted, "POST", "/v1/sandboxes?wait=0", `{"resources": {"memory_mb": 512, "cpus": 0.5}}`, asAcme()...)
	for target, request := range map[string]string{"/v1/sandboxes": `{"resources": {"memory_mb": 64}}`, "/v1/run": `{"code": "1"}`} {
		p := b.problem(farm.CodeExhausted, http.StatusTooManyRequests, "POST", target, request, asAcme()...)
		if p.Quota == nil || p.Quota.Name != "max_sandboxes" {
			t.Errorf("%s beyond the quota: %+v", target, p)
		}
	}
	usage := get[wire.Usage](b, http.StatusOK, "GET", "/v1/usage", nil, asAcme()...)
	for name, want := range map[string]wire.Quota{
		"max_sandboxes": {Limit: limit(1), Used: 1}, "max_memory_mb": {Limit: limit(512), Used: 512},
		"max_cpus": {Limit: limit(0.5), Used: 0.5}, "max_gpus": {}, "max_stored_mb": {},
	} {
		want.Name = name
		if diff := cmp.Diff(want, quotaOf(t, usage.Quotas, name)); diff != "" || usage.Tenant != "acme" {
			t.Errorf("usage of %s (-want +got):\n%s", usage.Tenant, diff)
		}
	}
	set = get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/acme", `{"max_sandboxes": 2, "max_cpus": null}`, asOps()...)
	testbed.Diff(t, "quotas that the body leaves out keep their values", map[string]float64{"max_sandboxes": 2}, set.Own)
	get[wire.Created](b, http.StatusAccepted, "POST", "/v1/sandboxes?wait=0", `{"resources": {"memory_mb": 700}}`, asAcme()...)
	_, text := b.do("GET", "/metrics", nil, asOps()...)
	for _, line := range []string{`sandfarm_quota_refusals_total{quota="max_sandboxes"} 2`, `sandfarm_quota_refusals_total{quota="max_memory_mb"} 1`} {
		if !strings.Contains(string(text), line+"\n") {
			t.Errorf("the metrics do not say %s", line)
		}
	}
}

// Each change of a quota is one step: of many at once, none undoes another.
func TestQuotasAreChangedOneByOne(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin)
	const path = "/v1/tenants/acme"
	get[wire.Tenant](b, http.StatusOK, "PUT", path, `{"max_cpus": 3}`, asOps()...)
	want := map[string]float64{"max_sandboxes": 1, "max_memory_mb": 2, "max_gpus": 3, "max_running": 4, "max_queued": 5, "max_stored_mb": 6}
	var group sync.WaitGroup
	for name, value := range want {
		group.Go(func() {
			if answer, text := b.do("PATCH", path, fmt.Sprintf(`{"set": {%q: %v}}`, name, value), asOps()...); answer.StatusCode != http.StatusOK {
				t.Errorf("%s: %d %s", name, answer.StatusCode, text)
			}
		})
	}
	group.Go(func() { b.do("PATCH", path, `{"default": ["max_cpus"]}`, asOps()...) })
	group.Wait()
	testbed.Diff(t, "own quotas", want, get[wire.Tenant](b, http.StatusOK, "GET", path, nil, asOps()...).Own)
	for body, want := range map[string][]string{
		`{}`: {""},
		`{"set": {"max_gpus": -2, "max_cats": 1}, "default": ["max_dogs"]}`: {"/set/max_cats", "/set/max_gpus", "/default/0"},
		`{"set": {"max_gpus": 1}, "default": ["max_cpus", "max_gpus"]}`:     {"/default/1"},
	} {
		_, text := b.do("PATCH", path, body, asOps()...)
		var pointers []string
		for _, e := range decode[wire.Problem](t, text).Errors {
			pointers = append(pointers, e.Pointer)
		}
		if diff := cmp.Diff(want, pointers); diff != "" {
			t.Errorf("%s (-want +got):\n%s%s", body, diff, text)
		}
	}
}

func TestTenantRoutesRefuseBadInput(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin)
	_, body := b.do("PUT", "/v1/tenants/acme", `{"max_sandboxes": -2, "max_cpus": 1e12, "max_gpus": "many", "max_cats": 3, "max_running": 1.5}`, asOps()...)
	p := decode[wire.Problem](t, body)
	var pointers []string
	for _, e := range p.Errors {
		pointers = append(pointers, e.Pointer)
	}
	if diff := cmp.Diff([]string{"/max_gpus", "/max_cats", "/max_running", "/max_sandboxes", "/max_cpus"}, pointers); diff != "" || p.Status != http.StatusBadRequest {
		t.Errorf("problem %d (-want +got):\n%s", p.Status, diff)
	}
	for _, c := range []struct {
		method, target, body string
		status               int
		as                   []string
	}{
		{"PUT", "/v1/tenants/a%20b", `{}`, http.StatusUnprocessableEntity, asOps()},
		{"PUT", "/v1/tenants/%7Bacme%7D", `{}`, http.StatusUnprocessableEntity, asOps()},
		{"PUT", "/v1/tenants/acme", `{"max_gpus": 1}`, http.StatusForbidden, asAcme()},
		{"PATCH", "/v1/tenants/acme", `{"set": {"max_gpus": 1}}`, http.StatusForbidden, asAcme()},
		{"PATCH", "/v1/tenants/a%20b", `{"set": {"max_gpus": 1}}`, http.StatusUnprocessableEntity, asOps()},
		{"GET", "/v1/tenants", "", http.StatusForbidden, asAcme()},
		{"GET", "/v1/tenants/ops/usage", "", http.StatusForbidden, asAcme()},
		{"GET", "/v1/tenants/nobody", "", http.StatusNotFound, asOps()},
		{"GET", "/v1/tenants/nobody/usage", "", http.StatusNotFound, asOps()},
		{"GET", "/v1/usage?days=0", "", http.StatusBadRequest, asAcme()},
		{"GET", "/v1/usage?days=101", "", http.StatusBadRequest, asAcme()},
		{"GET", "/v1/usage?days=x", "", http.StatusBadRequest, asAcme()},
		{"GET", "/v1/usage?days=100", "", http.StatusOK, asAcme()},
	} {
		var body any
		if c.body != "" {
			body = c.body
		}
		if answer, text := b.do(c.method, c.target, body, c.as...); answer.StatusCode != c.status {
			t.Errorf("%s %s: %d, want %d: %s", c.method, c.target, answer.StatusCode, c.status, text)
		}
	}
}

func TestTenantsArePaged(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin)
	for _, name := range []string{"b", "c", "a"} {
		get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/"+name, `{"max_gpus": 0}`, asOps()...)
	}
	var names []string
	for cursor := ""; ; {
		page := get[wire.List[wire.Tenant]](b, http.StatusOK, "GET", "/v1/tenants?limit=2&cursor="+cursor, nil, asOps()...)
		for _, tenant := range page.Items {
			names = append(names, tenant.Name)
		}
		if cursor = string(page.NextCursor); cursor == "" {
			break
		}
	}
	testbed.Diff(t, "tenants", []string{"a", "b", "c"}, names)
}

// Requests within requests_per_minute are told what is left; the first one beyond it is refused until the next is allowed. The operator's
// own routes and metrics are not counted.
func TestRequestRateOfATenant(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin)
	get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/acme", `{"requests_per_minute": 3}`, asOps()...)
	get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/ops", `{"requests_per_minute": 0}`, asOps()...)
	for left := 2; left >= 0; left-- {
		answer, _ := b.do("GET", "/v1/limits", nil, asAcme()...)
		if got := answer.Header.Get("RateLimit"); answer.StatusCode != http.StatusOK || len(got) < 14 || got[:14] != `"requests";r=`+strconv.Itoa(left) {
			t.Errorf("with %d left: %d, RateLimit %q", left, answer.StatusCode, got)
		}
		testbed.Diff(t, "RateLimit-Policy", `"requests";q=3;w=60`, answer.Header.Get("RateLimit-Policy"))
	}
	for range 2 {
		answer, body := b.do("POST", "/v1/sandboxes", `{}`, asAcme()...)
		p := decode[wire.Problem](t, body)
		retry, err := strconv.Atoi(answer.Header.Get("Retry-After"))
		if answer.StatusCode != http.StatusTooManyRequests || p.Quota == nil || p.Quota.Name != "requests_per_minute" || err != nil || retry < 1 || retry > 20 {
			t.Errorf("beyond the rate: %d %+v, Retry-After %q", answer.StatusCode, p, answer.Header.Get("Retry-After"))
		}
	}
	if answer, _ := b.do("GET", "/v1/usage", nil, asOps()...); answer.StatusCode != http.StatusTooManyRequests {
		t.Errorf("a tenant that may send no requests: %d", answer.StatusCode)
	}
	get[wire.List[wire.Tenant]](b, http.StatusOK, "GET", "/v1/tenants", nil, asOps()...)
	get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/acme", `{}`, asOps()...)
	if answer, _ := b.do("GET", "/v1/limits", nil, asAcme()...); answer.StatusCode != http.StatusOK || answer.Header.Get("RateLimit") != "" {
		t.Errorf("without a quota: %d, RateLimit %q", answer.StatusCode, answer.Header.Get("RateLimit"))
	}
}

// Each job of a batch counts as a request. Those beyond requests_per_minute are refused one by one.
func TestRequestRateOfABatch(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin)
	box := b.sandbox(asAcme()...)
	get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/acme", `{"requests_per_minute": 3}`, asOps()...)
	entry := `{"kind": "execute", "sandbox_id": "` + box + `", "code": "1"}`
	body := `{"jobs": [` + entry + strings.Repeat(","+entry, 4) + `]}`
	got := get[wire.BatchResult](b, http.StatusMultiStatus, "POST", "/v1/jobs/batch", body, asAcme()...)
	for i, out := range got.Jobs {
		if accepted := i < 3; (out.Job != nil) != accepted || !accepted && (out.Error == nil || out.Error.Quota == nil || out.Error.Quota.Name != "requests_per_minute") {
			t.Errorf("job %d of 5: %+v, %+v", i+1, out.Job, out.Error)
		}
	}
	b.problem(farm.CodeExhausted, http.StatusTooManyRequests, "POST", "/v1/jobs/batch", body, asAcme()...)
}

// An event stream counts against max_connections until it ends.
func TestConnectionsOfATenant(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin)
	box := b.sandbox(asAcme()...)
	job := get[wire.Job](b, http.StatusAccepted, "POST", "/v1/sandboxes/"+box+"/execute", `{"code": "block"}`, asAcme()...)
	defer close(b.worker.gate)
	get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/acme", `{"max_connections": 1}`, asOps()...)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.web.URL+"/v1/jobs/"+job.ID+"/events", nil)
	testbed.Must(t, err)
	request.Header.Set("Authorization", "Bearer "+key)
	stream, err := http.DefaultClient.Do(request)
	testbed.Must(t, err)
	_, err = bufio.NewReader(stream.Body).ReadString('\n')
	testbed.Must(t, err)
	answer, body := b.do("GET", "/v1/limits", nil, asAcme()...)
	if p := decode[wire.Problem](t, body); answer.StatusCode != http.StatusTooManyRequests || p.Quota == nil || p.Quota.Name != "max_connections" || p.Quota.Used != 1 {
		t.Errorf("a second connection: %d %+v", answer.StatusCode, p)
	}
	_ = stream.Body.Close()
	for end := time.Now().Add(20 * time.Second); ; {
		if answer, _ = b.do("GET", "/v1/limits", nil, asAcme()...); answer.StatusCode == http.StatusOK {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after the stream has ended: %d", answer.StatusCode)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A call over the older SSE transport of MCP counts against max_connections until its answer is there, not only until its message was taken.
func TestCallsOverSSECountAsConnections(t *testing.T) {
	t.Parallel()
	b := setup(t, withAdmin)
	box := b.sandbox(asAcme()...)
	const most = 3 // the stream and two calls
	get[wire.Tenant](b, http.StatusOK, "PUT", "/v1/tenants/acme", fmt.Sprintf(`{"max_connections": %d}`, most), asOps()...)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.web.URL+"/sandbox/sse", nil)
	testbed.Must(t, err)
	request.Header.Set("Authorization", "Bearer "+key)
	stream, err := http.DefaultClient.Do(request)
	testbed.Must(t, err)
	t.Cleanup(func() { _ = stream.Body.Close() })
	lines := bufio.NewScanner(stream.Body)
	next := func(prefix string) string {
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), prefix); ok {
				return data
			}
		}
		t.Fatalf("the stream has ended: %v", lines.Err())
		return ""
	}
	to := next("data: ")
	call := message("tools/call", map[string]any{"name": "execute_python_code", "arguments": map[string]any{"sandbox_id": box, "code": "block"}})
	for range most - 1 {
		if answer, body := b.do("POST", to, call, append(asAcme(), "Content-Type", "application/json")...); answer.StatusCode != http.StatusAccepted {
			t.Fatalf("a call: %d %s", answer.StatusCode, body)
		}
	}
	for _, one := range [][2]string{{"POST", to}, {"POST", "/mcp/sandbox"}, {"GET", "/v1/limits"}} {
		p := b.problem(farm.CodeExhausted, http.StatusTooManyRequests, one[0], one[1], call, append(asAcme(), "Content-Type", "application/json")...)
		testbed.Check(t, p.Quota != nil && p.Quota.Name == "max_connections" && p.Quota.Used == most, "%v beyond the quota: %+v", one, p)
	}
	close(b.worker.gate)
	for range most - 1 {
		next("event: message")
	}
	testbed.Until(t, "the calls are counted no more", func() bool {
		answer, _ := b.do("GET", "/v1/limits", nil, asAcme()...)
		return answer.StatusCode == http.StatusOK
	})
}

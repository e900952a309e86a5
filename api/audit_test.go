package api_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/e2b"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// audited waits until the audit of a tenant has so many entries, and gives them, newest first.
func (b *bundle) audited(query string, n int) []wire.AuditEntry {
	b.t.Helper()
	var entries []wire.AuditEntry
	testbed.Until(b.t, fmt.Sprintf("%d entries of %s in the audit", n, query), func() bool {
		entries = get[wire.List[wire.AuditEntry]](b, http.StatusOK, "GET", "/v1/audit?limit=200&"+query, nil, bearer("admin")...).Items
		entries = slices.DeleteFunc(entries, func(e wire.AuditEntry) bool { return e.Route == "GET /v1/audit" }) // of this function, where reads are in the audit
		return len(entries) >= n
	})
	return entries
}

func TestAudit(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes)
	made := b.newKey(wire.KeyRequest{Tenant: "blue"}, "admin")
	mine := bearer(made.Secret)
	box := b.sandbox(mine...)
	job := get[wire.Job](b, http.StatusOK, "POST", "/v1/sandboxes/"+box+"/execute?wait=20", `{"code":"print topsecret","env":{"A":"hidden"}}`, mine...)
	b.do("PATCH", "/v1/sandboxes/"+box, `{"name":"renamed"}`, mine...)
	b.do("POST", "/v1/sandboxes/"+box+"/execute", `{"code":1}`, mine...) // refused
	b.do("GET", "/v1/sandboxes/"+box, nil, mine...)                      // a read
	b.do("GET", "/v1/keys", nil, mine...)                                // without the scope
	b.do("GET", "/v1/jobs", nil, bearer("nonsense")...)                  // without a key

	got := b.audited("tenant=blue", 5)
	if len(got) != 5 {
		t.Fatalf("%d entries: %+v", len(got), got)
	}
	for i, want := range []wire.AuditEntry{
		{Route: "GET /v1/keys", Status: http.StatusForbidden},
		{Route: "POST /v1/sandboxes/:id/execute", Status: http.StatusBadRequest, Subject: box},
		{Route: "PATCH /v1/sandboxes/:id", Status: http.StatusOK, Subject: box},
		{Route: "POST /v1/sandboxes/:id/execute", Status: http.StatusAccepted, Subject: box, JobID: job.ID, SandboxID: box},
		{Route: "POST /v1/sandboxes", Status: http.StatusAccepted, SandboxID: box},
	} {
		e := got[i]
		if e.Route != want.Route || e.Status != want.Status || e.Subject != want.Subject || want.JobID != "" && e.JobID != want.JobID || e.SandboxID != want.SandboxID ||
			e.Tenant != "blue" || e.KeyID != made.Key.ID || e.From != "127.0.0.1" || !strings.HasPrefix(e.RequestID, "req_") || e.At.IsZero() {
			t.Errorf("entry %d: %+v, want %+v", i, e, want)
		}
	}
	b.do("GET", "/v1/keys", nil, bearer("admin")...)
	b.do("PATCH", "/v1/tenants/blue", `{"set":{"max_sandboxes":5}}`, bearer("admin")...)
	b.do("PUT", "/v1/tenants/green", `{}`, bearer("admin")...)
	admin := b.audited("tenant=acme", 3)
	if len(admin) != 3 {
		t.Fatalf("of the admin, who made a key, set quotas and read the rest: %+v", admin)
	}
	for i, want := range []wire.AuditEntry{
		{Route: "PUT /v1/tenants/:name", Subject: "green"}, {Route: "PATCH /v1/tenants/:name", Subject: "blue"}, {Route: "POST /v1/keys", Subject: made.Key.ID},
	} {
		if admin[i].Route != want.Route || admin[i].Subject != want.Subject {
			t.Errorf("entry %d of the admin: %+v, want %+v", i, admin[i], want)
		}
	}
	strangers := 0
	for _, e := range b.audited("", 9) {
		if e.Tenant == "" && e.Status == http.StatusUnauthorized && e.Route == "GET /v1/jobs" {
			strangers++
		}
	}
	testbed.Diff(t, "entries of a request without a valid key", 1, strangers)
	for _, secret := range []string{"topsecret", "hidden", made.Secret, "nonsense"} {
		for _, key := range b.redis.Keys() {
			if strings.HasSuffix(key, ":audit") && strings.Contains(b.stream(key), secret) {
				t.Errorf("the audit holds %q", secret)
			}
		}
		if strings.Contains(b.log.String(), secret) {
			t.Errorf("the log holds %q", secret)
		}
	}
	if !strings.Contains(b.log.String(), `"msg":"audit"`) {
		t.Error("the log lacks the audit")
	}
}

// stream is the text of a Redis stream.
func (b *bundle) stream(key string) string {
	b.t.Helper()
	entries, err := b.redis.Stream(key)
	testbed.Must(b.t, err)
	var text strings.Builder
	for _, e := range entries {
		text.WriteString(strings.Join(e.Values, " "))
	}
	return text.String()
}

func TestAuditOfToolsAndReads(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes, func(c *api.Config, _ *api.Deps) { c.AuditReads = true })
	call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"create_sandbox","arguments":{}}}`
	b.do("POST", "/mcp", call, append(bearer("run"), "Accept", "application/json, text/event-stream", "Content-Type", "application/json")...)
	b.do("GET", "/v1/jobs", nil, bearer("read")...)
	routes := ""
	for _, e := range b.audited("tenant=acme", 2) {
		routes += e.Route + " " + e.JobID + "\n"
	}
	if !strings.Contains(routes, "POST /mcp job_") || !strings.Contains(routes, "GET /v1/jobs") {
		t.Errorf("routes %s", routes)
	}
}

// A job that is canceled by a tool is in the audit as one that is canceled over REST.
func TestAuditOfCancels(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes)
	mine := bearer("run")
	box := b.sandbox(mine...)
	cancel := map[string]func(id string){
		"DELETE /v1/jobs/:id": func(id string) { b.do("DELETE", "/v1/jobs/"+id, nil, mine...) },
		"POST /mcp": func(id string) {
			call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"cancel_job","arguments":{"job_id":"` + id + `"}}}`
			b.do("POST", "/mcp", call, append(mine, "Accept", "application/json, text/event-stream", "Content-Type", "application/json")...)
		},
	}
	entries := 1 // of the sandbox
	for route, stop := range cancel {
		job := get[wire.Job](b, http.StatusAccepted, "POST", "/v1/sandboxes/"+box+"/execute", `{"code":"block"}`, mine...)
		stop(job.ID)
		entries += 2
		found := 0
		for _, e := range b.audited("tenant=acme", entries) {
			if e.Route == route && e.Tenant == "acme" && (e.Subject == job.ID || e.JobID == job.ID && e.SandboxID == box) && e.Status < 300 {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%d entries of a cancel by %s", found, route)
		}
	}
	close(b.worker.gate)
}

// What a tool does without a job is in the audit, as it is over REST, and so is what a key may not have done by a tool. Nothing is there twice.
func TestAuditOfToolsWithoutJobs(t *testing.T) {
	t.Parallel()
	for _, reads := range []bool{false, true} {
		f := setupLiveAgent(t, agenttest.StartWithFiles(t), withScopes, func(c *api.Config, _ *api.Deps) { c.AuditReads = reads })
		box := f.sandbox(bearer("run")...)
		in := func(more ...any) map[string]any {
			args := map[string]any{"sandbox_id": box}
			for i := 0; i < len(more); i += 2 {
				args[more[i].(string)] = more[i+1]
			}
			return args
		}
		process := f.tool("start_process", in("command", "exec sleep 1000"), bearer("run")...).field("process_id")
		f.tool("get_port_url", in("port", 80), bearer("run")...)
		for range 3 { // it ends, is forgotten, and is not found
			f.tool("stop_process", in("process_id", process), bearer("run")...)
		}
		f.tool("start_process", in("command", "true"), bearer("read")...)  // without the scope
		f.tool("close_sandbox", in(), bearer("read")...)                   // without the scope
		f.do("POST", "/mcp/tools/create_sandbox", "{}", bearer("read")...) // without the scope, and over HTTP
		got := f.audited("tenant=acme", 9)
		if len(got) != 9 {
			t.Fatalf("%d entries: %+v", len(got), got)
		}
		for i, want := range []wire.AuditEntry{
			{Route: "POST /mcp/tools/:tool", Status: http.StatusForbidden},
			{Route: "POST /mcp", Status: http.StatusForbidden},
			{Route: "POST /mcp", Status: http.StatusForbidden},
			{Route: "POST /mcp", Status: http.StatusNotFound, SandboxID: box, Subject: process},
			{Route: "POST /mcp", Status: http.StatusOK, SandboxID: box, Subject: process},
			{Route: "POST /mcp", Status: http.StatusOK, SandboxID: box, Subject: process},
			{Route: "POST /mcp", Status: http.StatusOK, SandboxID: box},
			{Route: "POST /mcp", Status: http.StatusOK, SandboxID: box, Subject: process},
		} {
			if e := got[i]; e.Route != want.Route || e.Status != want.Status || e.SandboxID != want.SandboxID || e.Subject != want.Subject || e.Tenant != "acme" || e.KeyID == "" {
				t.Errorf("entry %d: %+v, want %+v", i, e, want)
			}
		}
	}
}

// Calls that carry a token in place of a key are in the audit as those with a key: refusals, changes, and reads where they are asked for.
func TestAuditOfTokens(t *testing.T) {
	t.Parallel()
	var later atomic.Int64
	f := setupLiveAgent(t, agenttest.StartWithFiles(t), withScopes, func(c *api.Config, d *api.Deps) {
		c.AuditReads, c.PreviewDomain = true, "preview.example.com"
		d.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	})
	box, port := f.sandbox(bearer("run")...), guest(t, echoes)
	made := get[e2bMade](f.bundle, http.StatusOK, "POST", "/e2b/v2/sandboxes/"+e2b.ShownID(box)+"/connect", `{}`, "X-API-KEY", "run")
	link := f.link(box, port, bearer("run")...)
	_, token, _ := strings.Cut(link.RawQuery, "=")
	login, _ := f.do("POST", "/session", `{"key":"run"}`, append(ownPage, "Content-Type", "application/json")...)
	cookie := append([]string{"Cookie", login.Cookies()[0].Name + "=" + login.Cookies()[0].Value}, ownPage...)
	host := func(port string) []string {
		return []string{"Host", port + "-" + made.SandboxID + ".preview.example.com"}
	}
	named := []string{"E2b-Sandbox-Id", made.SandboxID, "Content-Type", "application/json"}
	for name, c := range map[string]struct {
		method, target string
		headers        []string
		want           wire.AuditEntry // without a tenant: of nobody
	}{
		"E2B, refused":         {"POST", "/e2b/process.Process/Start", append(named, "X-Access-Token", "x"), wire.AuditEntry{Route: "POST /e2b/process.Process/Start", Status: 401}},
		"E2B, traffic only":    {"POST", "/e2b/filesystem.Filesystem/Remove", append(named, "X-Access-Token", made.TrafficAccessToken), wire.AuditEntry{Route: "POST /e2b/filesystem.Filesystem/Remove", Status: 401}},
		"E2B, a change":        {"POST", "/e2b/execute", append(named, "X-Access-Token", made.EnvdAccessToken), wire.AuditEntry{Route: "POST /e2b/execute", Status: 400, Tenant: "acme", Subject: box}},
		"E2B, a read":          {"GET", "/contexts", append(host(e2b.InterpreterPort), "X-Access-Token", made.EnvdAccessToken), wire.AuditEntry{Route: "GET /contexts", Status: 200, Tenant: "acme", Subject: box}},
		"signed URL, refused":  {"GET", "/e2b/files" + signedFile("a", "read", "", "x"), nil, wire.AuditEntry{Route: "GET /e2b/files", Status: 401}},
		"signed URL, accepted": {"GET", "/files" + signedFile("missing", "read", "", made.EnvdAccessToken), host(e2b.EnvdPort), wire.AuditEntry{Route: "GET /files", Status: 404, Tenant: "acme", Subject: box}},
		"link, refused":        {"GET", "/p/" + token + "x/", nil, wire.AuditEntry{Route: "GET /p/:token/*path", Status: 401}},
		"link, accepted":       {"GET", "/p/" + token + "/", nil, wire.AuditEntry{Route: "GET /p/:token/*path", Status: 200, Tenant: "acme", Subject: box}},
		"host, refused":        {"POST", "/", host(port), wire.AuditEntry{Route: "POST /*path", Status: 401}},
		"host, accepted":       {"POST", "/?sandfarm_link=" + token, host(port), wire.AuditEntry{Route: "POST /*path", Status: 200, Tenant: "acme", Subject: box}},
		"log-out, refused":     {"DELETE", "/session", []string{"Sec-Fetch-Site", "cross-site"}, wire.AuditEntry{Route: "DELETE /session", Status: 403}},
		"log-out":              {"DELETE", "/session", cookie, wire.AuditEntry{Route: "DELETE /session", Status: 200, Tenant: "acme"}},
	} {
		later.Add(int64(2 * time.Second)) // entries of nobody are a second apart
		answer, text := f.do(c.method, c.target, nil, c.headers...)
		if answer.StatusCode != c.want.Status {
			t.Errorf("%s: %d %s", name, answer.StatusCode, text)
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			page := get[wire.List[wire.AuditEntry]](f.bundle, http.StatusOK, "GET", "/v1/audit?limit=200", nil, bearer("admin")...)
			if slices.ContainsFunc(page.Items, func(e wire.AuditEntry) bool {
				return e.Route == c.want.Route && e.Status == c.want.Status && e.Tenant == c.want.Tenant && e.Subject == c.want.Subject && e.From == "127.0.0.1"
			}) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: no such entry in %+v", name, page.Items)
			}
		}
	}
	for _, secret := range []string{token, made.EnvdAccessToken, made.TrafficAccessToken} {
		if strings.Contains(f.log.String(), secret) {
			t.Error("the log holds a token")
		}
	}
}

// The status of an answer of a sandbox is its code's choice: it writes no refusals, and makes no labels.
func TestAnswersOfSandboxesAreNoRefusals(t *testing.T) {
	t.Parallel()
	f := setupLiveAgent(t, agenttest.StartPlain(t), withScopes)
	box, port := f.sandbox(bearer("run")...), guest(t, func(w http.ResponseWriter, r *http.Request) {
		status, _ := strconv.Atoi(r.URL.Query().Get("status"))
		w.Header().Set("Content-Length", "2")
		w.WriteHeader(status) // and no body: the answer breaks off
	})
	link := f.link(box, port, bearer("run")...)
	_, token, _ := strings.Cut(link.RawQuery, "=")
	for _, status := range []string{"401", "403", "799"} {
		for _, target := range []string{"/p/" + token + "/", "/v1/sandboxes/" + box + "/ports/" + port + "/"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.web.URL+target+"?status="+status, nil)
			testbed.Must(t, err)
			r.Header.Set(bearer("run")[0], bearer("run")[1])
			if answer, err := f.web.Client().Do(r); err == nil {
				_ = answer.Body.Close()
			}
		}
	}
	f.do("PATCH", "/v1/sandboxes/"+box, `{"name":"renamed"}`, bearer("run")...) // entries are written in order
	for _, e := range f.audited("tenant=acme", 3) {                             // of the create and the link, too
		if e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden {
			t.Errorf("the audit has %+v", e)
		}
	}
	_, text := f.do("GET", "/metrics", nil, bearer("admin")...)
	for _, route := range []string{"/p/:token/*path", "/v1/sandboxes/:id/ports/:port/*path"} {
		if line := `sandfarm_http_requests_total{method="GET",route="` + route + `",status="sandbox"} 3`; !strings.Contains(string(text), line) {
			t.Errorf("the metrics lack %s", line)
		}
	}
}

// A flood of requests without a key does not fill the audit.
func TestAuditOfStrangersIsBounded(t *testing.T) {
	t.Parallel()
	at := time.Now()
	b := setup(t, withScopes, func(_ *api.Config, d *api.Deps) { d.Now = func() time.Time { return at } })
	for range 50 {
		b.do("GET", "/v1/jobs", nil, bearer("nonsense")...)
	}
	b.newKey(wire.KeyRequest{Tenant: "blue"}, "admin")
	n, missed := 0, 0
	for _, e := range b.audited("", 2) {
		if missed += e.Missed; e.Tenant == "" {
			n++
		}
	}
	if n != 1 || missed != 49 {
		t.Errorf("%d entries, %d missed", n, missed)
	}
}

package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestReadinessNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	var seconds atomic.Int64
	b := setup(t, func(_ *api.Config, d *api.Deps) {
		d.Now = func() time.Time { return time.Unix(1_800_000_000+seconds.Load(), 0) }
	})
	if got := get[wire.Ready](b, http.StatusOK, "GET", "/readyz", nil); got.Status != "ready" || !got.Parts["workers"].OK {
		t.Fatalf("%+v", got)
	}
	large := "/v1/sandboxes/" + b.sandbox() + "/files/large.bin"
	b.blobs.mu.Lock()
	b.blobs.down = true
	b.blobs.mu.Unlock()
	b.problem(farm.CodeUnavailable, http.StatusServiceUnavailable, "PUT", large, strings.NewReader(strings.Repeat("x", 5<<20)))
	if got := get[wire.Ready](b, http.StatusOK, "GET", "/readyz", nil); got.Status != "ready" { // anybody may ask as often as they like, so the parts are checked once a second
		t.Errorf("the parts were checked twice in a second: %+v", got)
	}
	seconds.Add(1)
	got := get[wire.Ready](b, http.StatusServiceUnavailable, "GET", "/readyz", nil)
	if got.Status != "unready" || got.Parts["storage"].OK || got.Parts["storage"].Detail == "" || !got.Parts["redis"].OK {
		t.Fatalf("%+v", got)
	}
	testbed.Must(t, b.store.RemoveWorker(t.Context(), "wrk_1"))
	testbed.Must(t, b.store.Heartbeat(t.Context(), farm.Worker{ID: "wrk_2", Node: "n2", Problem: "cannot dial 10.1.2.3"}))
	seconds.Add(1)
	if got := get[wire.Ready](b, http.StatusServiceUnavailable, "GET", "/readyz", nil); got.Parts["workers"].OK || strings.Contains(got.Parts["workers"].Detail, "10.1.2.3") {
		t.Fatalf("%+v", got) // it is for everybody
	}
	testbed.Must(t, b.store.RemoveWorker(t.Context(), "wrk_2"))
	seconds.Add(1)
	if got := get[wire.Ready](b, http.StatusServiceUnavailable, "GET", "/readyz", nil); got.Parts["workers"].OK {
		t.Fatalf("%+v", got)
	}
	b.redis.SetError("LOADING Redis is loading the dataset in memory")
	seconds.Add(1)
	if got := get[wire.Ready](b, http.StatusServiceUnavailable, "GET", "/readyz", nil); got.Parts["redis"].OK {
		t.Fatalf("%+v", got)
	}
	get[wire.Health](b, http.StatusOK, "GET", "/healthz", nil)
	p := b.problem(farm.CodeUnavailable, http.StatusServiceUnavailable, "POST", "/v1/run", `{"code":"1"}`)
	if strings.Contains(p.Detail, "LOADING") {
		t.Errorf("the cause must stay inside: %s", p.Detail)
	}
	answer, _ := b.do("GET", "/v1/sandboxes", nil)
	if answer.Header.Get("Retry-After") == "" {
		t.Error("503 must say when to try again")
	}
}

func TestExhaustionIsReported(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *api.Config, _ *api.Deps) { c.Limits = farm.DefaultLimits(); c.Limits.MaxWaiting = 3 })
	box := b.sandbox()
	for range 20 {
		answer, text := b.do("POST", "/v1/sandboxes/"+box+"/execute", `{"code":"block"}`)
		if answer.StatusCode == http.StatusAccepted {
			continue
		}
		if answer.StatusCode != http.StatusTooManyRequests || answer.Header.Get("Retry-After") == "" || !strings.Contains(string(text), `"exhausted"`) {
			t.Fatalf("%d %s", answer.StatusCode, text)
		}
		close(b.worker.gate)
		return
	}
	t.Fatal("the log line is incomplete")
}

func TestFarmDescribesItself(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.sandbox()
	if got := get[wire.Items[wire.Image]](b, http.StatusOK, "GET", "/v1/images", nil); got.Items[0].Name != "python" {
		t.Errorf("images %+v", got)
	}
	if got := get[wire.Items[wire.Worker]](b, http.StatusOK, "GET", "/v1/workers", nil); got.Items[0].ID != "wrk_1" || got.Items[0].Queues[0] != "cpu" {
		t.Errorf("workers %+v", got)
	}
	want := []wire.Queue{{Name: "cpu"}, {Name: "node-n1", Depth: 2, Running: 1}}
	testbed.Diff(t, "", want, get[wire.Items[wire.Queue]](b, http.StatusOK, "GET", "/v1/queues", nil).Items)
	// The public limits show every limit of the domain.
	text, err := json.Marshal(farm.DefaultLimits())
	testbed.Must(t, err)
	var limits map[string]any
	testbed.Must(t, json.Unmarshal(text, &limits))
	testbed.Diff(t, "", limits, get[map[string]any](b, http.StatusOK, "GET", "/v1/limits", nil))
	_, metrics := b.do("GET", "/metrics", nil)
	for _, line := range []string{
		`sandfarm_http_requests_total{method="POST",route="/v1/sandboxes",status="201"} 1`, `sandfarm_jobs_accepted_total{kind="create"} 1`,
		`sandfarm_queue_depth{queue="node-n1"} 2`, "sandfarm_workers 1",
	} {
		if !strings.Contains(string(metrics), line) {
			t.Errorf("metrics lack %s", line)
		}
	}
	if _, text := b.do("GET", "/docs", nil); !strings.Contains(string(text), `href="./">Dashboard<`) || !strings.Contains(string(text), `rel="icon"`) {
		t.Errorf("the page does not lead back, or has no icon: %s", text)
	}
	for path, kind := range map[string]string{"/docs": "text/html", "/docs/app.js": "text/javascript", "/docs/style.css": "text/css"} {
		answer, content := b.do("GET", path, nil)
		if answer.StatusCode != http.StatusOK || !strings.HasPrefix(answer.Header.Get("Content-Type"), kind) || len(content) < 500 {
			t.Errorf("%s: %d %s, %d bytes", path, answer.StatusCode, answer.Header.Get("Content-Type"), len(content))
		}
		if strings.Contains(string(content), "https://") || strings.Contains(string(content), "<script>") || strings.Contains(string(content), "style=") {
			t.Errorf("%s needs something from elsewhere, or inline code", path)
		}
	}
}

func TestUnknownImagesWhileNoWorkerIsUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	testbed.Must(t, b.store.RemoveWorker(t.Context(), "wrk_1"))
	get[wire.Created](b, http.StatusAccepted, "POST", "/v1/sandboxes", `{"image":"mine"}`)
	testbed.Must(t, b.store.Heartbeat(t.Context(), farm.Worker{ID: "w2", Images: []farm.Image{{Name: "python"}}}))
	b.problem(farm.CodeInvalid, http.StatusUnprocessableEntity, "POST", "/v1/sandboxes", `{"image":"mine"}`)
	testbed.Must(t, b.store.Heartbeat(t.Context(), farm.Worker{ID: "w2", Images: []farm.Image{{Name: "mine"}}}))
	get[wire.Created](b, http.StatusAccepted, "POST", "/v1/sandboxes", `{"image":"mine"}`) // at once, although the list is cached
}

func TestCreateIsUnavailableWhileNoEngineAnswers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	sick := farm.Worker{ID: "wrk_1", Problem: "The container engine does not answer."}
	testbed.Must(t, b.store.Heartbeat(t.Context(), sick))
	for _, path := range []string{"/v1/sandboxes", "/v1/run"} {
		body := map[string]string{"/v1/sandboxes": `{}`, "/v1/run": `{"code":"1"}`}[path]
		p := b.problem(farm.CodeUnavailable, http.StatusServiceUnavailable, "POST", path, body)
		if !strings.Contains(p.Detail, sick.Problem) {
			t.Errorf("%s: %q does not name the problem", path, p.Detail)
		}
	}
	testbed.Must(t, b.store.Heartbeat(t.Context(), farm.Worker{ID: "wrk_1", Images: []farm.Image{{Name: "python", Languages: []string{"python"}}}}))
	get[wire.Created](b, http.StatusAccepted, "POST", "/v1/sandboxes", `{}`)
}

func TestLogContainsNoSecrets(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys, func(_ *api.Config, d *api.Deps) { d.Logger = nil })
	log := &testbed.Log{}
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	server, err := api.New(api.Config{Keys: []api.KeyConfig{{Tenant: "acme", SHA256: hash(key)}}}, api.Deps{
		Store: b.store, Submitter: b.worker, Queues: depths{}, Blobs: b.blobs, Logger: logger,
	})
	testbed.Must(t, err)
	defer server.Stop()
	b.web.Config.Handler = server.Handler()
	box := b.sandbox("X-API-Key", key)
	get[wire.Job](b, http.StatusOK, "POST", "/v1/sandboxes/"+box+"/execute?wait=20&token=query-secret", `{"code":"make secret.txt","env":{"A":"env-secret"}}`, "X-API-Key", key)
	b.web.Close() // waits for the handlers and their log lines
	for _, secret := range []string{key, hash(key), "env-secret", "query-secret", "secret.txt", "s3.test"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log holds %q", secret)
		}
	}
	if !strings.Contains(log.String(), "route=/v1/sandboxes/:id/execute") || !strings.Contains(log.String(), "tenant=acme") {
		t.Errorf("the log lacks the request: %s", log)
	}
}

// brokenStore panics when a sandbox is read.
type brokenStore struct{ *store.Store }

func (brokenStore) Sandbox(context.Context, farm.Ref) (*farm.Sandbox, error) { panic("boom-inside") }

func TestPanicIsAProblem(t *testing.T) {
	t.Parallel()
	b := setup(t)
	server, err := api.New(api.Config{}, api.Deps{Store: brokenStore{b.store}, Submitter: b.worker, Queues: depths{}, Blobs: b.blobs})
	testbed.Must(t, err)
	defer server.Stop()
	b.web.Config.Handler = server.Handler()
	p := b.problem(farm.CodeInternal, http.StatusInternalServerError, "GET", "/v1/sandboxes/"+farm.NewID(farm.SandboxPrefix), nil)
	if strings.Contains(p.Detail, "boom") {
		t.Error("the text of a panic must stay inside")
	}
}

func TestConfigReportsAllProblems(t *testing.T) {
	t.Parallel()
	_, err := api.New(api.Config{
		Listen: "nonsense",
		Keys:   []api.KeyConfig{{Tenant: "", SHA256: "12"}, {Tenant: "a/b", SHA256: hash("x")}, {Tenant: "c", SHA256: strings.ToUpper(hash("x"))}, {Tenant: "d", SHA256: hash("y"), Scopes: []string{"root"}}},
	}, api.Deps{})
	for _, want := range []string{"api.listen", "api.keys[0].sha256", "api.keys[0].tenant", "api.keys[1].tenant", "api.keys[2]: the same key", "api.keys[3].scopes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	for _, listen := range []string{"0.0.0.0:8000", ":8000", "10.1.2.3:80", "example.com:80"} {
		if _, err := api.New(api.Config{Listen: listen}, api.Deps{}); err == nil || !strings.Contains(err.Error(), "SANDFARM_API_REQUIRE_KEYS=true") {
			t.Errorf("%s without keys must be refused, with what to do: %v", listen, err)
		}
		if _, err := api.New(api.Config{Listen: listen, Keys: []api.KeyConfig{{Tenant: "a", SHA256: hash("x")}}}, api.Deps{}); err != nil {
			t.Errorf("%s with a key: %v", listen, err)
		}
		if _, err := api.New(api.Config{Listen: listen, RequireKeys: true}, api.Deps{}); err != nil {
			t.Errorf("%s with require_keys: %v", listen, err)
		}
	}
	for _, listen := range []string{"127.0.0.1:0", "[::1]:0", "localhost:0"} {
		if _, err := api.New(api.Config{Listen: listen}, api.Deps{}); err != nil {
			t.Errorf("%s: %v", listen, err)
		}
	}
}

func TestStartAndStop(t *testing.T) {
	t.Parallel()
	b := setup(t)
	server, err := api.New(api.Config{Listen: "127.0.0.1:0", StallTimeout: time.Second}, api.Deps{Store: b.store, Submitter: b.worker, Queues: depths{}, Blobs: b.blobs})
	testbed.Must(t, err)
	if server.Addr() != "" {
		t.Fatal("no address before Start")
	}
	testbed.Must(t, server.Start(t.Context()))
	box := b.sandbox()
	job := get[wire.Job](b, http.StatusAccepted, "POST", "/v1/sandboxes/"+box+"/execute", `{"code":"block"}`)

	// A body that stops arriving is ended; the answer says so.
	stalled, err := net.Dial("tcp", server.Addr())
	testbed.Must(t, err)
	defer func() { _ = stalled.Close() }()
	fmt.Fprintf(stalled, "POST /v1/run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	answer, err := http.ReadResponse(bufio.NewReader(stalled), nil)
	if err != nil || answer.StatusCode != http.StatusRequestTimeout {
		t.Fatalf("stalled body: %v %v", answer, err)
	}

	// The answer to a request whose body is not read does not wait for the body for ever, and the connection ends.
	unread, err := net.Dial("tcp", server.Addr())
	testbed.Must(t, err)
	defer func() { _ = unread.Close() }()
	_ = unread.SetReadDeadline(time.Now().Add(time.Minute)) // detects a hang
	fmt.Fprintf(unread, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n")
	if all, err := io.ReadAll(unread); err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 200 ") {
		t.Fatalf("unread body: %q %v", all, err)
	}

	// The deadline of an answer is cleared from its connection: an event stream and the next request outlive it.
	idle := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	defer idle.CloseIdleConnections()
	for i := range 2 {
		answer, err := idle.Get("http://" + server.Addr() + "/docs/app.js")
		if err != nil {
			t.Fatalf("request %d on one connection: %v", i, err)
		}
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			t.Fatalf("request %d on one connection: %v", i, err)
		}
		_ = answer.Body.Close()
		<-time.After(1200 * time.Millisecond)
	}

	// A wait that is longer than the stall timeout is not a stall, and ends with the server.
	type outcome struct {
		Status int
		Err    error
	}
	asked, waited := make(chan struct{}, 2), make(chan outcome, 2)
	trace := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { asked <- struct{}{} }})
	ask := func(path string) {
		request, err := http.NewRequestWithContext(trace, http.MethodGet, "http://"+server.Addr()+path, http.NoBody)
		if err != nil {
			waited <- outcome{Err: err}
			return
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			waited <- outcome{Err: err}
			return
		}
		_, err = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		waited <- outcome{answer.StatusCode, err}
	}
	go ask("/v1/jobs/" + job.ID + "?wait=60")
	go ask("/v1/jobs/" + job.ID + "/events")
	for range 2 {
		<-asked
	}
	select {
	case early := <-waited:
		t.Fatalf("ended before the server did: %+v", early)
	case <-time.After(1500 * time.Millisecond):
	}
	server.Stop()
	server.Stop()
	ended := map[outcome]bool{<-waited: true, <-waited: true}
	if diff := cmp.Diff(map[outcome]bool{{Status: http.StatusOK}: true, {Status: http.StatusAccepted}: true}, ended); diff != "" { // what goes on is cut off, which is an error
		t.Errorf("the events and the wait (-want +got):\n%s", diff)
	}
	if _, err := net.DialTimeout("tcp", server.Addr(), time.Second); err == nil {
		t.Error("a stopped server must not listen")
	}
	if err := server.Start(t.Context()); err == nil {
		t.Error("a stopped server does not start again")
	}
	close(b.worker.gate)
}

func TestKeysFromTheEnvironment(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]api.KeyConfig{
		"acme: " + hash("x"):             {Tenant: "acme", SHA256: hash("x")},
		"acme:" + hash("x") + ":read":    {Tenant: "acme", SHA256: hash("x"), Scopes: []string{"read"}},
		"a:" + hash("x") + ":run +admin": {Tenant: "a", SHA256: hash("x"), Scopes: []string{"run", "admin"}},
	} {
		got := api.KeyConfig{Scopes: []string{"left over"}}
		if err := got.UnmarshalText([]byte(text)); err != nil || !cmp.Equal(want, got) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"no-colon", "", "a:b:c:d"} {
		if err := new(api.KeyConfig).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is read as a key", text)
		}
	}
}

func TestFleetEventsAreListed(t *testing.T) {
	t.Parallel()
	b := setup(t, withScopes)
	for i := range 3 {
		note := store.FleetNote{Event: farm.FleetEvent{At: time.Unix(int64(i), 0), Kind: farm.FleetWorkerLost, Node: "n1", Host: "h1", Worker: fmt.Sprint("w", i), Jobs: i}}
		if noted, err := b.store.NoteFleet(t.Context(), note); err != nil || !noted {
			t.Fatal(noted, err)
		}
	}
	admin := []string{"X-API-Key", string(farm.ScopeAdmin)}
	for limit, want := range map[string]int{"": 3, "?limit=1": 1, "?limit=2": 2, "?limit=199": 3, "?limit=200": 3} {
		got := get[wire.Items[wire.FleetEvent]](b, http.StatusOK, "GET", "/v1/events"+limit, nil, admin...)
		if len(got.Items) != want || got.Items[0].WorkerID != "w2" || got.Items[0].Jobs != 2 || got.Items[0].Kind != "worker_lost" || got.Items[0].ID == "" {
			t.Errorf("%s: %+v", limit, got.Items)
		}
	}
	for _, limit := range []string{"0", "201", "x"} {
		if answer, _ := b.do("GET", "/v1/events?limit="+limit, nil, admin...); answer.StatusCode != http.StatusBadRequest {
			t.Errorf("limit %s is answered %d", limit, answer.StatusCode)
		}
	}
}

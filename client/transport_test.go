package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestNewRefusesBadAddresses(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1:8000", "ftp://host", "http://", "http://host?x=1", "http://user:pass@host", "http://host/%zz"} {
		if _, err := client.New(address); err == nil {
			t.Errorf("New(%q) gave no error", address)
		}
	}
	for _, address := range []string{"http://host:1/v1", "http://host:1/v1/", " http://host:1/\n"} { // as a farm prints it, or a file holds it
		if c, err := client.New(address); err != nil || c.URL() != "http://host:1" {
			t.Errorf("New(%q): %v", address, err)
		}
	}
	c, err := client.New("")
	if err != nil || c.URL() != client.DefaultURL {
		t.Errorf("New of nothing: %v, %v; want the default address", c, err)
	}
}

func TestErrorCarriesTheProblem(t *testing.T) {
	t.Parallel()
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/page"): // a proxy's
			w.WriteHeader(http.StatusBadGateway)
			_, _ = w.Write([]byte("<html>"))
		default:
			w.Header().Set("Retry-After", "30")
			refuse(t, w, http.StatusTooManyRequests, "exhausted", "too many jobs")
		}
	}))
	_, err := c.Sandbox(t.Context(), "sbx_1")
	got, ok := errors.AsType[*client.Error](err)
	want := &client.Error{Status: 429, Code: "exhausted", Title: "Too Many Requests", Detail: "too many jobs", RequestID: "req_1", RetryAfter: 30 * time.Second}
	if !ok || cmp.Diff(want, got) != "" {
		t.Errorf("error %v: %s", err, cmp.Diff(want, got))
	}
	_, err = c.Sandbox(t.Context(), "page")
	if client.CodeOf(err) != "unavailable" {
		t.Errorf("a proxy's page gave %v, want the code of its status", err)
	}
}

func TestRetries(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		do    func(c *client.Client) error
		fault func(t *testing.T, w http.ResponseWriter)
		want  int // requests that the farm sees when the third would succeed
	}{
		"ReadAfterBrokenConnection": {do: get, fault: hangUp, want: 3},
		"ReadAfter503":              {do: get, fault: unavailable(""), want: 3},
		"ReadAfter503LongPause":     {do: get, fault: unavailable("3600"), want: 1},
		"ReadAfter502":              {do: get, fault: badGateway, want: 3},
		"ReadAfter500":              {do: get, fault: refuses(http.StatusInternalServerError, "internal", ""), want: 1},
		"PostAfterBrokenConnection": {do: post, fault: hangUp, want: 3},
		"PostAfter503":              {do: post, fault: unavailable(""), want: 3},
		"PostAfter502":              {do: post, fault: badGateway, want: 3},
		"DeleteAfter502":            {do: remove, fault: badGateway, want: 1},
		"WriteAfter502":             {do: write, fault: badGateway, want: 1},
		"DeleteAfter503":            {do: remove, fault: unavailable(""), want: 1},
		"PatchAfter503":             {do: change, fault: unavailable(""), want: 1},
		"WriteAfter503":             {do: write, fault: unavailable(""), want: 1},
		"ReadAfter429":              {do: get, fault: tooMany(""), want: 3},
		"ReadAfter429ShortPause":    {do: get, fault: tooMany("1"), want: 3},
		"ReadAfter429LongPause":     {do: get, fault: tooMany("3600"), want: 1},
		"PostAfter429":              {do: post, fault: tooMany(""), want: 3},
		"DeleteAfter429":            {do: remove, fault: tooMany(""), want: 3},
		"WriteAfter429":             {do: write, fault: tooMany(""), want: 1},
		"QuotaIsUsedUp":             {do: post, fault: quota("1"), want: 3},
		"QuotaIsTooSmall":           {do: post, fault: quota(""), want: 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var keys []string
			c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				keys = append(keys, r.Header.Get("Idempotency-Key"))
				n := len(keys)
				mu.Unlock()
				if n < 3 {
					test.fault(t, w)
					return
				}
				reply(t, w, http.StatusOK, wire.Job{ID: "job_1", State: "completed"})
			}))
			err := test.do(c)
			if (err == nil) != (test.want == 3) || len(keys) != test.want {
				t.Errorf("%d requests and error %v, want %d requests", len(keys), err, test.want)
			}
			for _, key := range keys {
				if key != keys[0] {
					t.Errorf("a repeated request has another Idempotency-Key: %q", keys)
				}
			}
			if strings.HasPrefix(name, "Post") && len(keys[0]) < 22 {
				t.Errorf("a POST has the Idempotency-Key %q", keys[0])
			}
		})
	}
}

func get(c *client.Client) error {
	_, err := c.Job(context.Background(), "job_1")
	return err
}

func post(c *client.Client) error {
	_, err := c.Run(context.Background(), wire.RunRequest{Code: "1"})
	return err
}

func remove(c *client.Client) error {
	_, err := c.Cancel(context.Background(), "job_1")
	return err
}

func change(c *client.Client) error {
	_, err := c.Update(context.Background(), "sbx_1", wire.UpdateRequest{})
	return err
}

func write(c *client.Client) error {
	return c.Files("sbx_1").Write(context.Background(), "a", strings.NewReader("x"))
}

// refuses answers with a status, and how long the caller should wait; "": for no time.
func refuses(status int, code, pause string) func(*testing.T, http.ResponseWriter) {
	return func(t *testing.T, w http.ResponseWriter) {
		t.Helper()
		if pause != "" {
			w.Header().Set("Retry-After", pause)
		}
		refuse(t, w, status, code, "not now")
	}
}

func tooMany(pause string) func(*testing.T, http.ResponseWriter) {
	return refuses(http.StatusTooManyRequests, "exhausted", pause)
}

// quota refuses by a quota, which a retry can succeed under if there is a pause.
func quota(pause string) func(*testing.T, http.ResponseWriter) {
	return func(t *testing.T, w http.ResponseWriter) {
		t.Helper()
		if pause != "" {
			w.Header().Set("Retry-After", pause)
		}
		w.WriteHeader(http.StatusTooManyRequests)
		testbed.Must(t, json.NewEncoder(w).Encode(wire.Problem{Code: "exhausted", Detail: "no", Quota: &wire.Quota{Name: "max_memory_mb"}}))
	}
}

func unavailable(pause string) func(*testing.T, http.ResponseWriter) {
	return refuses(http.StatusServiceUnavailable, "unavailable", pause)
}

func TestRetriesEnd(t *testing.T) {
	t.Parallel()
	n := 0
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n++
		unavailable("")(t, w)
	}))
	if err := get(c); client.CodeOf(err) != "unavailable" || n != 4 {
		t.Errorf("%d requests and %v, want 4 and the code unavailable", n, err)
	}
}

func TestRetryNotice(t *testing.T) {
	t.Parallel()
	n := 0
	farm := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n++; n == 1 {
			quota("1")(t, w)
			return
		}
		reply(t, w, http.StatusOK, wire.Job{ID: "job_1"})
	}))
	t.Cleanup(farm.Close)
	noticed := 0
	c, err := client.New(farm.URL, client.WithRetryNotice(func(err error, pause time.Duration) {
		noticed++
		if client.CodeOf(err) != "exhausted" || pause != time.Second || n != 1 {
			t.Errorf("the notice came after %d requests, with %v and %s", n, err, pause)
		}
	}))
	testbed.Must(t, err)
	testbed.Must(t, post(c))
	testbed.Diff(t, "notices", 1, noticed)
}

func TestCredentialsAndEncodingOfPaths(t *testing.T) {
	t.Parallel()
	seen := make(chan *http.Request, 1)
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r
		w.WriteHeader(http.StatusCreated)
	}))
	const name = "dir/données 50% #1?;世.txt"
	testbed.Must(t, c.Files("sbx_1").Write(t.Context(), name, strings.NewReader("x")))
	r := <-seen
	testbed.Diff(t, "path", "/v1/sandboxes/sbx_1/files/"+name, r.URL.Path)
	testbed.Diff(t, "Authorization", "Bearer secret", r.Header.Get("Authorization"))
	testbed.Diff(t, "User-Agent", "test", r.Header.Get("User-Agent"))
	testbed.Must(t, c.Files("sbx_1").Write(t.Context(), "a%2Fb/../c", strings.NewReader("")))
	if r := <-seen; r.URL.EscapedPath() != "/v1/sandboxes/sbx_1/files/a%252Fb/../c" {
		t.Errorf("path was changed on its way: %q", r.URL.EscapedPath())
	}
}

func TestListsFetchEveryPage(t *testing.T) {
	t.Parallel()
	pages := map[string]wire.List[wire.Job]{
		"":  {Items: []wire.Job{{ID: "job_1"}, {ID: "job_2"}}, NextCursor: "b"},
		"b": {Items: []wire.Job{{ID: "job_3"}}},
	}
	c := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		testbed.Diff(t, "sandbox_id", "sbx_1", r.URL.Query().Get("sandbox_id"))
		page, ok := pages[r.URL.Query().Get("cursor")]
		if !ok {
			t.Errorf("cursor %q", r.URL.Query().Get("cursor"))
		}
		reply(t, w, http.StatusOK, page)
	}))
	var got []string
	for job, err := range c.Jobs(t.Context(), client.JobFilter{SandboxID: "sbx_1"}) {
		testbed.Must(t, err)
		got = append(got, job.ID)
	}
	testbed.Diff(t, "jobs", []string{"job_1", "job_2", "job_3"}, got)
}

// badGateway is the answer of a proxy that does not reach the API.
func badGateway(_ *testing.T, w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) }

// setup serves the handler as a farm and returns a client with the key "secret".
func setup(t *testing.T, farm http.Handler) *client.Client {
	t.Helper()
	server := httptest.NewServer(farm)
	t.Cleanup(server.Close)
	c, err := client.New(server.URL, client.WithKey("secret"), client.WithUserAgent("test"))
	testbed.Must(t, err)
	return c
}

// reply answers with JSON.
func reply(t *testing.T, w http.ResponseWriter, status int, body any) {
	t.Helper()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		t.Errorf("answer: %v", err)
	}
}

// refuse answers with a problem.
func refuse(t *testing.T, w http.ResponseWriter, status int, code, detail string) {
	t.Helper()
	reply(t, w, status, map[string]any{"title": http.StatusText(status), "status": status, "code": code, "detail": detail, "request_id": "req_1"})
}

// hangUp closes the connection without an answer.
func hangUp(t *testing.T, w http.ResponseWriter) {
	t.Helper()
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		t.Errorf("hijack: %v", err)
		return
	}
	_ = conn.Close()
}

// replay serves a farm for an example: pairs of a request, as "GET /v1/jobs", and the body of its answer, in the order in which they come. A body that
// begins with "id:" is a stream of events, one that begins with a slash a redirect. The caller closes it.
func replay(pairs ...string) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Method + " " + r.URL.Path; len(pairs) == 0 || got != pairs[0] {
			http.Error(w, fmt.Sprintf("%s came, the next of the example are %q", got, pairs), http.StatusTeapot)
			return
		}
		switch body := pairs[1]; {
		case strings.HasPrefix(body, "/"):
			http.Redirect(w, r, body, http.StatusFound)
		case strings.HasPrefix(body, "id:"):
			w.Header().Set("Content-Type", "text/event-stream")
			fallthrough
		default:
			_, _ = io.WriteString(w, body)
		}
		pairs = pairs[2:]
	}))
}

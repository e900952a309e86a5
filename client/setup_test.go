package client_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

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

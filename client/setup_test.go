package client_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sandfarm/sandfarm/client"
)

// setup serves the handler as a farm and returns a client with the key "secret".
func setup(t *testing.T, farm http.Handler) *client.Client {
	t.Helper()
	server := httptest.NewServer(farm)
	t.Cleanup(server.Close)
	c, err := client.New(server.URL, client.WithKey("secret"), client.WithUserAgent("test"))
	if err != nil {
		t.Fatal(err)
	}
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

package client

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// Wait outlasts a restart of the API, tells of a farm that is gone, and does not repeat what will not pass.
func TestWaitOutlastsAnOutage(t *testing.T) {
	t.Parallel()
	const limit = maxAttempts * waitFailures
	for _, c := range []struct {
		failures, status, requests int
		ok                         bool
	}{
		{0, http.StatusServiceUnavailable, 1, true},
		{limit - 1, http.StatusServiceUnavailable, limit, true},
		{limit, http.StatusServiceUnavailable, limit, false},
		{1, http.StatusNotFound, 1, false},
	} {
		n := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if n++; n <= c.failures {
				w.WriteHeader(c.status)
			}
			_, _ = w.Write([]byte(`{"id":"job_1","state":"completed"}`))
		}))
		defer server.Close()
		f, err := New(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		f.pause = func(int) time.Duration { return 0 }
		job, err := f.Wait(t.Context(), "job_1")
		if ok := err == nil && job.State == "completed"; ok != c.ok || n != c.requests {
			t.Errorf("%+v: %q, %v after %d requests", c, job.State, err, n)
		}
	}
}

package blob_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sandfarm/sandfarm/internal/blob"
)

// Silent says since when the service answers nothing: an error of the service counts, one of the caller does not.
func TestSilent(t *testing.T) {
	t.Parallel()
	var status atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(status.Load())) }))
	t.Cleanup(server.Close)
	s := newStore(t, blob.Config{Endpoint: server.URL, AccessKey: "a", SecretKey: "s", Bucket: "farm", Region: "us-east-1"})
	put := func(ctx context.Context, code int) {
		status.Store(int64(code))
		_, _ = s.Put(ctx, "k", strings.NewReader("x"), 1, blob.PutOptions{})
	}
	silent := func(when string, want bool) {
		t.Helper()
		if got := s.Silent(); (got > 0) != want {
			t.Errorf("%s: silent for %s", when, got)
		}
	}
	silent("before the first request", false)
	gone, leave := context.WithCancel(t.Context())
	leave()
	put(gone, http.StatusOK)
	silent("a caller left", false)
	for _, code := range []int{http.StatusServiceUnavailable, http.StatusInsufficientStorage, http.StatusTooManyRequests} {
		put(t.Context(), code)
		silent(http.StatusText(code), true)
		put(gone, http.StatusOK)
		silent("a caller left", true)
		put(t.Context(), http.StatusForbidden)
		silent("the service refused", false)
	}
	server.Close()
	put(t.Context(), http.StatusOK)
	silent("the service is down", true)
}

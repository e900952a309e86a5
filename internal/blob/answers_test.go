package blob_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// TestFull asks a store that has no room: the error of a write says so, readiness too, until a write succeeds.
func TestFull(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		code   string
	}{
		"BuiltIn":         {http.StatusInsufficientStorage, "StorageFull"},
		"MinIO":           {http.StatusInsufficientStorage, "XMinioStorageFull"},
		"AfterABeginning": {http.StatusOK, "StorageFull"}, // of an upload that took long to complete
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var room atomic.Bool
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodHead || room.Load() {
					w.Header().Set("ETag", `"0"`)
					return
				}
				w.Header().Set("Content-Type", "application/xml")
				if r.Method == http.MethodGet {
					_, _ = w.Write([]byte(`<?xml version="1.0"?><ListPartsResult><Part><PartNumber>1</PartNumber><ETag>"0"</ETag><Size>1</Size></Part></ListPartsResult>`))
					return
				}
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(`<?xml version="1.0" encoding="UTF-8"?><Error><Code>` + c.code + `</Code><Message>full</Message></Error>`))
			}))
			t.Cleanup(server.Close)
			s := newStore(t, blob.Config{Endpoint: server.URL, AccessKey: "a", SecretKey: "s", Bucket: "farm", Region: "us-east-1"})
			if err := s.Ping(t.Context()); err != nil {
				t.Fatalf("Ping of a store that was not written to: %v", err)
			}
			if c.status == http.StatusOK {
				err := s.CompleteUpload(t.Context(), "k", "u", 1)
				if !errors.Is(err, blob.ErrFull) {
					t.Errorf("CompleteUpload = %v, want ErrFull", err)
				}
				return
			}
			put := func() error {
				_, err := s.Put(t.Context(), "k", strings.NewReader("x"), 1, blob.PutOptions{})
				return err
			}
			if err := put(); !errors.Is(err, blob.ErrFull) || farm.MessageOf(err) != "The object store is full. Its operator must make room." {
				t.Errorf("Put = %v (%s), want ErrFull", err, farm.MessageOf(err))
			}
			if err := s.Ping(t.Context()); !errors.Is(err, blob.ErrFull) {
				t.Errorf("Ping = %v, want ErrFull", err)
			}
			room.Store(true)
			if err := put(); err != nil {
				t.Fatalf("Put with room: %v", err)
			}
			if err := s.Ping(t.Context()); err != nil {
				t.Errorf("Ping after a write: %v", err)
			}
		})
	}
}

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

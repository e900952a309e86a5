package s3_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/embedded/s3"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func serve(t *testing.T, dir string, options ...func(*s3.Config)) *blob.Store {
	t.Helper()
	cfg := s3.Config{Dir: dir, AccessKey: "access", SecretKey: "secret", Logger: slog.New(slog.DiscardHandler)}
	for _, set := range options {
		set(&cfg)
	}
	h, err := s3.Open(cfg)
	testbed.Must(t, err)
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.Close()
		_ = h.Close()
	})
	store, err := blob.New(blob.Config{Endpoint: server.URL, AccessKey: "access", SecretKey: "secret", Bucket: "sandfarm"})
	testbed.Must(t, err)
	testbed.Must(t, store.EnsureBucket(t.Context()))
	return store
}

func put(t *testing.T, s *blob.Store, key, text string) {
	t.Helper()
	if _, err := s.Put(t.Context(), key, strings.NewReader(text), -1, blob.PutOptions{ContentType: "text/csv"}); err != nil {
		t.Fatalf("Put(%q): %v", key, err)
	}
}

func want(t *testing.T, s *blob.Store, key, text, kind, etag string) {
	t.Helper()
	r, info, err := s.Get(t.Context(), key, 0, 0)
	if err != nil {
		t.Fatalf("Get(%q): %v", key, err)
	}
	defer func() { _ = r.Close() }()
	got, err := io.ReadAll(r)
	if err != nil || string(got) != text || info.ContentType != kind || etag != "" && info.ETag != etag {
		t.Errorf("Get(%q) = %.20q of %q, ETag %q, %v; want %.20q of %q, ETag %q", key, got, info.ContentType, info.ETag, err, text, kind, etag)
	}
}

// A query that is longer than the farm's is refused before a signature is computed.
func TestLongQueriesAreRefused(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	link, err := s.Presign(t.Context(), "k", blob.PresignOptions{})
	testbed.Must(t, err)
	base, _, _ := strings.Cut(link, "?")
	const long, many = 8 << 10, 32
	for query, want := range map[string]int{
		strings.Repeat("x", long): http.StatusForbidden, strings.Repeat("x", long+1): http.StatusBadRequest,
		strings.Repeat("&", many-1): http.StatusForbidden, strings.Repeat("&", many): http.StatusBadRequest,
	} {
		answer, err := http.Get(base + "?" + query) //nolint:noctx // of this test's server
		testbed.Must(t, err)
		_ = answer.Body.Close()
		testbed.Check(t, answer.StatusCode == want, "%d bytes, %d parameters: %d, want %d", len(query), 1+strings.Count(query, "&"), answer.StatusCode, want)
	}
}

// Who reads by a link is admitted before, but not who has no valid one, nor the farm itself.
func TestLinksAreAdmitted(t *testing.T) {
	t.Parallel()
	var asked []string
	busy := true
	s := serve(t, t.TempDir(), func(cfg *s3.Config) {
		cfg.Link = func(w http.ResponseWriter, _ *http.Request, key string) (func(), bool) {
			asked = append(asked, key)
			if busy {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			return func() { asked = append(asked, "left") }, !busy
		}
	})
	put(t, s, "artifacts/acme/k", "text")
	want(t, s, "artifacts/acme/k", "text", "text/csv", "")
	link, err := s.Presign(t.Context(), "artifacts/acme/k", blob.PresignOptions{})
	testbed.Must(t, err)
	get := func(link string) int {
		answer, err := http.Get(link) //nolint:noctx // of this test's server
		testbed.Must(t, err)
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	testbed.Diff(t, "a link that is not valid", http.StatusForbidden, get(link+"0"))
	testbed.Diff(t, "a link while others are read", http.StatusServiceUnavailable, get(link))
	busy = false
	testbed.Diff(t, "a link", http.StatusOK, get(link))
	testbed.Diff(t, "admitted", []string{"artifacts/acme/k", "artifacts/acme/k", "left"}, asked)
}

// The signature covers a parameter that is given twice, and each x-amz header. Other services use the first of two values, so this
// is not in the conformance suite.
func TestSignatureCoversTheWholeLink(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	put(t, s, "k", "text")
	link, err := s.Presign(t.Context(), "k", blob.PresignOptions{})
	testbed.Must(t, err)
	for name, c := range map[string]struct {
		add    string
		header http.Header
		status int
	}{
		"Untouched":         {"", nil, http.StatusOK},
		"OtherHeader":       {"", http.Header{"X-Anything": {"1"}}, http.StatusOK},
		"SignedHeaderTwice": {"&X-Amz-SignedHeaders=host", nil, http.StatusForbidden},
		"OtherHeaderTwice":  {"&X-Amz-SignedHeaders=range", nil, http.StatusForbidden},
		"DateTwice":         {"&X-Amz-Date=20300101T000000Z", nil, http.StatusForbidden},
		"ExpiresTwice":      {"&X-Amz-Expires=604800", nil, http.StatusForbidden},
		"SignatureTwice":    {"&X-Amz-Signature=00", nil, http.StatusBadRequest},
		"Operation":         {"&uploads=", nil, http.StatusForbidden},
		"CopySource":        {"", http.Header{"X-Amz-Copy-Source": {"/sandfarm/other"}}, http.StatusForbidden},
		"UnsignedDate":      {"", http.Header{"X-Amz-Date": {"20300101T000000Z"}}, http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, link+c.add, nil)
			testbed.Must(t, err)
			for name, values := range c.header {
				req.Header[name] = values
			}
			resp, err := http.DefaultTransport.RoundTrip(req)
			testbed.Must(t, err)
			defer func() { _ = resp.Body.Close() }()
			if resp.StatusCode != c.status {
				body, _ := io.ReadAll(resp.Body)
				t.Errorf("GET = %s: %s; want %d", resp.Status, body, c.status)
			}
		})
	}
}

// Each of several ranges was a part of its own: 3700 of them, in a header of 15 KiB, took 50 ms of a core that API and worker share. S3 answers with the
// whole object, too.
func TestSeveralRangesGetTheWholeObject(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	put(t, s, "k", "text")
	link, err := s.Presign(t.Context(), "k", blob.PresignOptions{})
	testbed.Must(t, err)
	for ranges, want := range map[string]struct {
		status int
		text   string
	}{
		"bytes=0-0":     {http.StatusPartialContent, "t"},
		"bytes=0-0,1-1": {http.StatusOK, "text"},
		"bytes=" + strings.TrimSuffix(strings.Repeat("0-0,", 3700), ","): {http.StatusOK, "text"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, link, nil)
		testbed.Must(t, err)
		req.Header.Set("Range", ranges)
		resp, err := http.DefaultTransport.RoundTrip(req)
		testbed.Must(t, err)
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		testbed.Must(t, err)
		if resp.StatusCode != want.status || string(body) != want.text {
			t.Errorf("%.20s gives %s: %.20q, want %d: %q", ranges, resp.Status, body, want.status, want.text)
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	testbed.Must(t, os.MkdirAll(filepath.Dir(file), 0o700))
	testbed.Must(t, os.WriteFile(file, []byte(text), 0o600))
}

// Incomplete files of a killed process are removed at the next start, and a failed upload leaves the old object unchanged.
func TestIncompleteObjectsAreNeverVisible(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "aside", "KILLED"), "half")
	write(t, filepath.Join(dir, "uploads", "abc", "1.etag"), "a part whose upload.json was removed already")
	s := serve(t, dir)
	put(t, s, "k", "old")
	broken := errors.New("broken")
	for _, size := range []int{100, 20 << 20} {
		r := io.MultiReader(bytes.NewReader(make([]byte, size)), iotest.ErrReader(broken))
		if _, err := s.Put(t.Context(), "k", r, -1, blob.PutOptions{}); !errors.Is(err, broken) {
			t.Errorf("Put = %v, want %v", err, broken)
		}
	}
	want(t, s, "k", "old", "text/csv", "")
	// The service may see the end of a broken request after the client does.
	for _, sub := range []string{"aside", "uploads"} {
		deadline := time.Now().Add(5 * time.Second)
		for {
			left, err := os.ReadDir(filepath.Join(dir, sub))
			if err == nil && len(left) == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s contains %v, %v; want nothing", sub, left, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// A key that is a folder of other keys, and a key below an object, are rejected and change nothing.
func TestConflictingKeysAreRejected(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	put(t, s, "a/b", "text")
	for _, key := range []string{"a", "a/b/c"} {
		if _, err := s.Put(t.Context(), key, strings.NewReader("x"), 1, blob.PutOptions{}); err == nil {
			t.Errorf("Put(%q) = nil, want an error", key)
		}
		if _, err := s.Stat(t.Context(), key); farm.CodeOf(err) != farm.CodeNotFound {
			t.Errorf("Stat(%q) = %v, want code %s", key, err, farm.CodeNotFound)
		}
		if err := s.Delete(t.Context(), key); err != nil {
			t.Errorf("Delete(%q): %v", key, err)
		}
	}
	want(t, s, "a/b", "text", "text/csv", "")
}

// Deletes remove folders that become empty, and concurrent puts create them again; also folders of labels in sidecar files.
func TestPutsAndDeletesInOneFolder(t *testing.T) {
	t.Parallel()
	for _, sub := range []string{"objects", "meta"} { // that of labels in files is kept where it exists
		t.Run(sub, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			testbed.Must(t, os.MkdirAll(filepath.Join(dir, sub), 0o700))
			s := serve(t, dir)
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() {
					key := fmt.Sprintf("a/b/c/%d", i)
					for range 25 {
						if _, err := s.Put(t.Context(), key, strings.NewReader("x"), 1, blob.PutOptions{}); err != nil {
							t.Errorf("Put: %v", err)
						}
						if err := s.Delete(t.Context(), key); err != nil {
							t.Errorf("Delete: %v", err)
						}
					}
				})
			}
			all.Wait()
		})
	}
}

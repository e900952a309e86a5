package embedded_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/embedded"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func startS3(t *testing.T, dir string) *embedded.S3 {
	t.Helper()
	s3, err := embedded.StartS3(t.Context(), embedded.S3Config{
		Dir: dir, Listen: "127.0.0.1:0", AccessKey: "access", SecretKey: "secret", Logger: quiet(),
	})
	testbed.Must(t, err)
	t.Cleanup(func() { _ = s3.Close() })
	return s3
}

func store(t *testing.T, s3 *embedded.S3) *blob.Store {
	t.Helper()
	s, err := blob.New(blob.Config{Endpoint: s3.Endpoint(), AccessKey: "access", SecretKey: "secret"})
	testbed.Must(t, err)
	testbed.Must(t, s.EnsureBucket(t.Context()))
	return s
}

func TestS3RestartKeepsObjects(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		sidecar bool
	}{{"ExtendedAttributes", false}, {"Sidecar", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if c.sidecar {
				testbed.Must(t, os.Mkdir(filepath.Join(dir, "meta"), 0o700))
			}
			large := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
			first := startS3(t, dir)
			s := store(t, first)
			for key, data := range map[string][]byte{"a/small": []byte("small"), "a/large": large} {
				_, err := s.Put(t.Context(), key, bytes.NewReader(data), -1, blob.PutOptions{ContentType: "text/csv"})
				testbed.Must(t, err)
			}
			testbed.Must(t, first.Close())
			if err := first.Close(); err != nil {
				t.Errorf("second Close: %v", err)
			}
			if err := s.Ping(t.Context()); err == nil {
				t.Error("Ping of a closed service = nil, want an error")
			}
			s = store(t, startS3(t, dir))
			for key, want := range map[string][]byte{"a/small": []byte("small"), "a/large": large} {
				r, info, err := s.Get(t.Context(), key, 0, 0)
				if err != nil {
					t.Fatalf("Get(%q): %v", key, err)
				}
				got, err := io.ReadAll(r)
				_ = r.Close()
				if err != nil || !bytes.Equal(got, want) || info.ContentType != "text/csv" {
					t.Errorf("Get(%q) = %d bytes of %q, %v; want %d of text/csv", key, len(got), info.ContentType, err, len(want))
				}
			}
			found, err := os.ReadDir(filepath.Join(dir, "meta"))
			testbed.Diff(t, "sidecar used", c.sidecar, err == nil && len(found) > 0)
		})
	}
}

func TestS3RefusesUnsignedRequests(t *testing.T) {
	t.Parallel()
	s3 := startS3(t, t.TempDir())
	store(t, s3)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s3.Endpoint()+"/sandfarm", nil)
	testbed.Must(t, err)
	resp, err := http.DefaultTransport.RoundTrip(req)
	testbed.Must(t, err)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("GET without a signature = %s, want 403", resp.Status)
	}
}

func TestS3StartFails(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	defer func() { _ = taken.Close() }()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	good := embedded.S3Config{Dir: t.TempDir(), Listen: "127.0.0.1:0", AccessKey: "a", SecretKey: "s", Logger: quiet()}
	for name, c := range map[string]struct {
		ctx   context.Context
		spoil func(*embedded.S3Config)
		want  string
	}{
		"NoDir":     {t.Context(), func(c *embedded.S3Config) { c.Dir = "" }, "folder"},
		"NoKey":     {t.Context(), func(c *embedded.S3Config) { c.SecretKey = "" }, "secret key"},
		"BadListen": {t.Context(), func(c *embedded.S3Config) { c.Listen = "nonsense" }, "address"},
		"PortTaken": {t.Context(), func(c *embedded.S3Config) { c.Listen = taken.Addr().String() }, "address already in use"},
		"Cancelled": {cancelled, func(*embedded.S3Config) {}, "canceled"},
	} {
		cfg := good
		c.spoil(&cfg)
		s3, err := embedded.StartS3(c.ctx, cfg)
		if err == nil {
			_ = s3.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("StartS3 with %s = %v, want an error with %q", name, err, c.want)
		}
	}
	startS3(t, good.Dir) // none of the failures prevents a later start
}

// Two services in one process do not affect each other; a folder can be used by one service only.
func TestS3FolderIsExclusive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, other := store(t, startS3(t, dir)), store(t, startS3(t, t.TempDir()))
	second, err := embedded.StartS3(t.Context(), embedded.S3Config{
		Dir: dir, Listen: "127.0.0.1:0", AccessKey: "a", SecretKey: "s", Logger: quiet(),
	})
	if err == nil {
		_ = second.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "another process uses") {
		t.Errorf("a second StartS3 for the folder = %v, want an error that says why", err)
	}
	if _, err := first.Put(t.Context(), "k", strings.NewReader("x"), 1, blob.PutOptions{}); err != nil {
		t.Errorf("Put to the first after that: %v", err)
	}
	if _, err := other.Stat(t.Context(), "k"); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("Stat in the other service = %v, want code %s", err, farm.CodeNotFound)
	}
}

func TestCredentialsAreMadeOnceAndKept(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	type pair struct{ access, secret string }
	got := make([]pair, 8)
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() {
			access, secret, err := embedded.LoadOrCreateCredentials(dir)
			if err != nil {
				t.Errorf("LoadOrCreateCredentials: %v", err)
			}
			got[i] = pair{access, secret}
		})
	}
	all.Wait()
	if len(got[0].access) < 16 || len(got[0].secret) < 32 {
		t.Errorf("credentials of %d and %d characters, want at least 16 and 32", len(got[0].access), len(got[0].secret))
	}
	for _, p := range got[1:] {
		if p != got[0] {
			t.Error("two calls gave different credentials")
		}
	}
	access, secret, err := embedded.LoadOrCreateCredentials(t.TempDir())
	if err != nil || access == got[0].access || secret == got[0].secret {
		t.Errorf("another folder has the same credentials, or none: %v", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("folder holds %v, %v; want one file", files, err)
	}
	file := filepath.Join(dir, files[0].Name())
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v; want 0600", info.Mode(), err)
	}
	testbed.Must(t, os.Chmod(file, 0o644))
	if _, _, err := embedded.LoadOrCreateCredentials(dir); err == nil {
		t.Error("credentials that others may read were accepted")
	}
	testbed.Must(t, os.WriteFile(file, []byte("{}"), 0o600))
	testbed.Must(t, os.Chmod(file, 0o600))
	if _, _, err := embedded.LoadOrCreateCredentials(dir); err == nil {
		t.Error("empty credentials were accepted")
	}
}

//go:build integration

package blob_test

import (
	"cmp"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// minioTimeout bounds the start of a MinIO server on a busy machine.
const minioTimeout = time.Minute

func TestMinIO(t *testing.T) {
	t.Parallel()
	url := startMinIO(t)
	runSuite(t, func(t *testing.T) blob.Config { return newConfig(t, url) })
}

// MinIO stores the rules and returns them; setting them again changes nothing, nor does removing one again.
func TestMinIOKeepsLifecycle(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, startMinIO(t))
	s := newStore(t, cfg)
	testbed.Must(t, s.EnsureBucket(t.Context()))
	for _, want := range []bool{true, false} {
		if got, err := s.EnsureLifecycle(t.Context(), rules(15)...); err != nil || got != want {
			t.Fatalf("EnsureLifecycle = %v, %v; want %v", got, err, want)
		}
	}
	config, err := raw(t, cfg).GetBucketLifecycle(t.Context(), cfg.Bucket)
	if err != nil || len(config.Rules) != 2 {
		t.Fatalf("GetBucketLifecycle = %+v, %v", config, err)
	}
	for i, r := range rules(15) {
		if got := config.Rules[i]; got.ID != r.ID || got.RuleFilter.Prefix != r.Prefix || int(got.Expiration.Days) != r.Days || got.Status != "Enabled" {
			t.Errorf("rule %+v, want %+v", got, r)
		}
	}
	for _, want := range []bool{true, false} {
		if got, err := s.EnsureLifecycle(t.Context(), rules(15)[0], blob.LifecycleRule{ID: "sandfarm-b"}); err != nil || got != want {
			t.Fatalf("EnsureLifecycle without a rule = %v, %v; want %v", got, err, want)
		}
	}
	if config, err = raw(t, cfg).GetBucketLifecycle(t.Context(), cfg.Bucket); err != nil || len(config.Rules) != 1 {
		t.Errorf("GetBucketLifecycle = %+v, %v", config, err)
	}
	if n, err := s.AbortUploads(t.Context(), "a/", time.Now()); n != 0 || err != nil {
		t.Errorf("AbortUploads = %d, %v", n, err)
	}
}

// startMinIO runs a MinIO server with a folder of its own until the test ends.
func startMinIO(t testing.TB) string {
	t.Helper()
	binary := minioBinary(t)
	addr := "127.0.0.1:" + testbed.Port(t)
	out, err := os.Create(filepath.Join(t.TempDir(), "minio.log"))
	testbed.Must(t, err)
	cmd := exec.Command(binary, "server", "--quiet", "--address", addr, t.TempDir())
	cmd.Env = append(os.Environ(), "MINIO_ROOT_USER="+accessKey, "MINIO_ROOT_PASSWORD="+secretKey, "MINIO_BROWSER=off")
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	testbed.Must(t, cmd.Start())
	exited := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() { _ = cmd.Wait(); close(exited) })
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		wait.Wait()
		_ = out.Close()
	})
	url := "http://" + addr
	ctx, cancel := context.WithTimeout(t.Context(), minioTimeout)
	defer cancel()
	for !ready(ctx, url) {
		select {
		case <-exited:
			output, _ := os.ReadFile(out.Name())
			t.Fatalf("MinIO ended: %s", output)
		case <-ctx.Done():
			t.Fatalf("MinIO was not ready within %s", minioTimeout)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return url
}

func minioBinary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("SANDFARM_TEST_MINIO"); path != "" {
		return path
	}
	home, err := os.UserHomeDir()
	testbed.Must(t, err)
	path := filepath.Join(cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(home, ".cache")), "sandfarm", "bin", "minio")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("find MinIO: %v (set SANDFARM_TEST_MINIO)", err)
	}
	return path
}

// ready reports whether the server handles S3 requests: it rejects one without a signature. It reports readiness before it does.
func ready(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusForbidden
}

// BenchmarkPutMinIO is BenchmarkPut against a real MinIO server.
func BenchmarkPutMinIO(b *testing.B) { benchmarkPut(b, startMinIO(b)) }

package embedded_test

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sandfarm/sandfarm/internal/embedded"
)

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
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatalf("chmod: %v", err)
	}
	if _, _, err := embedded.LoadOrCreateCredentials(dir); err == nil {
		t.Error("credentials that others may read were accepted")
	}
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatalf("write: %v", err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatalf("chmod: %v", err)
	}
	if _, _, err := embedded.LoadOrCreateCredentials(dir); err == nil {
		t.Error("empty credentials were accepted")
	}
}

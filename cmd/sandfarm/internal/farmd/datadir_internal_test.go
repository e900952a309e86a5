package farmd

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDataDirIsOneProcess(t *testing.T) {
	t.Parallel()
	s := &Settings{Data: filepath.Join(t.TempDir(), "new", "dir")}
	first, err := openData(s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openData(s); err == nil || !strings.Contains(err.Error(), "is running on "+s.Data) {
		t.Errorf("a second one: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := openData(s)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	if second.Namespace != first.Namespace || !bytes.Equal(second.Secret, first.Secret) || len(first.Secret) != secretBytes {
		t.Errorf("namespace %q, then %q; secrets differ: %v", first.Namespace, second.Namespace, !bytes.Equal(second.Secret, first.Secret))
	}
	other, err := openData(&Settings{Data: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if other.Namespace == first.Namespace {
		t.Error("two farms have one namespace")
	}
	if info, err := os.Stat(s.Data); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v %v", info, err)
	}
}

// A broken file is an error, releases the lock, and is never replaced: signatures made with it would become invalid.
func TestDataDirWithBrokenFile(t *testing.T) {
	t.Parallel()
	s := &Settings{Data: t.TempDir()}
	if err := os.WriteFile(s.path("farm-id"), []byte("zz\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := openData(s); err == nil || !strings.Contains(err.Error(), "farm-id") {
			t.Fatalf("a broken file gives %v", err)
		}
	}
	if text, err := os.ReadFile(s.path("farm-id")); err != nil || string(text) != "zz\n" {
		t.Errorf("the file holds %q: %v", text, err)
	}
}

func TestOlderThan(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"20.10.24+dfsg1": true, "23.0.1": false, "24.0": false, "unknown": false, "": false, "22.99": true} {
		if got := olderThan(version, 23, 0); got != want {
			t.Errorf("old(%q) is %v", version, got)
		}
	}
	dir := t.TempDir()
	if got := existingParent(filepath.Join(dir, "a", "b")); got != dir {
		t.Errorf("nearest gives %q", got)
	}
}

package farmd

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/secret"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestDataDirIsOneProcess(t *testing.T) {
	t.Parallel()
	s := &Settings{Data: filepath.Join(t.TempDir(), "new", "dir")}
	first, err := openData(s)
	testbed.Must(t, err)
	if _, err := openData(s); err == nil || !strings.Contains(err.Error(), "is running on "+s.Data) {
		t.Errorf("a second one: %v", err)
	}
	testbed.Must(t, first.Close())
	second, err := openData(s)
	testbed.Must(t, err)
	defer func() { _ = second.Close() }()
	if second.Namespace != first.Namespace || !bytes.Equal(second.Secret, first.Secret) || len(first.Secret) != secretBytes {
		t.Errorf("namespace %q, then %q; secrets differ: %v", first.Namespace, second.Namespace, !bytes.Equal(second.Secret, first.Secret))
	}
	other, err := openData(&Settings{Data: t.TempDir()})
	testbed.Must(t, err)
	defer func() { _ = other.Close() }()
	if other.Namespace == first.Namespace {
		t.Error("two farms have one namespace")
	}
	if info, err := os.Stat(s.Data); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v %v", info, err)
	}
}

// The first start makes a key for the secrets of sandboxes, which later ones use. A key of the settings replaces it, but what it sealed is
// opened with it.
func TestDataDirHasAKeyForSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func(key string) *Settings {
		t.Helper()
		s := defaultSettings()
		s.Data, s.Secrets.Key = dir, key
		d, err := openData(s)
		testbed.Must(t, err)
		defer func() { _ = d.Close() }()
		testbed.Must(t, d.useSecretKey(s))
		return s
	}
	const mine = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
	if s := open(mine); s.Secrets.Key != mine || len(s.Secrets.OldKeys) > 0 {
		t.Errorf("with a key of its own: %d old keys", len(s.Secrets.OldKeys))
	}
	if _, err := os.Stat(filepath.Join(dir, "secrets-key")); err == nil {
		t.Error("a key is made where the settings have one")
	}
	first, second, third := open(""), open(""), open(mine)
	if first.Secrets.Key == "" || first.Secrets.Key != second.Secrets.Key || first.API.Secrets == nil || first.Worker.Secrets == nil {
		t.Error("the second start has another key, or the services have none")
	}
	if info, err := os.Stat(filepath.Join(dir, "secrets-key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of the key: %v, %v", info, err)
	}
	ref := farm.Ref{Tenant: "acme", ID: "sbx_1"}
	sealed, err := first.API.Secrets.Seal(ref, secret.Bundle{Values: map[string]string{"A": "value"}})
	testbed.Must(t, err)
	if got, err := third.Worker.Secrets.Open(ref, sealed); err != nil || got.Values["A"] != "value" {
		t.Errorf("with a key in the settings, what was sealed before: %v", err)
	}
	if got, err := third.API.Secrets.Seal(ref, secret.Bundle{}); err != nil || canOpen(first, ref, got) {
		t.Errorf("with a key in the settings, the old one seals: %v", err)
	}
}

func canOpen(s *Settings, ref farm.Ref, sealed []byte) bool {
	_, err := s.Worker.Secrets.Open(ref, sealed)
	return err == nil
}

// A broken file is an error, releases the lock, and is never replaced: signatures made with it would become invalid.
func TestDataDirWithBrokenFile(t *testing.T) {
	t.Parallel()
	s := &Settings{Data: t.TempDir()}
	testbed.Must(t, os.WriteFile(s.path("farm-id"), []byte("zz\n"), 0o600))
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
		testbed.Diff(t, fmt.Sprintf("old(%q)", version), want, olderThan(version, 23, 0))
	}
	dir := t.TempDir()
	testbed.Diff(t, "nearest folder", dir, existingParent(filepath.Join(dir, "a", "b")))
}

func TestRunsLooksAtTheLock(t *testing.T) {
	t.Parallel()
	s := &Settings{Data: t.TempDir()}
	if Runs(s) {
		t.Error("a farm runs on an empty directory")
	}
	d, err := openData(s)
	testbed.Must(t, err)
	if !Runs(s) {
		t.Error("no farm runs on a locked directory")
	}
	if err := d.Close(); err != nil || Runs(s) {
		t.Errorf("%v, runs: %t after the end", err, Runs(s))
	}
}

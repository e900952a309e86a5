package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// packed writes an archive of two files and returns its path.
func packed(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	var entries []entry
	for file, mode := range map[string]os.FileMode{"sandfarm": 0o755, "completions/_sandfarm": 0o644} {
		from := filepath.Join(dir, filepath.Base(file))
		testbed.Must(t, os.WriteFile(from, []byte("content of "+file), 0o600))
		entries = append(entries, entry{name: file, from: from, mode: mode})
	}
	path := filepath.Join(dir, name)
	size, err := writeArchive(path, "sandfarm_v1", entries, time.Unix(1_700_000_000, 0).UTC())
	if info, statErr := os.Stat(path); err != nil || statErr != nil || info.Size() != size {
		t.Fatalf("size %d, %v, %v", size, err, statErr)
	}
	return path
}

// file describes a file in an archive.
type file struct {
	Content string
	Mode    os.FileMode
	Time    int64
}

var want = map[string]file{
	"sandfarm_v1/sandfarm":              {"content of sandfarm", 0o755, 1_700_000_000},
	"sandfarm_v1/completions/_sandfarm": {"content of completions/_sandfarm", 0o644, 1_700_000_000},
}

func TestTarHasEveryFile(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(packed(t, "a.tar.gz"))
	testbed.Must(t, err)
	unzipped, err := gzip.NewReader(bytes.NewReader(content))
	testbed.Must(t, err)
	got := map[string]file{}
	for r := tar.NewReader(unzipped); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		testbed.Must(t, err)
		text, err := io.ReadAll(r)
		testbed.Must(t, err)
		got[header.Name] = file{string(text), header.FileInfo().Mode(), header.ModTime.Unix()}
	}
	testbed.Diff(t, "", want, got)
}

func TestZipHasEveryFile(t *testing.T) {
	t.Parallel()
	r, err := zip.OpenReader(packed(t, "a.zip"))
	testbed.Must(t, err)
	defer r.Close()
	got := map[string]file{}
	for _, one := range r.File {
		content, err := one.Open()
		testbed.Must(t, err)
		text, err := io.ReadAll(content)
		testbed.Must(t, err)
		got[one.Name] = file{string(text), one.Mode(), one.Modified.Unix()}
	}
	testbed.Diff(t, "", want, got)
}

func TestArchivesAreReproducible(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a.tar.gz", "a.zip"} {
		first, err := os.ReadFile(packed(t, name))
		testbed.Must(t, err)
		second, err := os.ReadFile(packed(t, name))
		testbed.Must(t, err)
		if !bytes.Equal(first, second) {
			t.Errorf("two archives %s of the same files differ", name)
		}
	}
}

func TestSumsAreThoseThatSha256sumChecks(t *testing.T) {
	t.Parallel()
	path := packed(t, "a.zip")
	dir := filepath.Dir(path)
	testbed.Must(t, writeSums(dir, []string{"sandfarm", "a.zip"}))
	check := exec.CommandContext(t.Context(), "sha256sum", "--strict", "-c", "SHA256SUMS")
	check.Dir = dir
	out, err := check.CombinedOutput()
	if diff := cmp.Diff("a.zip: OK\nsandfarm: OK\n", string(out)); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	all, err := choose("")
	if err != nil || len(all) != 6 {
		t.Errorf("all targets: %v, %v", all, err)
	}
	some, err := choose("windows/arm64,linux/amd64")
	if diff := cmp.Diff([]string{"windows/arm64 .zip sandfarm.exe", "linux/amd64 .tar.gz sandfarm"}, describe(some)); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	if _, err := choose("linux/amd64,plan9/386"); err == nil {
		t.Error("a target without an archive gave no error")
	}
}

func describe(targets []target) []string {
	var all []string
	for _, t := range targets {
		all = append(all, t.String()+" "+t.extension()+" "+t.program())
	}
	return all
}

func TestOverlayShowsOneAgent(t *testing.T) {
	t.Chdir(t.TempDir())
	testbed.Must(t, os.MkdirAll(agents, 0o700))
	for _, name := range []string{"agent-linux-amd64", "agent-linux-arm64", ".gitignore"} {
		testbed.Must(t, os.WriteFile(filepath.Join(agents, name), nil, 0o600))
	}
	path, err := writeOverlay("overlay.json", "arm64", "/tmp/fresh")
	testbed.Must(t, err)
	text, err := os.ReadFile(path)
	testbed.Must(t, err)
	var got map[string]map[string]string
	testbed.Must(t, json.Unmarshal(text, &got))
	want := map[string]map[string]string{"Replace": {agents + "/agent-linux-amd64": "", agents + "/agent-linux-arm64": "/tmp/fresh"}}
	testbed.Diff(t, "", want, got)
}

func TestProgramsAreSmall(t *testing.T) {
	t.Parallel()
	for size, ok := range map[int64]bool{maxProgram - 1: true, maxProgram: true, maxProgram + 1: false} {
		if err := small(targets[0], size); (err == nil) != ok {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

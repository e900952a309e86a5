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
	"strings"
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

func TestArchivesHaveEveryFile(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(packed(t, "a.tar.gz"))
	testbed.Must(t, err)
	unzipped, err := gzip.NewReader(bytes.NewReader(content))
	testbed.Must(t, err)
	got := map[string]file{}
	add := func(name string, r io.Reader, mode os.FileMode, at time.Time) {
		text, err := io.ReadAll(r)
		testbed.Must(t, err)
		got[name] = file{string(text), mode, at.Unix()}
	}
	archive := tar.NewReader(unzipped)
	for header, err := archive.Next(); !errors.Is(err, io.EOF); header, err = archive.Next() {
		testbed.Must(t, err)
		add(header.Name, archive, header.FileInfo().Mode(), header.ModTime)
	}
	testbed.Diff(t, "the tar", want, got)
	clear(got)
	zipped, err := zip.OpenReader(packed(t, "a.zip"))
	testbed.Must(t, err)
	defer func() { _ = zipped.Close() }()
	for _, one := range zipped.File {
		content, err := one.Open()
		testbed.Must(t, err)
		add(one.Name, content, one.Mode(), one.Modified)
	}
	testbed.Diff(t, "the zip", want, got)
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
	testbed.Diff(t, "the overlay", want, got)
}

func TestProgramsAreSmall(t *testing.T) {
	t.Parallel()
	for size, ok := range map[int64]bool{maxProgram - 1: true, maxProgram: true, maxProgram + 1: false} {
		if err := small(targets[0], size); (err == nil) != ok {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// A configuration keeps what it has, and gets the runtime once.
func TestMerged(t *testing.T) {
	t.Parallel()
	entry := runtimeEntry{Path: "/usr/local/bin/sandfarm-runsc"}
	for name, c := range map[string]struct{ before, after string }{
		"no file":         {"", `{"runtimes": {"runsc": {"path": "/usr/local/bin/sandfarm-runsc"}}}`},
		"white space":     {" \n", `{"runtimes": {"runsc": {"path": "/usr/local/bin/sandfarm-runsc"}}}`},
		"another setting": {`{"log-driver": "none", "dns": ["192.0.2.1"]}`, `{"log-driver": "none", "dns": ["192.0.2.1"], "runtimes": {"runsc": {"path": "/usr/local/bin/sandfarm-runsc"}}}`},
		"another runtime": {
			`{"runtimes": {"nvidia": {"path": "n", "runtimeArgs": ["-a"], "unknown": 1}}, "default-runtime": "nvidia"}`,
			`{"runtimes": {"nvidia": {"path": "n", "runtimeArgs": ["-a"], "unknown": 1}, "runsc": {"path": "/usr/local/bin/sandfarm-runsc"}}, "default-runtime": "nvidia"}`,
		},
		"the bare runsc": {`{"runtimes": {"runsc": {"path": "/usr/local/bin/runsc"}}}`, `{"runtimes": {"runsc": {"path": "/usr/local/bin/sandfarm-runsc"}}}`},
		"other flags":    {`{"runtimes": {"runsc": {"path": "/usr/local/bin/sandfarm-runsc", "runtimeArgs": ["--old"]}}}`, `{"runtimes": {"runsc": {"path": "/usr/local/bin/sandfarm-runsc"}}}`},
	} {
		got, err := merged([]byte(c.before), "runsc", entry)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		testbed.Diff(t, name, values(t, c.after), values(t, string(got)))
		if again, err := merged(got, "runsc", entry); again != nil || err != nil {
			t.Errorf("%s, merged again: %s, %v", name, again, err)
		}
	}
	for name, text := range map[string]string{
		"not JSON": `{"a":`, "a list": `[]`, "runtimes are a list": `{"runtimes": []}`, "a runtime of somebody else": `{"runtimes": {"runsc": {"path": "/opt/runsc"}}}`,
	} {
		if got, err := merged([]byte(text), "runsc", entry); err == nil {
			t.Errorf("%s is changed to %s", name, got)
		}
	}
}

func values(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

// Installing and registering a second time changes nothing. The files keep their modes, and nothing else is left beside them.
func TestInstallAndRegisterTwice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := setup{built: filepath.Join(dir, "built"), dir: filepath.Join(dir, "bin"), name: "runsc", config: filepath.Join(dir, "etc", "docker", "daemon.json")}
	testbed.Must(t, errors.Join(os.WriteFile(s.built, []byte("program"), 0o600), os.Mkdir(s.dir, 0o750)))
	for _, want := range []bool{true, false} {
		installed, err := s.install()
		testbed.Must(t, err)
		registered, err := s.register()
		testbed.Must(t, err)
		if installed != want || registered != want {
			t.Errorf("installed %v, registered %v, want %v", installed, registered, want)
		}
	}
	testbed.Must(t, errors.Join(os.WriteFile(s.config, []byte(`{"debug": true}`), 0o600), os.Chmod(s.config, 0o600)))
	_, err := s.register()
	testbed.Must(t, err)
	info, err := os.Stat(s.config)
	testbed.Must(t, err)
	program, err := os.Stat(s.registered())
	testbed.Must(t, err)
	if info.Mode().Perm() != 0o600 || program.Mode().Perm() != 0o755 {
		t.Errorf("modes %v and %v", info.Mode(), program.Mode())
	}
	for dir, want := range map[string]int{filepath.Dir(s.config): 1, s.dir: 2} {
		if files, err := os.ReadDir(dir); len(files) != want || err != nil {
			t.Errorf("%s has %v, %v", dir, files, err)
		}
	}
}

// Without the permission, what to do by hand is said in full.
func TestAdviceWithoutPermission(t *testing.T) {
	t.Parallel()
	s := setup{built: "/cache/runsc", dir: "/usr/local/bin", name: "runsc", config: "/etc/docker/daemon.json", pidFile: "/var/run/docker.pid"}
	text := s.withAdvice(&os.PathError{Op: "open", Path: s.config, Err: os.ErrPermission}).Error()
	for _, want := range []string{"sudo make gvisor", "install -m 755 /cache/runsc deploy/gvisor/sandfarm-runsc /usr/local/bin", `{"runtimes": {"runsc": {"path": "/usr/local/bin/sandfarm-runsc"}}}`, "kill -HUP"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
	other := errors.New("disk full")
	if got := s.withAdvice(other); !errors.Is(got, other) || got.Error() != other.Error() {
		t.Errorf("another error becomes %v", got)
	}
}

// The signal goes to dockerd only.
func TestReloadOfAnotherProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pid")
	for _, text := range []string{"", "x", "0", "1", "-1", "4194304000"} {
		testbed.Must(t, os.WriteFile(path, []byte(text), 0o600))
		if err := (setup{pidFile: path}).reload(); err == nil {
			t.Errorf("a pid file with %q is accepted", text)
		}
	}
}

func TestEngineOfAnotherMachine(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{"tcp://192.0.2.1:2375": "another machine", "unix://" + filepath.Join(t.TempDir(), "none"): "no Docker engine answers"} {
		if err := (setup{name: "runsc"}).run(t.Context(), host); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", host, err)
		}
	}
}

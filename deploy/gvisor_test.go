package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

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

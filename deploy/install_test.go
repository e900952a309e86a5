package main_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/secret"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// hardening is what every unit has. What a unit lacks of `systemd-analyze security` has its reason in docs/hosts.md.
var hardening = []string{
	"NoNewPrivileges=yes", "CapabilityBoundingSet=", "ProtectSystem=strict", "ProtectHome=yes", "PrivateTmp=yes", "PrivateDevices=yes",
	"ProtectKernelModules=yes", "ProtectKernelTunables=yes", "ProtectControlGroups=yes", "RestrictNamespaces=yes", "RestrictSUIDSGID=yes",
	"MemoryDenyWriteExecute=yes", "SystemCallFilter=@system-service", "SystemCallFilter=~@privileged @resources", "Restart=always",
}

func units(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("systemd/*.service")
	if err != nil || len(names) != 4 {
		t.Fatalf("the units are %v (%v)", names, err)
	}
	all := map[string]string{}
	for _, name := range names {
		content, err := os.ReadFile(name)
		testbed.Must(t, err)
		all[filepath.Base(name)] = string(content)
	}
	return all
}

func TestUnitsAreHardened(t *testing.T) {
	t.Parallel()
	for name, content := range units(t) {
		lines := strings.Split(content, "\n")
		has := map[string]bool{}
		for _, line := range lines {
			has[line] = true
		}
		for _, line := range append(hardening, "ExecStart=/usr/local/bin/sandfarm "+strings.TrimSuffix(strings.TrimPrefix(name, "sandfarm-"), ".service")) {
			if !has[line] {
				t.Errorf("%s lacks %s", name, line)
			}
		}
	}
}

func TestInstall(t *testing.T) {
	t.Parallel()
	const good = "SANDFARM_REDIS_URL=redis://:secret@10.0.0.11:6379/0\n"
	for _, c := range []struct {
		name, env string
		mode      os.FileMode
		args      []string
		says      string // on failure
		installed []string
	}{
		{"NoRole", good, 0o600, nil, "usage", nil},
		{"Help", "", 0, []string{"--help"}, "", nil},
		{"HelpBesideARole", good, 0o600, []string{"api", "-h"}, "", nil},
		{"UnknownRole", good, 0o600, []string{"redis"}, "no role redis", nil},
		{"NoSettings", "", 0, []string{"api"}, "farm.env is missing", nil},
		{"SettingsForAll", good, 0o644, []string{"api"}, "chmod 600", nil},
		{"SettingsNotFilledIn", "SANDFARM_S3_SECRET_KEY=PASSWORD\n", 0o600, []string{"api"}, "not filled in", nil},
		{"Control", good, 0o600, []string{"api", "scheduler"}, "", []string{"sandfarm-api.service", "sandfarm-scheduler.service"}},
		{"Worker", good, 0o600, []string{"worker"}, "", []string{"sandfarm-engine-proxy.service", "sandfarm-worker.service"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			program := filepath.Join(root, "program")
			write(t, program, "#!/bin/sh\n", 0o700)
			if c.env != "" {
				write(t, filepath.Join(root, "etc", "sandfarm", "farm.env"), c.env, c.mode)
			}
			run := exec.CommandContext(t.Context(), "systemd/install.sh", c.args...)
			run.Env = append(os.Environ(), "SANDFARM_ROOT="+root, "SANDFARM_PROGRAM="+program)
			out, err := run.CombinedOutput()
			if failed := c.says != ""; failed != (err != nil) || !strings.Contains(string(out), c.says) {
				t.Fatalf("install.sh: %v\n%s", err, out)
			}
			if asked := strings.HasPrefix(c.name, "Help"); asked && !strings.Contains(string(out), "usage: systemd/install.sh ROLE…\n") {
				t.Errorf("install.sh %s printed:\n%s", c.args, out)
			}
			found, _ := filepath.Glob(filepath.Join(root, "etc", "systemd", "system", "*"))
			for n := range found {
				found[n] = filepath.Base(found[n])
			}
			testbed.Diff(t, "it installed", strings.Join(c.installed, " "), strings.Join(found, " "))
		})
	}
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(content), 0o600)
	}
	if err == nil {
		err = os.Chmod(path, mode)
	}
	testbed.Must(t, err)
}

// initialise runs init.sh and returns its output.
func initialise(t *testing.T, args ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "compose/init.sh", args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("init.sh %v: %v\n%s", args, err, stderr.String())
	}
	return string(out)
}

// variables reads an environment file.
func variables(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	testbed.Must(t, err)
	found := map[string]string{}
	for line := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n") {
		name, value, ok := strings.Cut(line, "=")
		if strings.HasPrefix(line, "#") {
			continue
		}
		if _, twice := found[name]; !ok || twice {
			t.Errorf("line %q is no variable, or a second one", line)
		}
		found[name] = value
	}
	return found
}

// keyIn finds the API key in what init.sh printed.
func keyIn(t *testing.T, text string) string {
	t.Helper()
	key := regexp.MustCompile(`\bsf_[0-9a-f]{48}\b`).FindString(text)
	if key == "" {
		t.Fatalf("no API key in %q", text)
	}
	return key
}

func hashOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

func TestInitMakesPasswordsOnce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), ".env")
	key := keyIn(t, initialise(t, file))
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v; want 0600", info.Mode(), err)
	}
	first := variables(t, file)
	for _, name := range []string{"SANDFARM_REDIS_PASSWORD", "SANDFARM_S3_SECRET_KEY", "SANDFARM_S3_API_SECRET", "SANDFARM_S3_WORKER_SECRET", "SANDFARM_S3_SCHEDULER_SECRET", "SANDFARM_CALLBACK_SECRET", "SANDFARM_SECRETS_KEY"} {
		if len(first[name]) < 40 {
			t.Errorf("%s has %d characters, want 40 at least", name, len(first[name]))
		}
	}
	if _, err := secret.ParseKeys(first["SANDFARM_SECRETS_KEY"]); err != nil {
		t.Error(err)
	}
	testbed.Diff(t, "keys", "default:"+hashOf(key), first["SANDFARM_API_KEYS"])
	if text, err := os.ReadFile(file); err != nil || bytes.Contains(text, []byte(key)) {
		t.Errorf("the file holds the key itself (error %v)", err)
	}
	testbed.Diff(t, "the second start", "", initialise(t, file))
	testbed.Diff(t, "the second start changed", first, variables(t, file))
	other := filepath.Join(t.TempDir(), ".env")
	initialise(t, other)
	for name, value := range variables(t, other) {
		if strings.Contains(name, "PASSWORD") || strings.Contains(name, "SECRET") || name == "SANDFARM_API_KEYS" {
			if value == first[name] {
				t.Errorf("%s is the same in two files", name)
			}
		}
	}
}

func TestInitKeepsExistingVariables(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), ".env")
	if err := os.WriteFile(file, []byte("SANDFARM_PORT=8123\nSANDFARM_REDIS_PASSWORD=mine"), 0o644); err != nil { // no end of line
		t.Fatal(err)
	}
	initialise(t, file)
	got := variables(t, file)
	if got["SANDFARM_PORT"] != "8123" || got["SANDFARM_REDIS_PASSWORD"] != "mine" || got["SANDFARM_S3_SECRET_KEY"] == "" {
		t.Errorf("variables %v", got)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v; want 0600: it holds passwords now", info.Mode(), err)
	}
}

// Options are not taken for the name of the file.
func TestInitTellsItsUsage(t *testing.T) {
	t.Parallel()
	if got := initialise(t, "--help"); !strings.Contains(got, "--key TENANT") || strings.Contains(got, "#") {
		t.Errorf("--help prints %q", got)
	}
	out, err := exec.CommandContext(t.Context(), "compose/init.sh", "--nothing").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--help") {
		t.Errorf("an unknown option: %v, %q", err, out)
	}
	for _, name := range []string{"--help", "--nothing"} {
		if _, err := os.Stat(name); err == nil {
			t.Errorf("it made a file %s", name)
		}
	}
}

func TestInitMakesFurtherKeys(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), ".env")
	first := keyIn(t, initialise(t, file))
	second := keyIn(t, initialise(t, "--key", "team-b", file))
	want := "default:" + hashOf(first) + ",team-b:" + hashOf(second)
	testbed.Diff(t, "keys", want, variables(t, file)["SANDFARM_API_KEYS"])
	if out, err := exec.CommandContext(t.Context(), "compose/init.sh", "--key", "a|b", file).CombinedOutput(); err == nil || !strings.Contains(string(out), "name a tenant") {
		t.Errorf("a tenant of strange characters: error %v, %q", err, out)
	}
}

package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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

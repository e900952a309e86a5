package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/server"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// A login shell finds the programs that every other process finds, whatever /etc/profile sets.
func TestLoginShellsHaveThePath(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	for _, shell := range []string{"bash", "sh"} {
		ran := agenttest.Run(t, a.Client, agenttest.Commands(`echo "$PATH"; `+shell+` -l -c 'echo "$PATH"'`))
		if lines := strings.Split(ran.Stdout, "\n"); len(lines) != 3 || lines[0] == "" || lines[0] != lines[1] {
			t.Errorf("%s: %q %q", shell, ran.Stdout, ran.Stderr)
		}
	}
}

// Code has its own HOME where there is no /home/user, as in images that are not the farm's and on most machines.
func TestAMissingHomeIsNotSet(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	home := a.Home
	if _, err := os.Stat(farm.UserHome); err == nil {
		home = farm.UserHome
	}
	for given, want := range map[string]string{farm.UserHome: home, "/elsewhere": "/elsewhere"} {
		s := agenttest.Commands(`echo "$HOME"`)
		s.Env = map[string]string{"HOME": given}
		if ran := agenttest.Run(t, a.Client, s); ran.Stdout != want+"\n" {
			t.Errorf("%s: %q", given, ran.Stdout)
		}
	}
}

func TestAProfileOfTheImageIsKept(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	profile := filepath.Join(home, ".profile")
	if err := os.WriteFile(profile, []byte("# mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	agenttest.Start(t, os.Getenv("PATH"), func(c *server.Config) { c.HomeDir = home })
	if text, err := os.ReadFile(profile); err != nil || string(text) != "# mine\n" {
		t.Errorf("%q, %v", text, err)
	}
}

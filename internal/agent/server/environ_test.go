package server_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/server"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/secret"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A login shell finds the programs that every other process finds, whatever /etc/profile sets.
func TestLoginShellsHaveThePath(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	for _, shell := range []string{"bash", "sh"} {
		ran := agenttest.Run(t, a.Client, agenttest.Commands(`echo "$PATH"; `+shell+` -l -c 'echo "$PATH"'`))
		lines := strings.Split(ran.Stdout, "\n")
		testbed.Check(t, len(lines) == 3 && lines[0] != "" && lines[0] == lines[1], "%s: %q %q", shell, ran.Stdout, ran.Stderr)
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
		ran := agenttest.Run(t, a.Client, s)
		testbed.Check(t, ran.Stdout == want+"\n", "%s: %q", given, ran.Stdout)
	}
}

func TestAProfileOfTheImageIsKept(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	profile := filepath.Join(home, ".profile")
	testbed.Must(t, os.WriteFile(profile, []byte("# mine\n"), 0o600))
	agenttest.Start(t, os.Getenv("PATH"), func(c *server.Config) { c.HomeDir = home })
	text, err := os.ReadFile(profile)
	testbed.Check(t, err == nil && string(text) == "# mine\n", "%q, %v", text, err)
}

// Older systems keep their files under /app, which is a link to this directory in the images.
func TestAppResultsLinkToWorkspace(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	to, err := os.Readlink(filepath.Join(a.Home, ".app", "results"))
	testbed.Check(t, err == nil && to == a.Workspace, "results lead to %q, %v", to, err)
}

// Programs of a sandbox with an authority find it, behind the certificates of the image, by their environment. Others get no such variables.
func TestTheEnvironmentNamesTheAuthority(t *testing.T) {
	t.Parallel()
	const show = `echo "$SSL_CERT_FILE|$REQUESTS_CA_BUNDLE|$CURL_CA_BUNDLE|$PIP_CERT|$GIT_SSL_CAINFO|$NODE_EXTRA_CA_CERTS"`
	authority, err := secret.NewAuthority([]string{"api.example.com"}, time.Now())
	testbed.Must(t, err)
	a := agenttest.StartProxied(t, "/usr/bin:/bin", http.NotFoundHandler(), func(cfg *server.Config) {
		cfg.Authority = authority.Certificate
		cfg.Env = append(cfg.Env, "PIP_CERT=/mine")
	})
	ran := agenttest.Run(t, a.Client, agenttest.Commands(show))
	paths := strings.Split(strings.TrimSpace(ran.Stdout), "|")
	if len(paths) != 6 || paths[0] == "" || paths[1] != paths[0] || paths[2] != paths[0] || paths[3] != "/mine" || paths[4] != paths[0] || paths[5] == paths[0] {
		t.Fatalf("%q", paths)
	}
	bundle, err := os.ReadFile(paths[0])
	testbed.Must(t, err)
	alone, err := os.ReadFile(paths[5])
	testbed.Check(t, err == nil && bytes.HasSuffix(bundle, alone), "the bundle does not end with the authority: %v", err)
	block, _ := pem.Decode(alone)
	testbed.Check(t, block != nil && bytes.Equal(block.Bytes, authority.Certificate), "the authority is another one")
	image, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	testbed.Check(t, err != nil || bytes.HasPrefix(bundle, bytes.TrimSpace(image)), "the certificates of the image are missing")
	testbed.Check(t, x509.NewCertPool().AppendCertsFromPEM(bundle), "the bundle has no certificate")
	plain := agenttest.StartProxied(t, "/usr/bin:/bin", http.NotFoundHandler(), nil)
	ran = agenttest.Run(t, plain.Client, agenttest.Commands(show))
	testbed.Check(t, ran.Stdout == "|||||\n", "without an authority: %q", ran.Stdout)
}

func TestUseOfTheSandbox(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	testbed.Must(t, os.WriteFile(filepath.Join(a.Workspace, "file"), make([]byte, 1<<20), 0o600))
	use, err := a.Live().Use(t.Context())
	testbed.Must(t, err)
	testbed.Check(t, use.CPU > 0 && use.MemoryBytes >= 1<<20 && use.DiskBytes >= 1<<20, "%+v", use)
}

// A worker extends the deadline that the agent was started with, then lets it pass.
func TestWorkerSetsDeadline(t *testing.T) {
	t.Parallel()
	ended := make(chan time.Time, 1)
	a := agenttest.Start(t, "/bin", func(c *server.Config) {
		c.EndsIn, c.End = time.Millisecond, func() { ended <- time.Now() }
	})
	testbed.Must(t, a.SetDeadline(t.Context(), time.Hour))
	began := time.Now()
	testbed.Must(t, a.SetDeadline(t.Context(), -time.Second))
	select {
	case at := <-ended:
		took := at.Sub(began)
		testbed.Check(t, took >= 6*time.Second, "it ended after %s", took)
	case <-time.After(time.Minute):
		t.Error("the sandbox was not ended")
	}
}

// What a process started belongs to it, and is listed with what it costs.
func TestRunningProcesses(t *testing.T) {
	t.Parallel()
	l := agenttest.StartPlain(t).Live()
	p := startProcess(t, l, spec("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo busy; sleep 1000.25 "+strings.Repeat("0 ", 200)+"& wait"))
	follow(t, l, p.ID, "r", 0, contains("busy"))
	var own, child farm.RunningProcess
	testbed.Until(t, "both processes are listed", func() bool {
		list, err := l.Running(t.Context())
		testbed.Must(t, err)
		for i, one := range list {
			if i > 0 && one.PID <= list[i-1].PID {
				t.Errorf("%d follows %d", one.PID, list[i-1].PID)
			}
			if one.PID == p.PID {
				own = one
			}
			if one.Parent == p.PID && strings.HasPrefix(one.Command, "sleep 1000.25 0 0") {
				child = one
			}
		}
		return child.PID != 0
	})
	if own.Owner != p.ID || own.CPUSeconds <= 0 || own.MemoryBytes < 100<<10 || time.Since(own.StartedAt).Abs() > time.Minute || !strings.Contains(own.Command, "while") {
		t.Errorf("%+v", own)
	}
	testbed.Check(t, child.Owner == p.ID && len(child.Command) == farm.MaxRunningCommand, "%+v", child)
}

// A program in the middle of an exec shows neither arguments nor environment: it is listed with both all the same.
func TestProgramThatExecsIsListed(t *testing.T) {
	t.Parallel()
	l := agenttest.StartPlain(t).Live()
	const again = `exec sh -c "$0" "$0"`
	p := startProcess(t, l, spec("exec sh -c '"+again+"' '"+again+"'"))
	for range 40 {
		list, err := l.Running(t.Context())
		testbed.Must(t, err)
		i := slices.IndexFunc(list, func(r farm.RunningProcess) bool { return r.PID == p.PID })
		testbed.Require(t, i >= 0, "process %d is not listed: %+v", p.PID, list)
		testbed.Require(t, list[i].Owner == p.ID && !strings.HasPrefix(list[i].Command, "["), "%+v", list[i])
	}
}

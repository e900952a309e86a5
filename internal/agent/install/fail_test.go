//go:build integration

package install_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/server"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// tampered serves the real index with modified answers.
func tampered(t *testing.T, change func(next http.Handler, w http.ResponseWriter, r *http.Request)) http.Handler {
	t.Helper()
	next := realIndex(t)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { change(next, w, r) })
}

func TestIndexFailuresAreReported(t *testing.T) {
	t.Parallel()
	tool := agenttest.UV(t)
	for name, c := range map[string]struct {
		change func(next http.Handler, w http.ResponseWriter, r *http.Request)
		want   string
	}{
		"says why": {func(_ http.Handler, w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "The package index upstream does not answer.", http.StatusBadGateway)
		}, "The package index could not deliver the files for cowsay: The package index upstream does not answer."},
		"unavailable": {
			func(_ http.Handler, w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusServiceUnavailable)
			},
			"The package index could not deliver the files for cowsay: it answered with status 503.",
		},
		"breaks off": {func(http.Handler, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "The package index is not reachable"},
		"garbage": {func(_ http.Handler, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
			_, _ = io.WriteString(w, "{]")
		}, "cowsay could not be installed: "},
		"wrong bytes": {func(next http.Handler, w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, ".whl") || r.Header.Get("Range") != "" || r.Method != http.MethodGet {
				next.ServeHTTP(w, r)
				return
			}
			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, r)
			raw := rec.Body.Bytes()
			raw[10] ^= 1 // changes the time of the first file; the archive stays valid
			_, _ = w.Write(raw)
		}, "does not match its published hash"},
		"file cut off": {func(next http.Handler, w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, ".whl") || r.Header.Get("Range") != "" || r.Method != http.MethodGet {
				next.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Length", "100000")
			_, _ = w.Write(make([]byte, 1000))
		}, "The package index is not reachable: the files for cowsay could not be downloaded."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := agenttest.StartIndexed(t, agenttest.KernelPath(t), tampered(t, c.change), func(c *server.Config) { c.UV = tool })
			ran := agenttest.Run(t, a.Client, packages("cowsay==6.1", "numpy"))
			got := ran.Outcome.Install
			if len(got) != 2 || got[0].Status != farm.PackageFailed || !strings.HasPrefix(got[0].Message, c.want) && !strings.Contains(got[0].Message, c.want) || got[1].Status != farm.PackageInstalled {
				t.Errorf("got %+v\n%s", got, ran.Stderr)
			}
			ran = agenttest.Run(t, a.Client, agenttest.Code("import cowsay"))
			testbed.Check(t, ran.Outcome.Error != nil && ran.Outcome.Error.Name == "ModuleNotFoundError", "it is installed: %+v", ran)
		})
	}
}

// The installer's error is shown once for each package that fails, and of what it installs only the names.
func TestInstallSaysNothingTwice(t *testing.T) {
	t.Parallel()
	a := installing(t)
	ran := agenttest.Run(t, a.Client, packages("no-such-a", "humanize==4.12.0", "no-such-b"))
	for text, want := range map[string]int{"Because no-such-a was not found": 1, "Because no-such-b was not found": 1, "installing humanize 4.12.0\n": 1, "Using ": 0} {
		n := strings.Count(ran.Stderr, text)
		testbed.Check(t, n == want, "%d times %q, want %d:\n%s", n, text, want, ran.Stderr)
	}
	got := ran.Outcome.Install
	testbed.Check(t, len(got) == 3 && got[1].Status == farm.PackageInstalled, "%+v", got)
}

func TestNoInstallerStartsWithoutNetwork(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	ran := agenttest.Run(t, a.Client, packages("numpy", "cowsay", "six; rm"))
	got := ran.Outcome.Install
	if len(got) != 3 || got[0].Status != farm.PackageInstalled || got[1].Message != `This sandbox has network "none": create one with network "packages" to install.` || got[2].Status != farm.PackageFailed {
		t.Fatalf("got %+v", got)
	}
	testbed.Check(t, len(ran.Stdout)+len(ran.Stderr) == 0, "something was started: %q %q", ran.Stdout, ran.Stderr)
}

func TestStoppedInstallLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	tool := agenttest.UV(t)
	for name, stop := range map[string]agent.StopReason{"cancel": agent.StopCancel, "interrupt": agent.StopInterrupt, "timeout": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reached, release := make(chan struct{}), make(chan struct{})
			var once sync.Once
			defer close(release)
			a := agenttest.StartIndexed(t, agenttest.KernelPath(t), tampered(t, func(next http.Handler, w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "tabulate-") && strings.HasSuffix(r.URL.Path, ".whl") { // only cowsay is served
					once.Do(func() { close(reached) })
					<-release
				}
				next.ServeHTTP(w, r)
			}), func(c *server.Config) { c.UV = tool })
			spec := packages("cowsay==6.1", "tabulate==0.9.0")
			spec.Grace = time.Second
			if stop == "" {
				spec.Timeout = 5 * time.Second // then most often one package is there and the other is not
			}
			id := agenttest.NewID()
			testbed.Must(t, a.Start(t.Context(), id, spec))
			if stop != "" {
				<-reached
				testbed.Must(t, a.Stop(t.Context(), id, stop))
			} // a timeout leaves nothing behind at any moment: on a busy machine it comes before the second package
			ran := agenttest.Read(t, a.Client, id)
			if ran.Outcome.Canceled != (stop == agent.StopCancel) || ran.Outcome.TimedOut != (stop == "") || len(ran.Outcome.Install) != 2 || ran.Outcome.Install[1].Status != farm.PackageFailed {
				t.Errorf("outcome = %+v", ran.Outcome)
			}
			if message := ran.Outcome.Install[1].Message; strings.Contains(message, "reached its timeout") != (stop == "") || !strings.HasPrefix(message, "The installation ") {
				t.Errorf("message = %q", message)
			}
			for _, module := range []string{"cowsay", "tabulate"} {
				ran := agenttest.Run(t, a.Client, agenttest.Code("import "+module))
				testbed.Check(t, ran.Outcome.Error != nil && ran.Outcome.Error.Name == "ModuleNotFoundError", "%s is installed: %+v", module, ran)
			}
			left, _ := filepath.Glob(a.Home + "/.install-*")
			testbed.Check(t, len(left) == 0, "left: %v", left)
			left = agenttest.Processes(t, "SBX_EXEC="+id)
			testbed.Check(t, len(left) == 0, "processes are left: %v", left)
		})
	}
}

func TestPipInstallsWhereThereIsNoUV(t *testing.T) {
	t.Parallel()
	a := agenttest.StartIndexed(t, agenttest.KernelPath(t), realIndex(t), func(c *server.Config) { c.UV = "/nowhere" })
	wanted := []string{"cowsay==6.1", "no-such-package-xyzzy-77", "humanize>=99", "numpy", "tabulate"}
	ran := agenttest.Run(t, a.Client, packages(wanted...))
	want := []farm.PackageOutcome{
		{Name: "cowsay", Requested: wanted[0], Status: farm.PackageInstalled},
		{Name: "no-such-package-xyzzy-77", Requested: wanted[1], Status: farm.PackageFailed},
		{Name: "humanize", Requested: wanted[2], Status: farm.PackageFailed},
		{Name: "numpy", Requested: wanted[3], Status: farm.PackageInstalled},
		{Name: "tabulate", Requested: wanted[4], Status: farm.PackageInstalled},
	}
	diff := cmp.Diff(want, ran.Outcome.Install, statusOnly)
	testbed.Require(t, diff == "", "%s\n%+v\n%s", diff, ran.Outcome, ran.Stderr)
	for i, part := range map[int]string{1: "not found in the package index", 2: `No version of humanize fits "humanize>=99".`} {
		testbed.Check(t, strings.Contains(ran.Outcome.Install[i].Message, part), "message %d: %q", i, ran.Outcome.Install[i].Message)
	}
	again := agenttest.Run(t, a.Client, packages("cowsay==6.0"))
	testbed.Require(t, again.Outcome.ExitCode == 0, "again = %+v", again)
	if ran := agenttest.Run(t, a.Client, agenttest.Code("import cowsay, numpy, tabulate\nfrom importlib.metadata import version\nprint(version('cowsay'), numpy.__file__)")); !strings.HasPrefix(ran.Stdout, "6.0 ") || !strings.Contains(ran.Stdout, "site-packages/numpy") {
		t.Fatalf("ran = %+v %+v", ran, ran.Outcome.Error)
	}
}

// fakeUV is a fake installer that fails as the test needs.
func fakeUV(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "uv")
	testbed.Must(t, os.WriteFile(path, []byte("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\n"+script), 0o755)) //nolint:gosec // it is to be run
	return path
}

func TestEndlessBuildOutputIsBounded(t *testing.T) {
	t.Parallel()
	tool := fakeUV(t, "echo 'error: Failed to build `cowsay==1`' >&2; head -c 100000000 /dev/zero | tr '\\0' x >&2; echo; echo the end >&2; exit 1")
	a := agenttest.StartIndexed(t, agenttest.KernelPath(t), http.NotFoundHandler(), func(c *server.Config) { c.UV = tool })
	ran := agenttest.Run(t, a.Client, packages("cowsay"))
	got := ran.Outcome.Install[0]
	if len(ran.Stderr) < 100_000_000 || got.Status != farm.PackageFailed || len(got.Message) > 1200 || !strings.HasSuffix(got.Message, "the end") {
		t.Fatalf("%d bytes of output; %.300q … of %d", len(ran.Stderr), got.Message, len(got.Message))
	}
}

func TestUnusableInstallerIsNotUsed(t *testing.T) {
	t.Parallel()
	broken := filepath.Join(t.TempDir(), "uv")
	testbed.Must(t, os.WriteFile(broken, []byte("#!/no/such/loader\n"), 0o755)) //nolint:gosec // it is to be tried
	a := agenttest.StartIndexed(t, agenttest.KernelPath(t), realIndex(t), func(c *server.Config) { c.UV = broken })
	ran := agenttest.Run(t, a.Client, packages("cowsay"))
	testbed.Require(t, ran.Outcome.ExitCode == 0, "ran = %+v", ran)
}

func TestInstallsTakeTurns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tool := fakeUV(t, "touch "+dir+"/begun; while ! [ -e "+dir+"/go ]; do sleep 0.02; done; exit 1")
	a := agenttest.StartIndexed(t, agenttest.KernelPath(t), http.NotFoundHandler(), func(c *server.Config) { c.UV = tool })
	first, second := agenttest.NewID(), agenttest.NewID()
	testbed.Must(t, a.Start(t.Context(), first, packages("cowsay")))
	for {
		if _, err := os.Stat(dir + "/begun"); err == nil {
			break
		}
		select {
		case <-t.Context().Done():
			t.Fatal("the first does not begin")
		case <-time.After(10 * time.Millisecond):
		}
	}
	testbed.Must(t, a.Start(t.Context(), second, packages("tabulate", "../x")))
	testbed.Must(t, a.Stop(t.Context(), second, agent.StopCancel))
	ran := agenttest.Read(t, a.Client, second) // queued: it ends although the first still runs
	if got := ran.Outcome.Install; !ran.Outcome.Canceled || len(got) != 2 || got[0].Status != farm.PackageFailed || got[0].Message != "The installation was stopped before this package was installed." {
		t.Errorf("outcome = %+v", ran.Outcome)
	}
	testbed.Must(t, os.WriteFile(dir+"/go", nil, 0o600))
	ran = agenttest.Read(t, a.Client, first)
	testbed.Check(t, ran.Outcome.Install[0].Status == farm.PackageFailed && !ran.Outcome.Canceled, "outcome = %+v", ran.Outcome)
}

func TestUnavailableIndexIsNotAskedForEveryPackage(t *testing.T) {
	t.Parallel()
	tool, asked := agenttest.UV(t), atomic.Int64{}
	a := agenttest.StartIndexed(t, agenttest.KernelPath(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.Error(w, "Upstream is down.", http.StatusGatewayTimeout)
	}), func(c *server.Config) { c.UV = tool })
	wanted := []string{}
	for i := range 20 {
		wanted = append(wanted, fmt.Sprintf("some-package-%d", i))
	}
	ran := agenttest.Run(t, a.Client, packages(wanted...))
	for i, p := range ran.Outcome.Install {
		want := "The package index could not deliver the files for " + wanted[i] + ": Upstream is down."
		testbed.Check(t, p.Message == want, "%q, want %q", p.Message, want)
	}
	n := asked.Load()
	testbed.Check(t, n <= 60, "the index got %d requests", n) // all together, then three individually, each twice
}

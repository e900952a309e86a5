//go:build integration

package server_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/server"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// uvVersion is the installer that is tested, the one that images are made with.
const uvVersion = "0.13.8"

// uv gives the path of the installer, which it gets when it is not there.
func uv(tb testing.TB) string {
	tb.Helper()
	cache, err := os.UserCacheDir()
	must(tb, err)
	dir := filepath.Join(cache, "sandfarm", "test-uv-"+uvVersion)
	path := filepath.Join(dir, "bin", "uv")
	if _, err := os.Stat(path); err != nil {
		out, err := exec.Command("python3", "-m", "pip", "install", "-q", "--target", dir, "uv=="+uvVersion).CombinedOutput()
		if err != nil {
			tb.Fatalf("get uv: %v\n%s", err, out)
		}
	}
	return path
}

// realIndex serves the public indexes.
func realIndex(tb testing.TB) http.Handler {
	tb.Helper()
	mux := http.NewServeMux()
	for prefix, target := range map[string]string{
		"/pypi/simple/": "https://pypi.org/simple/", "/pypi/files/": "https://files.pythonhosted.org/", "/npm/": "https://registry.npmjs.org/",
	} {
		to, err := url.Parse(target)
		must(tb, err)
		mux.Handle(prefix, http.StripPrefix(strings.TrimSuffix(prefix, "/"), &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(to)
				r.Out.Header.Del("Accept-Encoding") // as it is, so that links can be changed
			},
			ModifyResponse: func(res *http.Response) error {
				if !strings.Contains(res.Header.Get("Content-Type"), "json") && !strings.Contains(res.Header.Get("Content-Type"), "html") {
					return nil
				}
				raw, err := io.ReadAll(res.Body)
				if err != nil {
					return err
				}
				raw = bytes.ReplaceAll(raw, []byte("https://files.pythonhosted.org/"), []byte("/pypi/files/"))
				raw = bytes.ReplaceAll(raw, []byte("https://registry.npmjs.org/"), []byte("http://"+res.Request.Header.Get("X-Own")+"/npm/"))
				res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
				res.Header.Set("Content-Length", strconv.Itoa(len(raw)))
				return nil
			},
		}))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("X-Own", r.Host)
		mux.ServeHTTP(w, r)
	})
}

// installing starts an agent that can install from the public indexes.
func installing(t *testing.T) *agenttest.Agent {
	t.Helper()
	tool := uv(t)
	return agenttest.StartIndexed(t, venv(t), realIndex(t), func(c *server.Config) { c.UV = tool })
}

// packages is an execution that installs Python packages.
func packages(names ...string) agent.Spec {
	return agent.Spec{Kind: farm.KindInstall, Install: &agent.Install{Manager: farm.ManagerPip, Packages: names}}
}

var statusOnly = cmpopts.IgnoreFields(farm.PackageOutcome{}, "Message", "Version", "Why")

func TestInstallReachesTheRunningKernel(t *testing.T) {
	t.Parallel()
	a := installing(t)
	if ran := agenttest.Run(t, a.Client, agenttest.Code("kept = 7\nimport humanize")); ran.Outcome.Error == nil || ran.Outcome.Error.Name != "ModuleNotFoundError" {
		t.Fatalf("it is there before: %+v", ran.Outcome)
	}
	began := time.Now()
	ran := agenttest.Run(t, a.Client, packages("humanize==4.12.0", "NumPy"))
	t.Logf("took %v", time.Since(began))
	want := []farm.PackageOutcome{
		{Name: "humanize", Requested: "humanize==4.12.0", Version: "4.12.0", Status: farm.PackageInstalled},
		{Name: "numpy", Requested: "NumPy", Status: farm.PackageInstalled},
	}
	if diff := cmp.Diff(want, ran.Outcome.Install, statusOnly); diff != "" || ran.Outcome.ExitCode != 0 || ran.Outcome.Files != nil {
		t.Fatalf("outcome = %+v\n%s\n%s", ran.Outcome, diff, ran.Stderr)
	}
	ran = agenttest.Run(t, a.Client, agenttest.Code("import humanize, numpy\nprint(kept, humanize.__version__, humanize.__file__, numpy.__file__)"))
	if !strings.HasPrefix(ran.Stdout, "7 4.12.0 "+a.Home+"/.packages/") || !strings.Contains(ran.Stdout, "site-packages/numpy") {
		t.Fatalf("ran = %+v %+v", ran, ran.Outcome.Error)
	}
	for _, name := range []string{"cowsay", "tabulate"} { // a failed import before, and one without
		if name == "cowsay" {
			agenttest.Run(t, a.Client, agenttest.Code("import cowsay"))
		}
		if ran := agenttest.Run(t, a.Client, packages(name)); ran.Outcome.ExitCode != 0 {
			t.Fatalf("%s: %+v", name, ran)
		}
		if ran := agenttest.Run(t, a.Client, agenttest.Code(fmt.Sprintf("import %s; print('in')", name))); ran.Stdout != "in\n" {
			t.Fatalf("%s: %+v %+v", name, ran, ran.Outcome.Error)
		}
	}
	list, err := a.Packages(t.Context())
	must(t, err)
	found := map[string]string{}
	for _, p := range list {
		found[p.Name] = p.Version
	}
	if found["humanize"] != "4.12.0" || found["cowsay"] == "" || found["ipykernel"] == "" {
		t.Fatalf("packages = %v", found)
	}
	if left, _ := filepath.Glob(a.Home + "/.install-*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestInstallReportsEachPackage(t *testing.T) {
	t.Parallel()
	a := installing(t)
	cases := []struct{ asked, name, message string }{ // no message: it is installed
		{"humanize", "humanize", ""},
		{"no-such-package-xyzzy-77", "no-such-package-xyzzy-77", "no-such-package-xyzzy-77 was not found in the package index"},
		{"numpy>=99", "numpy", `No version of numpy fits "numpy>=99": only numpy<=`},
		{"pywin32", "pywin32", "pywin32 has no wheel for Python 3."},
		{"Cowsay>=6", "cowsay", ""},
		{"cowsay", "cowsay", ""},
		{"six; rm -rf /", "six; rm -rf /", "This is not a requirement that can be installed"},
		{"--index-url=x", "--index-url=x", "This is not a requirement that can be installed"},
		{"mysqlclient==2.2.4", "mysqlclient", "mysqlclient could not be built: "},
		{"Typing.Extensions>=4", "typing-extensions", ""},
		{"cowsay<6", "cowsay", "cowsay conflicts with what else is wanted: "},
	}
	var wanted []string
	for _, c := range cases {
		wanted = append(wanted, c.asked)
	}
	ran := agenttest.Run(t, a.Client, packages(wanted...))
	if len(ran.Outcome.Install) != len(cases) {
		t.Fatalf("outcome = %+v", ran.Outcome)
	}
	for i, c := range cases {
		got := ran.Outcome.Install[i]
		good := got.Requested == c.asked && got.Name == c.name && len(got.Message) < 1500
		if c.message == "" {
			good = good && got.Status == farm.PackageInstalled && got.Version != "" && got.Message == ""
		} else {
			good = good && got.Status == farm.PackageFailed && got.Version == "" && strings.HasPrefix(got.Message, c.message)
		}
		if !good {
			t.Errorf("%s: %+v", c.asked, got)
		}
	}
	if built := ran.Outcome.Install[8].Message; strings.Count(built, "\n") > 4 || !strings.Contains(built, "Specify MYSQLCLIENT_CFLAGS") {
		t.Errorf("last words of a build: %q", built)
	}
}

func TestPlainPipWorks(t *testing.T) {
	t.Parallel()
	a := installing(t)
	ran := agenttest.Run(t, a.Client, agenttest.Commands("pip install cowsay 2>&1", "cowsay -t moo", "pip install --upgrade tabulate==0.9.0 2>&1", "python -c 'import tabulate; print(tabulate.__version__)'"))
	if ran.Outcome.ExitCode != 0 || !strings.Contains(ran.Stdout, "moo") || !strings.Contains(ran.Stdout, "0.9.0") {
		t.Fatalf("ran = %+v", ran)
	}
	ran = agenttest.Run(t, a.Client, agenttest.Code("!pip install humanize\nimport humanize, cowsay\nprint('both')"))
	if !strings.Contains(ran.Stdout, "both\n") {
		t.Fatalf("ran = %+v %+v", ran, ran.Outcome.Error)
	}
}

// tampered is the real index with something done to what it serves.
func tampered(t *testing.T, change func(next http.Handler, w http.ResponseWriter, r *http.Request)) http.Handler {
	t.Helper()
	next := realIndex(t)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { change(next, w, r) })
}

func TestAnIndexThatFailsIsTold(t *testing.T) {
	t.Parallel()
	tool := uv(t)
	for name, c := range map[string]struct {
		change func(next http.Handler, w http.ResponseWriter, r *http.Request)
		want   string
	}{
		"says why": {func(_ http.Handler, w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "The package index upstream does not answer.", http.StatusBadGateway)
		}, "The package index could not give what is needed for cowsay: The package index upstream does not answer."},
		"unavailable": {func(_ http.Handler, w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
		},
			"The package index could not give what is needed for cowsay: it answered with status 503."},
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
			raw[10] ^= 1 // the time of the first file: it is still an archive
			_, _ = w.Write(raw)
		}, "does not have the hash"},
		"file cut off": {func(next http.Handler, w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, ".whl") || r.Header.Get("Range") != "" || r.Method != http.MethodGet {
				next.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Length", "100000")
			_, _ = w.Write(make([]byte, 1000))
		}, "The package index is not reachable: what is needed for cowsay did not come."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := agenttest.StartIndexed(t, venv(t), tampered(t, c.change), func(c *server.Config) { c.UV = tool })
			ran := agenttest.Run(t, a.Client, packages("cowsay==6.1", "numpy"))
			got := ran.Outcome.Install
			if len(got) != 2 || got[0].Status != farm.PackageFailed || !strings.HasPrefix(got[0].Message, c.want) && !strings.Contains(got[0].Message, c.want) || got[1].Status != farm.PackageInstalled {
				t.Errorf("got %+v\n%s", got, ran.Stderr)
			}
			if ran := agenttest.Run(t, a.Client, agenttest.Code("import cowsay")); ran.Outcome.Error == nil || ran.Outcome.Error.Name != "ModuleNotFoundError" {
				t.Errorf("it is there: %+v", ran)
			}
		})
	}
}

func TestWithoutANetworkNothingIsStarted(t *testing.T) {
	t.Parallel()
	a := kernel(t)
	ran := agenttest.Run(t, a.Client, packages("numpy", "cowsay", "six; rm"))
	got := ran.Outcome.Install
	if len(got) != 3 || got[0].Status != farm.PackageInstalled || got[1].Message != `This sandbox has network "none": create one with network "packages" to install.` || got[2].Status != farm.PackageFailed {
		t.Fatalf("got %+v", got)
	}
	if len(ran.Stdout)+len(ran.Stderr) > 0 {
		t.Errorf("something was started: %q %q", ran.Stdout, ran.Stderr)
	}
}

func TestAStoppedInstallLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	tool := uv(t)
	for name, stop := range map[string]agent.StopReason{"cancel": agent.StopCancel, "interrupt": agent.StopInterrupt, "timeout": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reached, release := make(chan struct{}), make(chan struct{})
			var once sync.Once
			defer close(release)
			a := agenttest.StartIndexed(t, venv(t), tampered(t, func(next http.Handler, w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "tabulate-") && strings.HasSuffix(r.URL.Path, ".whl") { // cowsay comes, this does not
					once.Do(func() { close(reached) })
					<-release
				}
				next.ServeHTTP(w, r)
			}), func(c *server.Config) { c.UV = tool })
			spec := packages("cowsay==6.1", "tabulate==0.9.0")
			spec.Grace = time.Second
			if stop == "" {
				spec.Timeout = 5 * time.Second
			}
			id := agenttest.NewID()
			must(t, a.Start(t.Context(), id, spec))
			<-reached
			if stop != "" {
				must(t, a.Stop(t.Context(), id, stop))
			}
			ran := agenttest.Read(t, a.Client, id)
			if ran.Outcome.Canceled != (stop == agent.StopCancel) || ran.Outcome.TimedOut != (stop == "") || len(ran.Outcome.Install) != 2 || ran.Outcome.Install[1].Status != farm.PackageFailed {
				t.Errorf("outcome = %+v", ran.Outcome)
			}
			if message := ran.Outcome.Install[1].Message; strings.Contains(message, "reached its timeout") != (stop == "") || !strings.HasPrefix(message, "The installation ") {
				t.Errorf("message = %q", message)
			}
			for _, module := range []string{"cowsay", "tabulate"} {
				if ran := agenttest.Run(t, a.Client, agenttest.Code("import "+module)); ran.Outcome.Error == nil || ran.Outcome.Error.Name != "ModuleNotFoundError" {
					t.Errorf("%s is there: %+v", module, ran)
				}
			}
			if left, _ := filepath.Glob(a.Home + "/.install-*"); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if left := withMark(t, "SANDFARM_EXEC="+id); len(left) > 0 {
				t.Errorf("processes are left: %v", left)
			}
		})
	}
}

func TestPipInstallsWhereThereIsNoUV(t *testing.T) {
	t.Parallel()
	a := agenttest.StartIndexed(t, venv(t), realIndex(t), func(c *server.Config) { c.UV = "/nowhere" })
	wanted := []string{"cowsay==6.1", "no-such-package-xyzzy-77", "humanize>=99", "numpy", "tabulate"}
	ran := agenttest.Run(t, a.Client, packages(wanted...))
	want := []farm.PackageOutcome{
		{Name: "cowsay", Requested: wanted[0], Status: farm.PackageInstalled},
		{Name: "no-such-package-xyzzy-77", Requested: wanted[1], Status: farm.PackageFailed},
		{Name: "humanize", Requested: wanted[2], Status: farm.PackageFailed},
		{Name: "numpy", Requested: wanted[3], Status: farm.PackageInstalled},
		{Name: "tabulate", Requested: wanted[4], Status: farm.PackageInstalled},
	}
	if diff := cmp.Diff(want, ran.Outcome.Install, statusOnly); diff != "" {
		t.Fatalf("%s\n%+v\n%s", diff, ran.Outcome, ran.Stderr)
	}
	for i, part := range map[int]string{1: "not found in the package index", 2: `No version of humanize fits "humanize>=99".`} {
		if !strings.Contains(ran.Outcome.Install[i].Message, part) {
			t.Errorf("message %d: %q", i, ran.Outcome.Install[i].Message)
		}
	}
	again := agenttest.Run(t, a.Client, packages("cowsay==6.0"))
	if again.Outcome.ExitCode != 0 {
		t.Fatalf("again = %+v", again)
	}
	if ran := agenttest.Run(t, a.Client, agenttest.Code("import cowsay, numpy, tabulate\nfrom importlib.metadata import version\nprint(version('cowsay'), numpy.__file__)")); !strings.HasPrefix(ran.Stdout, "6.0 ") || !strings.Contains(ran.Stdout, "site-packages/numpy") {
		t.Fatalf("ran = %+v %+v", ran, ran.Outcome.Error)
	}
}

// fakeUV is an installer that fails in a way of its own.
func fakeUV(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "uv")
	must(t, os.WriteFile(path, []byte("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\n"+script), 0o755)) //nolint:gosec // it is to be run
	return path
}

func TestABuildThatPrintsWithoutEndIsBounded(t *testing.T) {
	t.Parallel()
	tool := fakeUV(t, "echo 'error: Failed to build `cowsay==1`' >&2; head -c 100000000 /dev/zero | tr '\\0' x >&2; echo; echo the end >&2; exit 1")
	a := agenttest.StartIndexed(t, venv(t), http.NotFoundHandler(), func(c *server.Config) { c.UV = tool })
	ran := agenttest.Run(t, a.Client, packages("cowsay"))
	got := ran.Outcome.Install[0]
	if len(ran.Stderr) < 100_000_000 || got.Status != farm.PackageFailed || len(got.Message) > 1200 || !strings.HasSuffix(got.Message, "the end") {
		t.Fatalf("%d bytes of output; %.300q … of %d", len(ran.Stderr), got.Message, len(got.Message))
	}
}

func TestAnInstallerThatDoesNotRunHereIsNotUsed(t *testing.T) {
	t.Parallel()
	broken := filepath.Join(t.TempDir(), "uv")
	must(t, os.WriteFile(broken, []byte("#!/no/such/loader\n"), 0o755)) //nolint:gosec // it is to be tried
	a := agenttest.StartIndexed(t, venv(t), realIndex(t), func(c *server.Config) { c.UV = broken })
	if ran := agenttest.Run(t, a.Client, packages("cowsay")); ran.Outcome.ExitCode != 0 {
		t.Fatalf("ran = %+v", ran)
	}
}

func TestInstallsTakeTurns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tool := fakeUV(t, "touch "+dir+"/begun; while ! [ -e "+dir+"/go ]; do sleep 0.02; done; exit 1")
	a := agenttest.StartIndexed(t, venv(t), http.NotFoundHandler(), func(c *server.Config) { c.UV = tool })
	first, second := agenttest.NewID(), agenttest.NewID()
	must(t, a.Start(t.Context(), first, packages("cowsay")))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		if _, err := os.Stat(dir + "/begun"); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond) // polled with a deadline
	}
	must(t, a.Start(t.Context(), second, packages("tabulate", "../x")))
	must(t, a.Stop(t.Context(), second, agent.StopCancel))
	ran := agenttest.Read(t, a.Client, second) // in line: it ends though the first goes on
	if got := ran.Outcome.Install; !ran.Outcome.Canceled || len(got) != 2 || got[0].Status != farm.PackageFailed || got[0].Message != "The installation was stopped before this was done." {
		t.Errorf("outcome = %+v", ran.Outcome)
	}
	must(t, os.WriteFile(dir+"/go", nil, 0o600))
	if ran := agenttest.Read(t, a.Client, first); ran.Outcome.Install[0].Status != farm.PackageFailed || ran.Outcome.Canceled {
		t.Errorf("outcome = %+v", ran.Outcome)
	}
}

func TestAnIndexThatIsDownIsNotAskedForEveryPackage(t *testing.T) {
	t.Parallel()
	tool, asked := uv(t), atomic.Int64{}
	a := agenttest.StartIndexed(t, venv(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.Error(w, "Upstream is down.", http.StatusBadGateway)
	}), func(c *server.Config) { c.UV = tool })
	wanted := []string{}
	for i := range 20 {
		wanted = append(wanted, fmt.Sprintf("some-package-%d", i))
	}
	ran := agenttest.Run(t, a.Client, packages(wanted...))
	for i, p := range ran.Outcome.Install {
		if want := "The package index could not give what is needed for " + wanted[i] + ": Upstream is down."; p.Message != want {
			t.Errorf("%q, want %q", p.Message, want)
		}
	}
	if n := asked.Load(); n > 60 { // all at once, then three of them, each twice
		t.Errorf("the index was asked %d times", n)
	}
}

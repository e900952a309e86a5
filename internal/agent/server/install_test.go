//go:build integration

package server_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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
	wanted := []string{"humanize", "no-such-package-xyzzy-77", "numpy>=99", "pywin32", "Cow_Say", "cow.say", "cowsay", "six; rm -rf /", "--index-url=x", "mysqlclient==2.2.4", "packaging<20", "packaging>20"}
	ran := agenttest.Run(t, a.Client, packages(wanted...))
	for i, p := range ran.Outcome.Install {
		t.Logf("%s: %s %s %s\n    %s", p.Requested, p.Name, p.Version, p.Status, p.Message)
		if p.Requested != wanted[i] {
			t.Errorf("%d is %q", i, p.Requested)
		}
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

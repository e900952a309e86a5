//go:build integration

package install_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
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
	"github.com/sandfarm/sandfarm/internal/testbed"
)

var statusOnly = cmpopts.IgnoreFields(farm.PackageOutcome{}, "Message", "Version", "Why")

func TestInstallReachesTheRunningKernel(t *testing.T) {
	t.Parallel()
	a := installing(t)
	if ran := agenttest.Run(t, a.Client, agenttest.Code("kept = 7\nimport humanize")); ran.Outcome.Error == nil || ran.Outcome.Error.Name != "ModuleNotFoundError" {
		t.Fatalf("it is installed before: %+v", ran.Outcome)
	}
	began := time.Now()
	ran := agenttest.Run(t, a.Client, packages("humanize==4.12.0", "NumPy"))
	t.Logf("took %v", time.Since(began))
	want := []farm.PackageOutcome{
		{Name: "humanize", Requested: "humanize==4.12.0", Version: "4.12.0", Status: farm.PackageInstalled},
		{Name: "numpy", Requested: "NumPy", Status: farm.PackageInstalled},
	}
	diff := cmp.Diff(want, ran.Outcome.Install, statusOnly)
	testbed.Require(t, diff == "" && ran.Outcome.ExitCode == 0 && ran.Outcome.Files == nil, "outcome = %+v\n%s\n%s", ran.Outcome, diff, ran.Stderr)
	ran = agenttest.Run(t, a.Client, agenttest.Code("import humanize, numpy\nprint(kept, humanize.__version__, humanize.__file__, numpy.__file__)"))
	if !strings.HasPrefix(ran.Stdout, "7 4.12.0 "+a.Home+"/.packages/") || !strings.Contains(ran.Stdout, "site-packages/numpy") {
		t.Fatalf("ran = %+v %+v", ran, ran.Outcome.Error)
	}
	for _, name := range []string{"cowsay", "tabulate"} { // with and without an earlier failed import
		if name == "cowsay" {
			agenttest.Run(t, a.Client, agenttest.Code("import cowsay"))
		}
		ran := agenttest.Run(t, a.Client, packages(name))
		testbed.Require(t, ran.Outcome.ExitCode == 0, "%s: %+v", name, ran)
		ran = agenttest.Run(t, a.Client, agenttest.Code(fmt.Sprintf("import %s; print('in')", name)))
		testbed.Require(t, ran.Stdout == "in\n", "%s: %+v %+v", name, ran, ran.Outcome.Error)
	}
	list, err := a.Packages(t.Context())
	testbed.Must(t, err)
	found := map[string]string{}
	for _, p := range list {
		found[p.Name] = p.Version
	}
	testbed.Require(t, found["humanize"] == "4.12.0" && found["cowsay"] != "" && found["ipykernel"] != "", "packages = %v", found)
	left, _ := filepath.Glob(a.Home + "/.install-*")
	testbed.Check(t, len(left) == 0, "left: %v", left)
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
		{"mysqlclient==2.2.4", "mysqlclient", "mysqlclient 2.2.4 has no wheel for Python "},
		{"Typing.Extensions>=4", "typing-extensions", ""},
		{"cowsay<6", "cowsay", "cowsay conflicts with other required packages: "},
		{"tabulate; python_version<'3'", "tabulate", "tabulate does not apply to this sandbox"},
		{"packaging; python_version>='3'", "packaging", ""},
	}
	var wanted []string
	for _, c := range cases {
		wanted = append(wanted, c.asked)
	}
	ran := agenttest.Run(t, a.Client, packages(wanted...))
	testbed.Require(t, len(ran.Outcome.Install) == len(cases), "outcome = %+v", ran.Outcome)
	for i, c := range cases {
		got := ran.Outcome.Install[i]
		good := got.Requested == c.asked && got.Name == c.name && len(got.Message) < 1500
		if c.message == "" {
			good = good && got.Status == farm.PackageInstalled && got.Version != "" && got.Message == ""
		} else {
			good = good && got.Status == farm.PackageFailed && got.Version == "" && strings.HasPrefix(got.Message, c.message)
		}
		testbed.Check(t, good, "%s: %+v", c.asked, got)
	}
	built := ran.Outcome.Install[8].Message
	testbed.Check(t, strings.Count(built, "\n") <= 4 && strings.Contains(built, "Specify MYSQLCLIENT_CFLAGS"), "last lines of a build: %q", built)
}

func TestPlainPipWorks(t *testing.T) {
	t.Parallel()
	a := installing(t)
	ran := agenttest.Run(t, a.Client, agenttest.Commands("pip install cowsay 2>&1", "cowsay -t moo", "pip install --upgrade tabulate==0.9.0 2>&1", "python -c 'import tabulate; print(tabulate.__version__)'"))
	testbed.Require(t, ran.Outcome.ExitCode == 0 && strings.Contains(ran.Stdout, "moo") && strings.Contains(ran.Stdout, "0.9.0"), "ran = %+v", ran)
	ran = agenttest.Run(t, a.Client, agenttest.Code("!pip install humanize\nimport humanize, cowsay\nprint('both')"))
	testbed.Require(t, strings.Contains(ran.Stdout, "both\n"), "ran = %+v %+v", ran, ran.Outcome.Error)
}

// A plain pip and install jobs work on the same packages: both add, update and remove them with their programs. The image's packages
// and virtual environments are left alone.
func TestPipAddsUpdatesAndRemoves(t *testing.T) {
	t.Parallel()
	a := installing(t)
	ran := agenttest.Run(t, a.Client, packages("cowsay==5.0"))
	testbed.Require(t, ran.Outcome.ExitCode == 0, "ran = %+v", ran)
	look := `python -c 'import idna; print(idna.__file__)'`
	for _, step := range []struct{ command, want string }{
		{"pip install tabulate==0.9.0", "Successfully installed tabulate-0.9.0"},
		{"command -v cowsay tabulate", a.Home + "/.packages/bin/cowsay\n" + a.Home + "/.packages/bin/tabulate\n"},
		{"pip install cowsay", "Requirement already satisfied: cowsay"},
		{"python -m pip install -U cowsay", "Successfully uninstalled cowsay-5.0"},
		{"ls -d ~/.packages/cowsay*", a.Home + "/.packages/cowsay\n" + a.Home + "/.packages/cowsay-6.1.dist-info\n"},
		{"pip install --no-compile 'idna<3.10'; " + look, a.Home + "/.packages/idna/__init__.py\n"},
		{"pip uninstall -y cowsay tabulate idna; " + look, "site-packages/idna/__init__.py\n"},
		{"ls ~/.packages ~/.packages/bin | grep -c -e cowsay -e tabulate -e idna; :", "0\n"},
		{"pip list", "numpy "},
		{"pip install --target there six; ls there", "six.py\n"},
		{"python -m venv own; own/bin/pip install six; ls own/lib/*/site-packages", "six.py\n"},
		{"pip install six==1.16.0; own/bin/pip install six==1.17.0; own/bin/python -c 'import six; print(six.__version__)'", "1.17.0\n"},
		{`mkdir -p p/mine; touch p/mine/__init__.py; echo '[project]
			name = "mine"
			version = "1"' >p/pyproject.toml; pip install -e ./p; cd /; python -c 'import mine; print(mine.__name__)'`, "mine\n"},
	} {
		ran := agenttest.Run(t, a.Client, agenttest.Commands("exec 2>&1; export PIP_ROOT_USER_ACTION=ignore; "+step.command))
		if !strings.Contains(ran.Stdout, step.want) || strings.Contains(ran.Stdout, "WARNING") {
			t.Errorf("%s\n%s\nwant %q", step.command, ran.Stdout, step.want)
		}
	}
}

// realIndex serves the public indexes.
func realIndex(tb testing.TB) http.Handler {
	tb.Helper()
	mux := http.NewServeMux()
	for prefix, target := range map[string]string{
		"/pypi/simple/": "https://pypi.org/simple/", "/pypi/files/": "https://files.pythonhosted.org/", "/npm/": "https://registry.npmjs.org/",
	} {
		to, err := url.Parse(target)
		testbed.Must(tb, err)
		mux.Handle(prefix, http.StripPrefix(strings.TrimSuffix(prefix, "/"), &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(to)
				r.Out.Header.Del("Accept-Encoding") // no compression, so that links can be rewritten
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

// installing starts an agent that can install packages from the public indexes.
func installing(tb testing.TB) *agenttest.Agent {
	tb.Helper()
	tool := agenttest.UV(tb)
	return agenttest.StartIndexed(tb, agenttest.KernelPath(tb), realIndex(tb), func(c *server.Config) { c.UV = tool })
}

// packages returns an execution that installs Python packages.
func packages(names ...string) agent.Spec {
	return agent.Spec{Kind: farm.KindInstall, Install: &agent.Install{Manager: farm.ManagerPip, Packages: names}}
}

// nodePackages returns an execution that installs Node packages.
func nodePackages(names ...string) agent.Spec {
	return agent.Spec{Kind: farm.KindInstall, Install: &agent.Install{Manager: farm.ManagerNpm, Packages: names}}
}

func TestInstallNodePackages(t *testing.T) {
	t.Parallel()
	a := agenttest.StartIndexed(t, "/usr/local/bin:/usr/bin:/bin", realIndex(t), nil)
	wanted := []string{"left-pad@1.3.0", "no-such-package-xyzzy-77", "is-odd", "is-odd@99", "../x", "cowsay@1.5.0"}
	ran := agenttest.Run(t, a.Client, nodePackages(wanted...))
	want := []farm.PackageOutcome{
		{Name: "left-pad", Requested: wanted[0], Status: farm.PackageInstalled},
		{Name: "no-such-package-xyzzy-77", Requested: wanted[1], Status: farm.PackageFailed},
		{Name: "is-odd", Requested: wanted[2], Status: farm.PackageInstalled},
		{Name: "is-odd", Requested: wanted[3], Status: farm.PackageFailed},
		{Name: "../x", Requested: wanted[4], Status: farm.PackageFailed},
		{Name: "cowsay", Requested: wanted[5], Status: farm.PackageInstalled},
	}
	diff := cmp.Diff(want, ran.Outcome.Install, statusOnly)
	testbed.Require(t, diff == "", "%s\n%+v\n%s%s", diff, ran.Outcome, ran.Stdout, ran.Stderr)
	for i, part := range map[int]string{1: "not found in the npm registry", 3: `fits "is-odd@99"`, 4: "not the name of an npm package"} {
		message := ran.Outcome.Install[i].Message
		testbed.Check(t, strings.Contains(message, part), "message %d: %q", i, message)
	}
	ran = agenttest.Run(t, a.Client, agenttest.Commands(`node -e 'console.log(require("left-pad")(7, 3, "0"), require("is-odd")(3))'`, "cowsay moo"))
	testbed.Require(t, strings.HasPrefix(ran.Stdout, "007 true\n") && strings.Contains(ran.Stdout, "(oo)"), "ran = %+v", ran)
	list, err := a.Packages(t.Context())
	testbed.Must(t, err)
	found := map[string]string{}
	for _, p := range list {
		if p.Manager == farm.ManagerNpm {
			found[p.Name] = p.Version
		}
	}
	testbed.Require(t, found["left-pad"] == "1.3.0" && found["is-odd"] != "", "packages = %v", found)
	ran = agenttest.Run(t, a.Client, agenttest.Commands("cd && mkdir -p p && cd p && npm install left-pad 2>&1 && ls node_modules"))
	testbed.Require(t, strings.Contains(ran.Stdout, "left-pad\n"), "plain npm: %+v", ran)
	left, _ := filepath.Glob(a.Home + "/.install-*")
	testbed.Check(t, len(left) == 0, "left: %v", left)
	bare := agenttest.StartIndexed(t, t.TempDir(), realIndex(t), nil)
	ran = agenttest.Run(t, bare.Client, nodePackages("left-pad"))
	testbed.Require(t, ran.Outcome.Install[0].Message == "This image has no npm: create a sandbox with the image node.", "no npm: %+v", ran.Outcome)
	ran = agenttest.Run(t, bare.Client, packages("six"))
	testbed.Require(t, ran.Outcome.Install[0].Message == "This image has no Python.", "no Python: %+v", ran.Outcome)
}

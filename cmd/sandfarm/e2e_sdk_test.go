//go:build integration

package main_test

import (
	"archive/zip"
	"context"
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

// sdkTimeout bounds one run of the SDK's tests, which takes about 100 s, or four minutes on a busy machine.
const sdkTimeout = 8 * time.Minute

// sdkVersionTests depend on the version of Python. The first Python runs all tests, the others run these.
var sdkVersionTests = []string{
	"tests/test_results.py", "tests/test_faults.py", "tests/test_async.py", "tests/test_not_sandfarm.py", "tests/test_imports.py",
	"tests/test_outage.py::test_forked_processes_do_not_share_connections",
}

// TestPythonSDK builds the wheel, installs it into a new environment of each Python on this machine, and runs the tests there.
func TestPythonSDK(t *testing.T) {
	dev := os.Getenv("SANDFARM_TEST_SDK")
	if dev == "" {
		t.Fatal("SANDFARM_TEST_SDK does not name the tools of the Python SDK: run the tests with make, or `deploy/setup.sh sdk` and then `export SANDFARM_TEST_SDK=$(deploy/setup.sh sdk-dir)`")
	}
	f, key := newFarmWithKey(t)
	s := &pythonSDK{dev: filepath.Join(dev, "bin", "python"), source: absolute(t, "../../sdk/python"), url: f.url, key: key}
	s.wheel = s.build(t)
	t.Run("each", func(t *testing.T) { // the farm must not stop before all of them are done
		for n, python := range s.pythons(t) {
			t.Run(python.version, func(t *testing.T) {
				t.Parallel()
				s.test(t, python.path, n == 0)
			})
		}
	})
}

// pythonSDK is the package in this tree, and the farm that its tests use.
type pythonSDK struct{ dev, source, wheel, url, key string }

type interpreter struct{ version, path string }

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	testbed.Must(t, err)
	return path
}

// run runs a program in the package's folder and returns its output.
func (s *pythonSDK) run(t *testing.T, env []string, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sdkTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = s.source, append(os.Environ(), append(env, "PYTHONDONTWRITEBYTECODE=1", "PIP_DISABLE_PIP_VERSION_CHECK=1")...)
	cmd.WaitDelay = 5 * time.Second // processes that it started may keep the streams open
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s *pythonSDK) must(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := s.run(t, nil, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// build makes an sdist and, from it, a wheel, and checks the content of the wheel.
func (s *pythonSDK) build(t *testing.T) string {
	t.Helper()
	dist := t.TempDir()
	s.must(t, s.dev, "-m", "build", "--no-isolation", "--outdir", dist, ".")
	wheels, _ := filepath.Glob(filepath.Join(dist, "sandfarm-*-py3-none-any.whl"))
	sources, _ := filepath.Glob(filepath.Join(dist, "sandfarm-*.tar.gz"))
	if len(wheels) != 1 || len(sources) != 1 {
		t.Fatalf("built the wheels %v and the sdists %v", wheels, sources)
	}
	archive, err := zip.OpenReader(wheels[0])
	testbed.Must(t, err)
	defer func() { _ = archive.Close() }()
	typed := false
	for _, file := range archive.File {
		typed = typed || file.Name == "sandfarm/py.typed"
		if !strings.HasPrefix(file.Name, "sandfarm/") && !strings.Contains(file.Name, ".dist-info/") {
			t.Errorf("the wheel holds %s", file.Name)
		}
	}
	if !typed {
		t.Error("the wheel does not say that it is typed")
	}
	return wheels[0]
}

// pythons finds the supported interpreters of this machine. The first is the one that the SDK's tools use.
func (s *pythonSDK) pythons(t *testing.T) []interpreter {
	t.Helper()
	const about = "import sys, venv; v = sys.version_info; assert v >= (3, 10); print(f'{v.major}.{v.minor}', getattr(sys, '_base_executable', sys.executable))"
	candidates := []string{s.dev}
	folders := filepath.SplitList(os.Getenv("PATH"))
	if home, err := os.UserHomeDir(); err == nil {
		folders = append(folders, filepath.Join(home, ".pyenv", "versions", "*", "bin"))
	}
	for _, folder := range folders {
		found, _ := filepath.Glob(filepath.Join(folder, "python3.[1-9][0-9]"))
		candidates = append(candidates, found...)
	}
	var all []interpreter
	for _, candidate := range candidates {
		out, err := s.run(t, nil, candidate, "-I", "-c", about)
		version, path, ok := strings.Cut(strings.TrimSpace(out), " ")
		if err == nil && ok && !slices.ContainsFunc(all, func(p interpreter) bool { return p.version == version }) {
			all = append(all, interpreter{version, path})
		}
	}
	if len(all) == 0 {
		t.Fatal("there is no Python 3.10 or newer here")
	}
	return all
}

// test installs the wheel for one Python and runs all tests, or those that depend on the version.
func (s *pythonSDK) test(t *testing.T, python string, all bool) {
	t.Helper()
	dir := t.TempDir()
	s.must(t, python, "-m", "venv", "--without-pip", dir)
	python = filepath.Join(dir, "bin", "python")
	install := []string{"-m", "pip", "--python", python, "install", "-q", s.wheel}
	tests := sdkVersionTests
	if all {
		tests = []string{"tests"}
		s.lend(t, python)
	} else {
		install = append(install, s.pin(t, "pytest"))
	}
	s.must(t, s.dev, install...)
	if where := s.must(t, python, "-c", "import sandfarm; print(sandfarm.__file__)"); !strings.HasPrefix(where, dir) {
		t.Fatalf("the package that is tested is %s", where)
	}
	report := filepath.Join(dir, "report.xml")
	args := append([]string{"-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", report}, tests...)
	out, err := s.run(t, []string{"SANDFARM_URL=" + s.url, "SANDFARM_API_KEY=" + s.key}, python, args...)
	if err != nil {
		t.Errorf("pytest: %v\n%s", err, out)
	}
	judge(t, report)
}

// lend makes the packages of the SDK's tools importable in another environment of the same Python.
func (s *pythonSDK) lend(t *testing.T, python string) {
	t.Helper()
	const where = "import sysconfig; print(sysconfig.get_path('purelib'))"
	from, to := s.must(t, s.dev, "-c", where), s.must(t, python, "-c", where)
	testbed.Must(t, os.WriteFile(filepath.Join(to, "zz-dev.pth"), []byte(from+"\n"), 0o600))
}

// pin returns the line of a package in requirements-dev.txt.
func (s *pythonSDK) pin(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.source, "requirements-dev.txt"))
	testbed.Must(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, name+"==") {
			return strings.TrimSpace(line)
		}
	}
	t.Fatalf("requirements-dev.txt does not pin %s", name)
	return ""
}

// judge reads pytest's report. A skipped test counts as a failure.
func judge(t *testing.T, report string) {
	t.Helper()
	content, err := os.ReadFile(report)
	testbed.Must(t, err)
	var suites struct {
		Suites []struct {
			Tests    int     `xml:"tests,attr"`
			Failures int     `xml:"failures,attr"`
			Errors   int     `xml:"errors,attr"`
			Skipped  int     `xml:"skipped,attr"`
			Seconds  float64 `xml:"time,attr"`
			Cases    []struct {
				Name    string    `xml:"name,attr"`
				Skipped *struct{} `xml:"skipped"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	testbed.Must(t, xml.Unmarshal(content, &suites))
	ran := 0
	for _, suite := range suites.Suites {
		ran += suite.Tests
		if suite.Failures+suite.Errors+suite.Skipped > 0 {
			t.Errorf("of %d tests %d failed, %d had errors, %d were skipped", suite.Tests, suite.Failures, suite.Errors, suite.Skipped)
		}
		for _, one := range suite.Cases {
			if one.Skipped != nil {
				t.Errorf("%s was skipped", one.Name)
			}
		}
		t.Logf("%d tests in %.1f s", suite.Tests, suite.Seconds)
	}
	if ran == 0 {
		t.Error("nothing was tested")
	}
}

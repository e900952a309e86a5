//go:build integration

package main_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/xml"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
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

// typescriptTimeout bounds one step of the tests of the TypeScript SDK. All take some 25 s together, or two minutes on a busy machine.
const typescriptTimeout = 6 * time.Minute

// TestTypeScriptSDK packs the package, installs it into a new project as npm does, and runs its tests there against a farm with keys.
func TestTypeScriptSDK(t *testing.T) {
	t.Parallel()
	tools, mcp := os.Getenv("SANDFARM_TEST_TYPESCRIPT"), os.Getenv("SANDFARM_TEST_MCP")
	if tools == "" || mcp == "" {
		t.Fatal("SANDFARM_TEST_TYPESCRIPT does not name the tools of the TypeScript SDK, or SANDFARM_TEST_MCP not the folder with Node: run the tests with make, or `deploy/setup.sh typescript` and then `export SANDFARM_TEST_TYPESCRIPT=$(deploy/setup.sh typescript-dir) SANDFARM_TEST_MCP=$(deploy/setup.sh mcp-dir)`")
	}
	f, key := newFarmWithKey(t)
	s := &typescriptSDK{
		t: t, tools: tools, node: filepath.Join(mcp, "node", "bin"), source: t.TempDir(), project: t.TempDir(),
		env: []string{"SANDFARM_URL=" + f.url, "SANDFARM_API_KEY=" + key},
	}
	s.copy("../../sdk/typescript", s.source)
	s.schemaIsCurrent(s.openAPI(f.url, key))
	s.install()
	guide, printed := s.guide("../../docs/sdk-typescript.md")
	for name, content := range map[string]string{
		"guide.ts": guide,
		"old.cjs":  `const { Client, SandfarmError } = require("sandfarm"); new Client(); if (!(new SandfarmError("x") instanceof Error)) process.exit(1);`,
		"tsconfig.json": `{"compilerOptions": {"strict": true, "target": "ES2022", "lib": ["ES2022"], "module": "NodeNext", "noEmit": true, "types": ["node"],
			"skipLibCheck": false, "exactOptionalPropertyTypes": true, "noUncheckedIndexedAccess": true}, "include": ["guide.ts", "tests/*.ts", "commonjs.cts"]}`,
		"commonjs.cts": `import { Client } from "sandfarm"; export const farm: Client = new Client();`,
	} {
		testbed.Must(t, os.WriteFile(filepath.Join(s.project, name), []byte(content), 0o600))
	}
	s.copy("../../sdk/typescript/tests", filepath.Join(s.project, "tests"))
	s.run(s.project, nil, "node", "old.cjs")
	s.run(s.project, nil, "node", filepath.Join(tools, "node_modules", "typescript", "lib", "tsc.js"), "-p", ".")
	testbed.Diff(t, "what the blocks of docs/sdk-typescript.md print", printed, s.run(s.project, nil, "node", "guide.ts"))
	scripts, err := filepath.Glob(filepath.Join(s.project, "tests", "*.test.ts"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("there are no tests: %v", err)
	}
	s.run(s.project, nil, "node", append([]string{"--test", "--test-reporter=spec"}, scripts...)...)
}

// typescriptSDK is a copy of the package, and the project that uses it.
type typescriptSDK struct {
	t                            *testing.T
	tools, node, source, project string
	env                          []string
}

// run runs a program in a folder and returns what it prints on standard output.
func (s *typescriptSDK) run(dir string, in io.Reader, name string, args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), typescriptTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(s.node, name), args...)
	var out, failed bytes.Buffer
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = dir, in, &out, &failed, 5*time.Second
	cmd.Env = append(append(os.Environ(), s.env...), "PATH="+s.node+":"+os.Getenv("PATH"), "HOME="+s.source, "NODE_NO_WARNINGS=1")
	if err := cmd.Run(); err != nil {
		s.t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out.String(), failed.String())
	}
	return out.String()
}

// copy copies what git has of a folder: not what was built or installed there.
func (s *typescriptSDK) copy(from, to string) {
	s.t.Helper()
	list := exec.CommandContext(s.t.Context(), "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", ".")
	list.Dir = from
	names, err := list.Output()
	if err != nil {
		s.t.Fatalf("list %s: %v", from, err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), content, 0o600)
		}
		testbed.Must(s.t, err)
	}
}

func (s *typescriptSDK) openAPI(url, key string) []byte {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, url+"/openapi.json", nil)
	testbed.Must(s.t, err)
	request.Header.Set("Authorization", "Bearer "+key)
	answer, err := http.DefaultClient.Do(request) //nolint:forbidigo // a test
	testbed.Must(s.t, err)
	defer func() { _ = answer.Body.Close() }()
	document, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		s.t.Fatalf("the OpenAPI document: status %d, %v", answer.StatusCode, err)
	}
	return document
}

var comments = regexp.MustCompile(`(?s)\s*/\*\*.*?\*/`)

// schemaIsCurrent makes the types from the farm's document, and compares them with those of the package. Their comments are left to `make verify`.
func (s *typescriptSDK) schemaIsCurrent(document []byte) {
	s.t.Helper()
	testbed.Must(s.t, os.Symlink(filepath.Join(s.tools, "node_modules"), filepath.Join(s.source, "node_modules")))
	made := s.run(s.source, bytes.NewReader(document), "node", "scripts/generate.mjs")
	if kept, err := os.ReadFile(filepath.Join(s.source, "src", "schema.ts")); err != nil || comments.ReplaceAllString(string(kept), "") != comments.ReplaceAllString(made, "") {
		s.t.Errorf("sdk/typescript/src/schema.ts is not what the OpenAPI document of the farm gives: run `make gen` (%v)", err)
	}
}

// install builds and packs the package, and installs the archive without a registry: it has no dependencies.
func (s *typescriptSDK) install() {
	s.t.Helper()
	npm := filepath.Join(s.tools, "npm", "bin", "npm-cli.js")
	s.run(s.source, nil, "node", "scripts/build.mjs")
	s.run(s.source, nil, "node", npm, "pack", "--pack-destination", s.project)
	archives, err := filepath.Glob(filepath.Join(s.project, "sandfarm-*.tgz"))
	if err != nil || len(archives) != 1 {
		s.t.Fatalf("packed %v: %v", archives, err)
	}
	testbed.Must(s.t, os.WriteFile(filepath.Join(s.project, "package.json"), []byte(`{"private": true, "type": "module"}`), 0o600))
	s.run(s.project, nil, "node", npm, "install", "--offline", "--no-audit", "--no-fund", archives[0])
	testbed.Must(s.t, os.MkdirAll(filepath.Join(s.project, "node_modules", "@types"), 0o700))
	// What a project with TypeScript has beside it.
	for _, name := range []string{"@types/node", "undici-types"} {
		testbed.Must(s.t, os.Symlink(filepath.Join(s.tools, "node_modules", name), filepath.Join(s.project, "node_modules", name)))
	}
}

var blocks = regexp.MustCompile("(?ms)^```(ts|text)\n(.*?)^```$")

// guide returns the program that the blocks of a page are, and what they print according to it.
func (s *typescriptSDK) guide(path string) (program, printed string) {
	s.t.Helper()
	page, err := os.ReadFile(path)
	testbed.Must(s.t, err)
	for _, block := range blocks.FindAllStringSubmatch(string(page), -1) {
		if block[1] == "ts" {
			program += block[2]
		} else {
			printed += block[2]
		}
	}
	if program == "" || printed == "" {
		s.t.Fatalf("%s has no blocks", path)
	}
	return program, printed
}

// e2bTimeout bounds the tests with one of E2B's SDKs, which take some 20 s, or two minutes on a busy machine.
const e2bTimeout = 6 * time.Minute

// TestE2B uses a farm by the official SDKs of E2B, for Python and for JavaScript, without a change to them.
func TestE2B(t *testing.T) {
	t.Parallel()
	byE2B(t, "SANDFARM_TEST_E2B", "e2b", "*")
}

// byE2B uses a farm by the SDKs in the folder that a variable names and a step of deploy/setup.sh makes. only is a pattern of the names of tests.
func byE2B(t *testing.T, variable, step, only string) {
	t.Helper()
	dir, node := os.Getenv(variable), os.Getenv("SANDFARM_TEST_MCP")
	if dir == "" || node == "" {
		t.Fatalf("%[1]s does not name the SDKs of E2B, or SANDFARM_TEST_MCP not the folder with Node: run the tests with make, or `deploy/setup.sh %[2]s` and then `export %[1]s=$(deploy/setup.sh %[2]s-dir) SANDFARM_TEST_MCP=$(deploy/setup.sh mcp-dir)`", variable, step)
	}
	const key, other = "key-of-acme", "key-of-rival"
	f := newFarm(t, "SANDFARM_API_KEYS=acme:"+hashOf(key)+",rival:"+hashOf(other))
	env := append(os.Environ(), "E2B_API_URL="+f.url+"/e2b", "E2B_SANDBOX_URL="+f.url+"/e2b", "E2B_API_KEY="+wire.E2BKey(key), "OTHER_KEY="+other, "PYTHONDONTWRITEBYTECODE=1")
	// The tests of JavaScript lie beside the packages that they import.
	copied := filepath.Join(t.TempDir(), "e2b")
	err := os.CopyFS(copied, os.DirFS("testdata/e2b"))
	if err == nil {
		err = os.Symlink(filepath.Join(dir, "node_modules"), filepath.Join(copied, "node_modules"))
	}
	testbed.Must(t, err)
	scripts, err := filepath.Glob(filepath.Join(copied, only+".test.mjs"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("there are no tests of JavaScript: %v", err)
	}
	modules, err := filepath.Glob("testdata/e2b/test_" + only + ".py")
	if err != nil || len(modules) == 0 {
		t.Fatalf("there are no tests of Python: %v", err)
	}
	t.Run("each", func(t *testing.T) { // the farm must not stop before both are done
		for name, command := range map[string][]string{
			"Python":     append([]string{filepath.Join(dir, "venv", "bin", "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider"}, modules...),
			"JavaScript": append([]string{filepath.Join(node, "node", "bin", "node"), "--test"}, scripts...),
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), e2bTimeout)
				defer cancel()
				run := exec.CommandContext(ctx, command[0], command[1:]...)
				run.Env, run.WaitDelay = env, 5*time.Second
				if out, err := run.CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	})
	if strings.Contains(f.out.String(), "handler panicked") { // as when a reader was closed whose sandbox had ended
		t.Error("a handler panicked")
	}
}

// jupyterTimeout bounds the clients of Jupyter, which take some 20 s, or minutes on a busy machine.
const jupyterTimeout = 10 * time.Minute

// TestJupyterClients uses a farm by clients of Jupyter, without a change to them. `make test-jupyter` runs all, and otherwise those run that start
// fast: those that use the farm as a gateway, and those whose kernels are local ones to them.
func TestJupyterClients(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("SANDFARM_TEST_JUPYTER")
	if dir == "" {
		t.Fatal("SANDFARM_TEST_JUPYTER does not name the clients of Jupyter: run the tests with make, or `deploy/setup.sh jupyter` and then `export SANDFARM_TEST_JUPYTER=$(deploy/setup.sh jupyter-dir)`")
	}
	which := "not every"
	if os.Getenv("SANDFARM_TEST_CLIENTS") == "all" {
		which = ""
	}
	f := newFarm(t)
	ctx, cancel := context.WithTimeout(t.Context(), jupyterTimeout)
	defer cancel()
	run := exec.CommandContext(ctx, filepath.Join(dir, "bin", "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, "testdata/jupyter")
	path := filepath.Join(dir, "bin") + string(filepath.ListSeparator) + os.Getenv("PATH") // its Python has the SDK's source, and what the kernel needs
	run.Env = append(os.Environ(), "PATH="+path, "PYTHONPATH="+absolute(t, "../../sdk/python/src"), "JUPYTER_GATEWAY_URL="+f.url+"/jupyter", "SANDFARM_PROGRAM="+program, "PYTHONDONTWRITEBYTECODE=1", "JUPYTER_PLATFORM_DIRS=1", "HOME="+t.TempDir())
	run.WaitDelay = 5 * time.Second
	if out, err := run.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

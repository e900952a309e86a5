package install

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/kernel"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// An installer that got a download faster than its memory was looked at used it up on a busy machine, and the kernel was killed after it.
// It is now checked before each piece, too: the memory here is short only then.
func TestInstallerIsKilledBeforeItGetsWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	const limit = 128 << 20
	reaper := process.NewReaper(false)
	defer reaper.Close()
	var short atomic.Bool
	guard := &Guard{}
	guard.Check() // nothing is installed
	in := &installation{
		Execution: execution.New("x", agent.Spec{}, 1<<20, time.Now()),
		s: &Installer{cfg: Config{Reaper: reaper, Guard: guard}, memory: func() (held, bound int64) {
			if short.Load() {
				return limit, limit
			}
			return limit / 2, limit
		}},
	}
	in.Begin()
	for _, piece := range []bool{false, true} {
		p, err := reaper.StartLogged(in.Execution, []string{"/bin/cat"}, nil, "/", process.Streams{Input: true})
		testbed.Must(t, err)
		reached := in.guardMemory(p)
		guard.Check()
		if piece {
			short.Store(true)
			guard.Check()
			short.Store(false)
		}
		_ = p.Input.End() // what was not killed ends by itself
		reaper.Wait(in.Execution, p)
		if full := reached(); full != piece || (p.ExitCode() == process.ExitKilled) != piece {
			t.Errorf("memory is short %v: exit code %d, reached %v", piece, p.ExitCode(), full)
		}
		guard.Check() // the installer has ended
	}
}

// refused starts no program while its error is set.
type refused struct{ err error }

func (r *refused) Output([]string, []string, string) ([]byte, error) {
	return []byte(`{"version": "3.13", "path": []}`), r.err
}

func TestPythonThatCannotBeStartedIsNotMissing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "python3"), nil, 0o755)) //nolint:gosec // it is a program
	runner := &refused{fmt.Errorf("start python3: %w", syscall.EAGAIN)}
	python := kernel.NewProber(kernel.ProberConfig{Reaper: runner, Image: []string{"PATH=" + dir}, HomeDir: dir})
	in := &installation{s: New(t.Context(), Config{HomeDir: dir, Python: python})}
	wanted := parseRequirement("pip", "x1")
	in.installPython([]*requirement{wanted})
	want := "The installer could not be started: " + process.OutOfProcesses
	testbed.Check(t, wanted.problem == want, "%q, want %q", wanted.problem, want)
	runner.err = nil // processes have ended
	testbed.Check(t, python.Interpreter() != "", "it is missing for good")
}

// Real output of uv 0.13.8.
func TestUVIsExplained(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "python3"), []byte("#!/bin/sh\necho '{\"version\": \"3.13\", \"path\": []}'\n"), 0o755)) //nolint:gosec // it is run
	reaper := process.NewReaper(false)
	t.Cleanup(reaper.Close)
	python := kernel.NewProber(kernel.ProberConfig{Reaper: reaper, Image: []string{"PATH=" + dir}, HomeDir: dir})
	in := &installation{s: New(t.Context(), Config{HomeDir: dir, Python: python})}
	for name, c := range map[string]struct {
		asked, printed, want string
		fatal                bool
	}{
		"not found": {
			"x1", "error: No solution found when resolving dependencies\n  cause: Because x1 was not found in the package registry and you require x1, we can conclude that your requirements are unsatisfiable.\n",
			"x1 was not found in the package index: check its name.", false,
		},
		"no thread": {
			"x1", "\nthread 'main2' panicked at crates/uv/src/lib.rs:2712:10:\nTokio executor failed, was there a panic?: Os { code: 11, kind: WouldBlock, message: \"Resource temporarily unavailable\" }\n",
			"x1 could not be installed: the sandbox's limit of processes is reached. End processes or close the sandbox.", true,
		},
		"dependency not found": {
			"x1", "error: No solution found when resolving dependencies\n  cause: Because y_2 was not found in the package registry and x1 depends on y_2, we can conclude that x1 cannot be used.\n",
			"x1 needs y-2, which was not found in the package index.", false,
		},
		"version": {
			"humanize==99.1", "error: No solution found when resolving dependencies\n  cause: Because there is no version of humanize==99.1 and you require humanize==99.1, we can conclude that your requirements are unsatisfiable.\n",
			`No version of humanize fits "humanize==99.1": there is no version of humanize==99.1.`, false,
		},
		"python": {
			"ipython>=9.12", "error: No solution found when resolving dependencies\n  cause: Because the current Python version (3.8.1) does not satisfy Python>=3.11 and ipython>=9.13.0 depends on Python>=3.11, we can conclude that ipython>=9.13.0 cannot be used.\n",
			"ipython needs Python>=3.11; this image has Python 3.13.", false,
		},
		"wheel": {
			"pywin32", "error: No solution found when resolving dependencies\n  cause: Because pywin32<=302 has no wheels with a matching Python ABI tag (e.g., `cp311`) and only the following versions of pywin32 are available:\n             pywin32<=302\n             pywin32>=303\n",
			"pywin32 has no wheel for Python 3.13 on this platform, and no source to build it from.", false,
		},
		"conflict": {
			"numpy<1.20", "error: No solution found when resolving dependencies\n  cause: Because pandas==2.2.0 depends on numpy>=1.23.2,<2 and you require pandas==2.2.0, we can conclude that you require numpy>=1.23.2,<2.\n         And because you require numpy<1.20, we can conclude that your requirements are unsatisfiable.\n",
			"numpy conflicts with other required packages: Because pandas==2.2.0 depends on numpy>=1.23.2,<2", false,
		},
		"build with errors of its own": {
			"mysqlclient", "error: Failed to build `mysqlclient==2.3.1`\n  cause: The build backend returned an error\n\n         [stderr]\n         a\n         b\n         x.c:1: error: unknown type name 'PyObj'\n         error: command failed\n         c\n         d\n\nhint: Build failures usually indicate a problem\n",
			"mysqlclient 2.3.1 has no wheel for Python 3.13 on linux/" + runtime.GOARCH + " (another version may have one), and building it failed: x.c:1: error: unknown type name 'PyObj'\nerror: command failed\nc\nd", false,
		},
		"build without a header": {
			"pyaudio", "error: Failed to build `pyaudio==0.2.14`\n  cause: The build backend returned an error\n\n         [stderr]\n         src/pyaudio/device_api.c:9:10: fatal error: portaudio.h: No such file or directory\n             9 | #include \"portaudio.h\"\n               |          ^~~~~~~~~~~~~\n         compilation terminated.\n         error: command '/usr/bin/x86_64-linux-gnu-gcc' failed with exit code 1\n\nhint: y\n",
			"pyaudio 0.2.14 has no wheel for Python 3.13 on linux/" + runtime.GOARCH + " (another version may have one), and building it failed: this image has no header portaudio.h, which belongs to a C library.", false,
		},
		"build of setuptools without a compiler": {
			"pyaudio", "error: Failed to build `pyaudio==0.2.14`\n  cause: The build backend returned an error\n\n         [stdout]\n         building 'pyaudio._portaudio' extension\n\n         [stderr]\n         !!\n\n                 ****\n         !!\n           self._finalize_license_expression()\n         warning: build_py: byte-compiling is disabled, skipping.\n\n" +
				"         error: [Errno 2] No such file or directory: 'x86_64-linux-gnu-gcc'\n\nhint: y\n",
			"pyaudio 0.2.14 has no wheel for Python 3.13 on linux/" + runtime.GOARCH + " (another version may have one), and building it failed: this image has no compiler.", false,
		},
		"build behind warnings": {
			"x1", "error: Failed to build `x1==1`\n  cause: The build backend returned an error\n\n         [stderr]\n         ****\n         !!\n         warning: skipping\n\n         error: [Errno 2] No such file or directory: 'pg_config'\n\nhint: y\n",
			"x1 1 has no wheel for Python 3.13 on linux/" + runtime.GOARCH + " (another version may have one), and building it failed: error: [Errno 2] No such file or directory: 'pg_config'", false,
		},
		"build of a dependency without a compiler": {
			"scipy==1.11.1", "error: Failed to build `numpy==1.26.4`\n  cause: The build backend returned an error\n  cause: Call to `mesonpy.build_wheel` failed (exit status: 1)\n\n         [stdout]\n         The Meson build system\n\n" +
				"         ../meson.build:1:0: ERROR: Unknown compiler(s): [['cc'], ['gcc'], ['clang']]\n         The following exception(s) were encountered:\n         Running `clang --version` gave \"[Errno 2] No such file or directory: 'clang'\"\n\n" +
				"         A full log can be found at /home/sandbox/.install-X/cache/meson-logs/meson-log.txt\n\nhint: Build failures usually indicate a problem\n",
			"scipy needs numpy 1.26.4, which has no wheel for Python 3.13 on linux/" + runtime.GOARCH + " (another version may have one), and building it failed: this image has no compiler.", false,
		},
		"build that names a log": {
			"x1", "error: Failed to build `x1==1`\n  cause: The build backend returned an error\n\n         [stdout]\n         ../meson.build:1:0: ERROR: no BLAS\n\n         A full log can be found at /home/sandbox/.install-X/meson-log.txt\n\nhint: y\n",
			"x1 1 has no wheel for Python 3.13 on linux/" + runtime.GOARCH + " (another version may have one), and building it failed: ../meson.build:1:0: ERROR: no BLAS", false,
		},
		"build that raises": {
			"numpy==1.24.4", "error: Failed to build `numpy==1.24.4`\n  cause: The build backend returned an error\n\n         [stderr]\n         Traceback (most recent call last):\n           File \"<string>\", line 8, in <module>\n           File \"/home/sandbox/.install-X/__init__.py\", line 10, in <module>\n             import distutils.core\n         ModuleNotFoundError: No module named 'distutils'\n\nhint: y\n",
			"numpy 1.24.4 has no wheel for Python 3.13 on linux/" + runtime.GOARCH + " (another version may have one), and building it failed: ModuleNotFoundError: No module named 'distutils'", false,
		},
		"hash": {
			"humanize", "error: Failed to download `humanize==4.0.0`\n  cause: Hash mismatch for `humanize==4.0.0`\n\n         Expected:\n           sha256:0d\n",
			"The file from the index for humanize does not match its published hash, so it was not installed.", false,
		},
		"no worker": {
			"humanize", "error: Request failed after 1 retry in 1.2s\n  cause: Failed to fetch: http://127.0.0.1:3141/pypi/simple/humanize/\n  cause: HTTP status server error (503 Service Unavailable) for url (http://127.0.0.1:3141/pypi/simple/humanize/)\n",
			"The package index could not deliver the files for humanize: it answered with status 503.", true,
		},
		"no connection": {
			"humanize", "error: Request failed after 1 retry in 1.8s\n  cause: Failed to fetch: http://127.0.0.1:1/simple/humanize/\n  cause: client error (Connect)\n  cause: Connection refused (os error 111)\n",
			"The package index is not reachable: the files for humanize could not be downloaded. Try again later.", false,
		},
		"disk": {
			"pyarrow", "error: Failed to download `pyarrow==26.0.1`\n  cause: failed to write to file `/x`: No space left on device (os error 28)\n",
			"pyarrow does not fit: the sandbox's disk for packages, ", false,
		},
		"anything": {"x1", "error: " + strings.Repeat("never seen ", 1000), "x1 could not be installed: never seen never seen", false},
	} {
		trouble := &trouble{output: "Using CPython 3.13.5\n" + c.printed}
		got := uvTool{}.explain(in, trouble, parseRequirement("pip", c.asked))
		if !strings.HasPrefix(got, c.want) || trouble.fatal != c.fatal || len(got) > maxMessageBytes+100 {
			t.Errorf("%s: %q, fatal %v\nwant %q", name, got, trouble.fatal, c.want)
		}
	}
}

// pip is the default in an image that has npm, too. What code imports is of Python.
func TestPackageThatIsNotFoundMayBeOneOfNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"python3", "npm"} {
		testbed.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o755)) //nolint:gosec // it is a program
	}
	python := kernel.NewProber(kernel.ProberConfig{Reaper: &refused{}, Image: []string{"PATH=" + dir}, HomeDir: dir})
	in := &installation{Execution: &execution.Execution{}, s: New(t.Context(), Config{HomeDir: dir, Python: python, Image: []string{"PATH=" + dir}})}
	printed := map[pyTool]string{
		uvTool{}:  "error: No solution found when resolving dependencies\n  cause: Because express was not found in the package registry and you require express, we can conclude that your requirements are unsatisfiable.\n",
		pipTool{}: "ERROR: Could not find a version that satisfies the requirement express (from versions: none)\n",
	}
	for auto, want := range map[bool]string{
		false: ": check its name. It is the index of Python (pip); packages of Node are installed with manager npm.",
		true:  ": check its name.",
	} {
		in.Spec.Install = &agent.Install{Auto: auto}
		for by, output := range printed {
			got := by.explain(in, &trouble{output: output}, parseRequirement(farm.ManagerPip, "express"))
			testbed.Check(t, strings.HasPrefix(got, "express was not found in the package index") && strings.HasSuffix(got, want), "%T, auto %v: %q", by, auto, got)
		}
	}
}

func TestRequirementsAreAccepted(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]requirement{
		"numpy":                            {name: "numpy", bare: true},
		" Foo_Bar.baz ":                    {name: "foo-bar-baz", bare: true},
		"pandas>=2,<3":                     {name: "pandas"},
		"pandas >= 2, < 3":                 {name: "pandas"},
		"pandas==2.1.0":                    {name: "pandas", exact: "2.1.0"},
		"pandas == 2.1.*":                  {name: "pandas"},
		"requests[socks,security]":         {name: "requests"},
		"requests[socks]==2.0":             {name: "requests"},
		"torch==2.1+cpu":                   {name: "torch", exact: "2.1+cpu"},
		"a ~= 1.0; python_version < '3.9'": {name: "a"},
		`a; sys_platform == "win32" and python_version in "3.9 3.10"`: {name: "a"},
		"a (>=1)": {name: "a"},
	} {
		got := parseRequirement(farm.ManagerPip, text)
		testbed.Check(t, got.problem == "" && got.name == want.name && got.bare == want.bare && got.exact == want.exact, "%q: %+v", text, got)
	}
	for text, name := range map[string]string{"left-pad": "left-pad", "@scope/pkg": "@scope/pkg", "lodash@^4.17.0": "lodash", "@a/b@latest": "@a/b", "x@>=1 <2": "x"} {
		got := parseRequirement(farm.ManagerNpm, text)
		testbed.Check(t, got.problem == "" && got.name == name, "%q: %+v", text, got)
	}
}

func TestInvalidRequirementsAreRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "-r /etc/passwd", "--index-url=http://x", "-e .", "git+https://x/y", "../x", "/etc/passwd", ".", "./x", "six; rm -rf /", "six @ https://x/y.whl",
		"six\n--index-url=x", "six --hash=sha256:0", "a b", "six;", "six; os.system('x')", "$(id)", "`id`", "x" + strings.Repeat("y", maxRequirementBytes), "six==", "[x]", "six=1", "a==1 --pre",
		"x.whl/", "file:x", "ä",
	} {
		got := parseRequirement(farm.ManagerPip, text)
		testbed.Check(t, got.problem != "", "%.60q is accepted as %+v", text, got)
	}
	for _, text := range []string{"", "-g", "--registry=x", "git+ssh://x", "github:a/b", "a/b", "../x", "/x", "x@npm:y", "x@file:..", "x@http://y", "x\ny", "x@", "x;y", ".x"} {
		got := parseRequirement(farm.ManagerNpm, text)
		testbed.Check(t, got.problem != "", "npm %q is accepted as %+v", text, got)
	}
	got := parseRequirement(farm.ManagerPip, "x"+strings.Repeat("y", maxRequirementBytes-1))
	testbed.Check(t, got.problem == "", "a long name is refused: %s", got.problem)
}

package verbs_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
)

// autoloadNames are those of a system whose PATH has the programs mytool and report.exe.
func autoloadNames(t *testing.T, system string) *verbs.Autoload {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"mytool", "report.exe"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	return verbs.NewAutoload(system, dir+string(filepath.ListSeparator)+"."+string(filepath.ListSeparator)+filepath.Join(dir, "missing"))
}

func TestFilesThatOtherProgramsLoadAreNotSaved(t *testing.T) {
	t.Parallel()
	n := autoloadNames(t, "linux")
	for _, name := range []string{
		".env", ".git/config", "sub/.git/HEAD", "\u200c.git/config", "Makefile", "makefile", "MAKEFILE", "GNUmakefile", "deep/er/Makefile", "Make\u200dfile", "Make\ufb01le", "confte\u017ft.py",
		"docker-compose.yml", "docker-compose.override.yaml", "compose.yml", "compose.prod.yaml", "Compose.YAML", "CLAUDE.md", "claude.md", "docs/AGENTS.md",
		"conftest.py", "tests/conftest.py", "sitecustomize.py", "usercustomize.py", "sitecustomize/__init__.py", "sitecustomize.cpython-313-x86_64-linux-gnu.so",
		"mytool", "bin/MyTool", "json.py", "out/NumPy.py", "pandas/__init__.py",
		"json.pyc", "json.so", "json.abi3.so", "out/json.cpython-313-x86_64-linux-gnu.so", "json.PYD", "json.pyw", "mine.so", "mine.cp313-win_amd64.pyd", "lib/mine.pyc", "__pycache__/mine.cpython-313.pyc", "mine/__init__.so",
		"BSDmakefile", "justfile", "GEMINI.md", "CLAUDE.local.md", "AGENTS.override.md", "pytest.ini", "tox.ini",
		"pyproject.toml", "setup.cfg", "package.json", "vite.config.js", "eslint.config.mjs", "build.rs", "build.gradle.kts", "Dockerfile", "Containerfile", "SConstruct", "gradlew.bat", "settings.gradle.kts", "tasks.py", "WORKSPACE", "BUILD", "Brewfile", "uv.toml", "gradle.properties", "Package.swift", "AGENT.md", "node_modules/lodash/index.js", "a/node_modules/x",
	} {
		if n.Reason(nil, name) == "" {
			t.Errorf("%q would be saved", name)
		}
	}
	for _, name := range []string{
		"plot.png", "build/plot.png", "a.b/c..d", "makefile.txt", "decompose.yml", "compose.json", "notes/claude.txt", "my_conftest.py", "mytool.csv", "mytool/data.csv", "folder",
		"report", "setup.exe", "conftest.pyx", "git~1", "test.py", "my_json.py", "json.txt", "json.so.txt", "json.schema.py", "so", "a.so/data.csv", "config.js", "data.config.json", "node_autoload_modules.txt", "json/data.csv", "__init__.py", "pkg/__init__.py",
	} {
		if why := n.Reason(nil, name); why != "" {
			t.Errorf("%q would not be saved: %s", name, why)
		}
	}
}

func TestWindowsRunsProgramsByExtension(t *testing.T) {
	t.Parallel()
	n := autoloadNames(t, "windows")
	for _, name := range []string{"setup.exe", "a/Git.BAT", "x.cmd", "x.com", "x.ps1", "report", "report.js", "mytool.vbs", "mytool", "Makefile.", "Makefile . ", "CLAUDE.md::$DATA"} {
		if n.Reason(nil, name) == "" {
			t.Errorf("%q would be saved", name)
		}
	}
	for _, name := range []string{"plot.js", "report.csv", "notes.txt"} {
		if why := n.Reason(nil, name); why != "" {
			t.Errorf("%q would not be saved: %s", name, why)
		}
	}
}

// A file behind a link has another name than the one that a sandbox chose: editor/tasks.json is .vscode/tasks.json.
func TestFilesBehindALinkAreNotSaved(t *testing.T) {
	t.Parallel()
	n, dir := autoloadNames(t, "linux"), t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, ".vscode"), 0o700), os.MkdirAll(filepath.Join(dir, "sub"), 0o700),
		os.Symlink(".vscode", filepath.Join(dir, "editor")), os.Symlink("../.vscode", filepath.Join(dir, "sub", "editor"))); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	for name, held := range map[string]bool{"editor/tasks.json": true, "sub/editor/x/tasks.json": true, "sub/tasks.json": false, "new/tasks.json": false} {
		if why := n.Reason(root, name); (why != "") != held {
			t.Errorf("%s: %q", name, why)
		}
	}
}

// What is loaded without its extension comes before a file of the caller's: a package before a module, and by Node's order.
func TestFilesThatComeBeforeOthers(t *testing.T) {
	t.Parallel()
	n, dir := autoloadNames(t, "linux"), t.TempDir()
	for _, file := range []string{"mine.py", "sub/other.py", "helper.js", "data.json", "view.jsx", "lib/index.js", "App.js", "pkg/package.json", "old.ts", "old.js"} {
		path := filepath.Join(dir, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	for name, held := range map[string]bool{
		"mine/__init__.py": true, "sub/mine/__init__.py": false, "sub/other/__init__.py": true, "mine/other.py": false, "new/__init__.py": false,
		"App": true, "App.json": false, "MINE/__init__.py": false, "lib.node": true, "pkg.js": true, "pkg.json": true, "old.ts": false,
		"helper": true, "data": true, "data.js": true, "view.ts": true, "helper.ts": true, "lib.js": true, "view.tsx": true,
		"new": false, "new.js": false, "mine.js": false, "mine.json": false, "helper.json": false, "helper.csv": false, "sub/helper": false,
	} {
		if why := n.Reason(root, name); (why != "") != held {
			t.Errorf("%s: %q", name, why)
		}
	}
}

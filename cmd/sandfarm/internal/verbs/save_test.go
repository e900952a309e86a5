package verbs_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestRunSavesTheFilesOfTheCode(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	png := base64.StdEncoding.EncodeToString([]byte("shown"))
	f.Script = prints("", wire.ExecuteResult{
		Artifacts: []wire.Artifact{
			f.artifact("plot.png", "new"), f.artifact("deep/er/a.txt", "nested"), f.artifact("mine.csv", "theirs"), f.artifact("same.csv", "same"), f.artifact("work.py", "overwrite"),
		},
		Results: []wire.Rich{{Mime: "text/plain", Data: "x"}, {Mime: "image/png", Data: png}},
	})
	file, dir := script(t, "code")
	put(t, filepath.Join(dir, "mine.csv"), "mine")
	put(t, filepath.Join(dir, "same.csv"), "same")
	got := f.sandfarm(t.Context(), "", "run", file)
	want := map[string]string{
		"plot.png": "new", "deep/er/a.txt": "nested", "mine.csv": "mine", "mine-1.csv": "theirs", "same.csv": "same",
		"work.py": "code", "work-1.py": "overwrite", "work-1.png": "shown",
	}
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" || got.code != 0 {
		t.Errorf("%+v %s", got, diff)
	}
	for _, line := range []string{
		"saved " + filepath.Join(dir, "plot.png") + " (3 B)\n",
		"saved " + filepath.Join(dir, "mine-1.csv") + " (6 B; " + filepath.Join(dir, "mine.csv") + " is another file and was kept)\n",
		"kept " + filepath.Join(dir, "same.csv") + " (unchanged)\n",
	} {
		if !strings.Contains(got.stderr, line) {
			t.Errorf("stderr has no line %q:\n%s", line, got.stderr)
		}
	}
}

// A PIL image is one value as PNG and JPEG, and used to be saved as two files.
func TestRunSavesADisplayedValueOnce(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	f.Script = prints("", wire.ExecuteResult{Results: []wire.Rich{
		{Mime: "image/jpeg", Data: b64("jpeg")},
		{Mime: "image/png", Data: b64("png")},
		{Display: 1, Mime: "image/jpeg", Data: b64("second")},
	}})
	file, dir := script(t, "code")
	got := f.sandfarm(t.Context(), "", "run", file)
	want := map[string]string{"work.py": "code", "work-1.png": "png", "work-2.jpg": "second"}
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" || got.code != 0 {
		t.Errorf("%+v %s", got, diff)
	}
}

func TestRunSavesNothingOutsideTheDirectory(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	outside, dir := filepath.Join(base, "outside"), filepath.Join(base, "inside")
	for _, name := range []string{outside, dir} {
		testbed.Must(t, os.Mkdir(name, 0o700))
	}
	testbed.Must(t, os.Symlink(outside, filepath.Join(dir, "link")))
	put(t, filepath.Join(outside, "victim"), "whole")
	testbed.Must(t, os.Symlink(filepath.Join(outside, "victim"), filepath.Join(dir, "to-victim")))
	f := newFarm(t)
	names := []string{
		"../escaped", "a/../../escaped", outside + "/absolute", "/workspace/../../escaped", "..", ".", "", "dir/", "/", "link/through",
		"link/../../escaped", "/workspace//../escaped",
	}
	result := wire.ExecuteResult{}
	for _, name := range append(names, "to-victim", "esc\x1b[31m\n.txt", "good.txt") {
		result.Artifacts = append(result.Artifacts, f.artifact(name, "evil"))
	}
	f.Script = prints("", result)
	got := f.sandfarm(t.Context(), "1", "run", "-", "--out", dir)
	if got.code != 1 {
		t.Errorf("exit code %d, want 1: names that lead out are an error", got.code)
	}
	want := map[string]string{"outside/victim": "whole", "inside/good.txt": "evil", "inside/esc_[31m_.txt": "evil", "inside/to-victim-1": "evil"}
	testbed.Diff(t, "files", want, tree(t, base))
	if strings.Contains(got.stderr, "\x1b") {
		t.Errorf("stderr carries control characters: %q", got.stderr)
	}
	for _, name := range names {
		if name != "" && !strings.Contains(got.stderr, "save "+name+": ") {
			t.Errorf("stderr does not say that %q was not saved", name)
		}
	}
}

// git runs commands of the configuration of a repository beside the code, and make runs a Makefile there.
func TestRunLeavesFilesThatOtherProgramsLoad(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	result := wire.ExecuteResult{Artifacts: []wire.Artifact{f.artifact("a.b/c..d", "seen")}}
	names := []string{".git/config", ".ssh/authorized_keys", "./.envrc", "/workspace/.env", "..x", "sub//.hid", "Makefile", "sub/my conftest/conftest.py"}
	for _, name := range names {
		result.Artifacts = append(result.Artifacts, f.artifact(name, "evil"))
	}
	f.Script = prints("", result)
	file, dir := script(t, "code")
	got := f.sandfarm(t.Context(), "", "run", file)
	if diff := cmp.Diff(map[string]string{"work.py": "code", "a.b/c..d": "seen"}, tree(t, dir)); diff != "" || got.code != 0 {
		t.Errorf("%+v %s", got, diff)
	}
	for _, line := range []string{
		"not saved: .git/config (it is hidden). To get it: sandfarm artifact get art_a1 " + filepath.Join(dir, ".git/config") + "\n",
		"not saved: Makefile (make runs it). To get it: sandfarm artifact get art_a7 " + filepath.Join(dir, "Makefile") + "\n",
		"not saved: sub/my conftest/conftest.py (pytest runs it). To get it: sandfarm artifact get art_a8 '" + filepath.Join(dir, "sub/my conftest/conftest.py") + "'\n",
	} {
		if !strings.Contains(got.stderr, line) {
			t.Errorf("stderr has no line %q:\n%s", line, got.stderr)
		}
	}
	if n := strings.Count(got.stderr, "not saved: "); n != len(names) {
		t.Errorf("%d files are named as not saved, want %d:\n%s", n, len(names), got.stderr)
	}
}

func TestRunNamesAllFilesThatItDoesNotSave(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	var result wire.ExecuteResult
	for n := range 30 {
		one := f.artifact(fmt.Sprintf(".git/objects/%d", n), "evil")
		one.JobID = "job_1"
		result.Artifacts = append(result.Artifacts, one)
	}
	f.Script = prints("", result)
	file, _ := script(t, "code")
	got := f.sandfarm(t.Context(), "", "run", file)
	if strings.Count(got.stderr, "sandfarm artifact get ") != 10 || !strings.Contains(got.stderr, "not saved: 20 more files: .git/objects/10, .git/objects/11, ") ||
		!strings.Contains(got.stderr, ", .git/objects/29. For their IDs: sandfarm artifact ls --job job_1 --limit 0\n") {
		t.Errorf("%+v", got)
	}
}

func TestRunDropsAnIncompleteDownload(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	broken := f.artifact("broken.bin", "what was stored")
	f.Links["a0"] = []byte("something else")
	f.Script = prints("", wire.ExecuteResult{Artifacts: []wire.Artifact{broken}})
	file, dir := script(t, "1")
	got := f.sandfarm(t.Context(), "", "run", file)
	if got.code != 1 || !strings.Contains(got.stderr, "checksum") || len(tree(t, dir)) != 1 {
		t.Errorf("%+v, files %v", got, tree(t, dir))
	}
}

// autoloadNames are those of a system whose PATH has the programs mytool and report.exe.
func autoloadNames(t *testing.T, system string) *verbs.Autoload {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"mytool", "report.exe"} {
		testbed.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o700))
	}
	testbed.Must(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
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
		"pyproject.toml", "setup.cfg", "package.json", "vite.config.js", "eslint.config.mjs", "build.rs", "build.gradle.kts", "Dockerfile", "Containerfile", "SConstruct", "gradlew.bat", "settings.gradle.kts", "tasks.py", "WORKSPACE", "BUILD", "Brewfile", "uv.toml", "gradle.properties", "Package.swift", "AGENT.md", "node_modules/lodash/index.js", "a/node_modules/x", "analysis/HEAD", "sandfarm.py",
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
	testbed.Must(t, err)
	defer func() { _ = root.Close() }()
	for name, held := range map[string]bool{"editor/tasks.json": true, "sub/editor/x/tasks.json": true, "sub/tasks.json": false, "new/tasks.json": false} {
		if why := n.Reason(root, name); (why != "") != held {
			t.Errorf("%s: %q", name, why)
		}
	}
}

// A repository may have any name, and lie where the files are saved.
func TestFilesOfARepositoryAreNotSaved(t *testing.T) {
	t.Parallel()
	n, dir := autoloadNames(t, "linux"), t.TempDir()
	for _, made := range []string{"mirror/HEAD", "mirror/objects", "mirror/refs", "halves/HEAD", "halves/refs"} {
		testbed.Must(t, os.MkdirAll(filepath.Join(dir, made), 0o700))
	}
	root, err := os.OpenRoot(dir)
	testbed.Must(t, err)
	defer func() { _ = root.Close() }()
	for name, held := range map[string]bool{"mirror/config": true, "mirror/hooks/post-receive": true, "halves/config": false, "config": false} {
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
		testbed.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)))
	}
	root, err := os.OpenRoot(dir)
	testbed.Must(t, err)
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

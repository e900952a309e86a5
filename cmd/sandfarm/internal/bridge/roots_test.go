package bridge_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/bridge"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// roots opens a root with a file a.txt in it, beside a directory with a file secret.txt.
func roots(t *testing.T) (r *bridge.Roots, dir, outside string) {
	t.Helper()
	dir, outside = t.TempDir(), t.TempDir()
	write(t, filepath.Join(dir, "a.txt"), "inside")
	write(t, filepath.Join(dir, "deep", "b.txt"), "deeper")
	write(t, filepath.Join(outside, "secret.txt"), "secret")
	return open(t, dir), dir, outside
}

func open(t *testing.T, dirs ...string) *bridge.Roots {
	t.Helper()
	r, err := bridge.OpenRoots(dirs, "/nonexistent", "")
	testbed.Must(t, err)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func write(t *testing.T, name, content string) {
	t.Helper()
	testbed.Must(t, os.MkdirAll(filepath.Dir(name), 0o750))
	testbed.Must(t, os.WriteFile(name, []byte(content), 0o600))
}

func read(r *bridge.Roots, path string) (string, int64, error) {
	file, size, err := r.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer file.Close()
	content, err := io.ReadAll(file)
	return string(content), size, err
}

func create(r *bridge.Roots, path, content string) error {
	file, err := r.Create(path)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(file, content); err != nil {
		return err
	}
	return file.Close()
}

func TestOpenBelowARoot(t *testing.T) {
	t.Parallel()
	r, dir, _ := roots(t)
	for path, want := range map[string]string{
		"a.txt": "inside", "./a.txt": "inside", "deep/../a.txt": "inside", "deep/b.txt": "deeper",
		filepath.Join(dir, "a.txt"): "inside", dir + "//deep/./b.txt": "deeper",
	} {
		got, size, err := read(r, path)
		if err != nil || got != want || size != int64(len(want)) {
			t.Errorf("%s: %q, %d, %v", path, got, size, err)
		}
	}
}

func TestNothingOutsideIsTouched(t *testing.T) {
	t.Parallel()
	r, dir, outside := roots(t)
	for link, to := range map[string]string{
		"link.txt": filepath.Join(outside, "secret.txt"), "linkdir": outside,
		"relative": filepath.Join("..", filepath.Base(outside), "secret.txt"), "dangling": filepath.Join(outside, "new.txt"),
	} {
		testbed.Must(t, os.Symlink(to, filepath.Join(dir, link)))
	}
	for _, path := range []string{
		"/etc/passwd", "../" + filepath.Base(outside) + "/secret.txt", filepath.Join(outside, "secret.txt"), dir + "/../" + filepath.Base(outside) + "/secret.txt",
		"deep/../../" + filepath.Base(outside) + "/secret.txt", "link.txt", "linkdir/secret.txt", "relative", dir + "x/secret.txt", "dangling", "linkdir/new.txt",
	} {
		got, _, err := read(r, path)
		if err == nil || got != "" {
			t.Errorf("%s was read: %q", path, got)
		}
		if err != nil && (farm.CodeOf(err) != farm.CodeInvalid || strings.Contains(err.Error(), "openat")) {
			t.Errorf("%s: %v", path, err)
		}
		if err := create(r, path, "overwritten"); err == nil {
			t.Errorf("%s was written", path)
		}
	}
	content, err := os.ReadFile(filepath.Join(outside, "secret.txt"))
	entries, _ := os.ReadDir(outside)
	if err != nil || string(content) != "secret" || len(entries) != 1 {
		t.Errorf("outside there is %q, %v and %v", content, err, entries)
	}
}

func TestRefusalSaysWhatMayBeUsed(t *testing.T) {
	t.Parallel()
	r, dir, _ := roots(t)
	_, _, err := r.Open("/etc/passwd")
	want := "it lies outside the directories of this machine that may be used (" + dir + ")"
	if err == nil || !strings.HasPrefix(farm.MessageOf(err), want) || !strings.Contains(farm.MessageOf(err), "--root") {
		t.Errorf("%v", err)
	}
}

func TestHiddenFilesAreLeftAlone(t *testing.T) {
	t.Parallel()
	r, dir, _ := roots(t)
	write(t, filepath.Join(dir, ".env"), "KEY=1")
	write(t, filepath.Join(dir, ".git", "config"), "x")
	for _, path := range []string{".env", ".git/config", filepath.Join(dir, ".env"), "deep/../.env", ".git/hooks/pre-commit", "deep/.new"} {
		if got, _, err := read(r, path); err == nil || !strings.Contains(farm.MessageOf(err), "hidden") {
			t.Errorf("read %s: %q, %v", path, got, err)
		}
		if err := create(r, path, "x"); err == nil || !strings.Contains(farm.MessageOf(err), "hidden") {
			t.Errorf("write %s: %v", path, err)
		}
	}
	write(t, filepath.Join(dir, "deep", "plain.txt"), "plain")
	for link, to := range map[string]string{
		"settings.txt": ".env", "again.txt": "settings.txt", "repo": ".git", "deep/up": "../.git", "loop": "loop", "back": "deep/../.env",
		"whole": filepath.Join(dir, ".env"), "good.txt": "deep/plain.txt", "gooddir": "./deep/../deep", "new": ".new",
	} {
		testbed.Must(t, os.Symlink(to, filepath.Join(dir, link)))
	}
	for _, path := range []string{"settings.txt", "again.txt", "repo/config", "deep/up/config", "gooddir/up/config", "loop", "back", "whole"} {
		if got, _, err := read(r, path); err == nil || farm.CodeOf(err) != farm.CodeInvalid || got != "" {
			t.Errorf("read %s, a link: %q, %v", path, got, err)
		}
	}
	for _, path := range []string{"new", "repo/hook", "repo/hooks/post-commit", "deep/up/x"} {
		if err := create(r, path, "x"); err == nil || !strings.Contains(farm.MessageOf(err), "hidden") {
			t.Errorf("write %s, a link: %v", path, err)
		}
	}
	for _, path := range []string{"good.txt", "gooddir/plain.txt"} {
		if got, _, err := read(r, path); err != nil || got != "plain" {
			t.Errorf("read %s, a link: %q, %v", path, got, err)
		}
	}
	if err := create(r, "gooddir/more.txt", "x"); err != nil {
		t.Error(err)
	}
	if got, _, err := read(open(t, filepath.Join(dir, ".git")), "config"); err != nil || got != "x" {
		t.Errorf("a root that is hidden itself was named by the user: %q, %v", got, err)
	}
}

func TestCreateMakesNewFilesOnly(t *testing.T) {
	t.Parallel()
	r, dir, _ := roots(t)
	testbed.Must(t, create(r, "new/plot.png", "image"))
	if content, err := os.ReadFile(filepath.Join(dir, "new", "plot.png")); err != nil || string(content) != "image" {
		t.Errorf("%q, %v", content, err)
	}
	if err := create(r, "a.txt", "overwritten"); err == nil || !strings.Contains(farm.MessageOf(err), "another name") {
		t.Errorf("%v", err)
	}
	if got, _, _ := read(r, "a.txt"); got != "inside" {
		t.Errorf("a.txt holds %q", got)
	}
	for _, path := range []string{"", "deep", "deep/", "x/", "a\x00b", "a.txt/b"} {
		if err := create(r, path, "x"); err == nil || farm.CodeOf(err) != farm.CodeInvalid {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestFilesThatOtherProgramsLoadAreNotCreated(t *testing.T) {
	t.Parallel()
	dir, programs := t.TempDir(), t.TempDir()
	write(t, filepath.Join(programs, "mytool"), "")
	write(t, filepath.Join(dir, "deep", "Makefile"), "all:")
	testbed.Must(t, os.Symlink("sub/Makefile", filepath.Join(dir, "link.txt")))
	r, err := bridge.OpenRoots([]string{dir}, "", programs)
	testbed.Must(t, err)
	t.Cleanup(func() { _ = r.Close() })
	for path, why := range map[string]string{
		"Makefile": "make", filepath.Join(dir, "makefile"): "make", "sub/compose.yml": "docker compose", "AGENTS.md": "agents", "tests/conftest.py": "pytest",
		"sitecustomize/a.py": "Python", "mytool": "PATH", "link.txt": "make",
	} {
		if err := create(r, path, "x"); err == nil || farm.CodeOf(err) != farm.CodeInvalid || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "another name") {
			t.Errorf("create %s: %v, want an error that mentions %s", path, err, why)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("the root contains %v, want the folder deep and link.txt", entries)
	}
	if got, _, err := read(r, "deep/Makefile"); err != nil || got != "all:" {
		t.Errorf("read deep/Makefile: %q, %v", got, err)
	}
	if err := create(r, "mytool.csv", "x"); err != nil {
		t.Error(err)
	}
}

func TestSeveralRoots(t *testing.T) {
	t.Parallel()
	_, first, second := roots(t)
	r := open(t, first, second)
	if got, _, err := read(r, filepath.Join(second, "secret.txt")); err != nil || got != "secret" {
		t.Errorf("%q, %v", got, err)
	}
	if _, _, err := read(r, "secret.txt"); err == nil || !strings.Contains(farm.MessageOf(err), "start at "+first) {
		t.Errorf("relative paths start at the first root: %v", err)
	}
}

func TestARootBehindALinkHasTwoNames(t *testing.T) {
	t.Parallel()
	_, dir, _ := roots(t)
	link := filepath.Join(t.TempDir(), "link")
	testbed.Must(t, os.Symlink(dir, link))
	r := open(t, link)
	for _, path := range []string{filepath.Join(link, "a.txt"), filepath.Join(dir, "a.txt"), "a.txt"} {
		if got, _, err := read(r, path); err != nil || got != "inside" {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
}

func TestARootMustExist(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), "")
	for _, name := range []string{filepath.Join(dir, "missing"), filepath.Join(dir, "file")} {
		if _, err := bridge.OpenRoots([]string{dir, name}, "", ""); err == nil {
			t.Errorf("%s is a root", name)
		}
	}
}

func TestWithoutRootsTheCurrentDirectoryIsOne(t *testing.T) {
	here := t.TempDir()
	write(t, filepath.Join(here, "sub", "a.txt"), "inside")
	tests := map[string]struct {
		cwd, home string
		ok        bool
	}{
		"AProject":       {filepath.Join(here, "sub"), here, true},
		"NoHomeKnown":    {here, "", true},
		"Home":           {here, here, false},
		"AroundHome":     {here, filepath.Join(here, "sub"), false},
		"TheFileSystems": {"/", "/nonexistent", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Chdir(test.cwd)
			r, err := bridge.OpenRoots(nil, test.home, "")
			testbed.Must(t, err)
			defer r.Close()
			if got := len(r.Names()) == 1; got != test.ok {
				t.Errorf("roots %v", r.Names())
			}
			if _, _, err := r.Open("sub/a.txt"); !test.ok && (err == nil || !strings.Contains(farm.MessageOf(err), "--root")) {
				t.Errorf("%v", err)
			}
		})
	}
}

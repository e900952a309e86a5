package files

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/agent"
)

// makeFiles makes empty files in a workspace.
func makeFiles(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
}

// A virtual environment in the workspace made thousands of artifacts. What is in such folders is counted, for the outermost one.
func TestFoldersOfInstalledFilesAreLeftOutAndCounted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := Open(dir)
	must(t, err)
	t.Cleanup(func() { _ = w.Close() })
	makeFiles(t, dir, ".venv/old", "src/old.py")
	before := w.Snapshot()
	makeFiles(t, dir, ".venv/bin/python", ".venv/lib/__pycache__/a.pyc", ".venv/lib/venv/x", "node_modules/a/node_modules/b/c.js", "app/node_modules/d.js",
		"src/__pycache__/m.pyc", "src/m.py", ".git/HEAD", ".cache/pip/x", "venv/pyvenv.cfg", "venv2/kept", "data/.gitignore", "zz/venv", ".venvs/kept")
	files, skipped, left := before.Changes(0, 0)
	var names []string
	for _, f := range files {
		names = append(names, f.Path)
	}
	if diff := cmp.Diff([]string{".venvs/kept", "data/.gitignore", "src/m.py", "venv2/kept", "zz/venv"}, names); diff != "" || skipped != 0 {
		t.Errorf("%d skipped, changed (-want +got):\n%s", skipped, diff)
	}
	want := []agent.LeftOut{
		{Folder: ".venv", Files: 3},
		{Folder: ".cache", Files: 1},
		{Folder: ".git", Files: 1},
		{Folder: "app/node_modules", Files: 1},
		{Folder: "node_modules", Files: 1},
		{Folder: "venv", Files: 1},
	}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("left out (-want +got):\n%s", diff)
	}
	if f, _, err := w.Open(".venv/bin/python"); err != nil {
		t.Errorf("what is left out cannot be read: %v", err)
	} else {
		_ = f.Close()
	}
	if _, _, left := w.Snapshot().Changes(0, 0); left != nil {
		t.Errorf("without a change: %+v", left)
	}
}

func TestFoldersThatAreNotNamedAreCountedTogether(t *testing.T) {
	t.Parallel()
	for _, n := range []int{agent.MaxLeftOut - 1, agent.MaxLeftOut, agent.MaxLeftOut + 1, agent.MaxLeftOut + 2} {
		counts := map[string]int{"bad\xff/venv": 100}
		for i := range n {
			counts[fmt.Sprintf("%02d/venv", i)] = 1
		}
		left := maxLeftOut(counts)
		last, named := left[len(left)-1], min(n, agent.MaxLeftOut)
		if len(left) != named+1 || last.Folder != "" || last.Files != 100+n-named || left[0].Folder != "00/venv" {
			t.Errorf("%d folders: %+v", n, left)
		}
	}
}

func TestTheDocumentationNamesTheFolders(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"docs/rest.md", "api/wire/result.go"} {
		raw, err := os.ReadFile(filepath.Join("..", "..", "..", file))
		must(t, err)
		for _, name := range leftOut {
			if !strings.Contains(string(raw), name) {
				t.Errorf("%s does not name %s", file, name)
			}
		}
	}
}

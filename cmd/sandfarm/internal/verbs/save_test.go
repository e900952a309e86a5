package verbs_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/api/wire"
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
		if err := os.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(outside, "victim"), "whole")
	if err := os.Symlink(filepath.Join(outside, "victim"), filepath.Join(dir, "to-victim")); err != nil {
		t.Fatal(err)
	}
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
	if diff := cmp.Diff(want, tree(t, base)); diff != "" {
		t.Error(diff)
	}
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

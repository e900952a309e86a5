package verbs_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// treeFarm is a farm with one sandbox, whose directory /workspace/d is a tar.
type treeFarm struct {
	*httptest.Server
	mu      sync.Mutex
	written map[string][]byte // by path and query
}

func serveTree(t *testing.T, members ...tar.Header) *treeFarm {
	t.Helper()
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, h := range members {
		content := []byte("from the sandbox")
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(content))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			_, _ = w.Write(content)
		}
	}
	_ = w.Close()
	f := &treeFarm{written: map[string][]byte{}}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rest, ok := strings.CutPrefix(r.URL.Path, "/v1/sandboxes/sbx_1/fs")
		switch {
		case !ok:
			http.NotFound(w, r)
		case r.Method == http.MethodGet && rest == "":
			e := wire.FSEntry{Path: client.Absolute(r.URL.Query().Get("path")), Type: "file", ETag: "e"}
			if strings.HasSuffix(e.Path, "/d") {
				e.Type = "dir"
			}
			if strings.HasSuffix(e.Path, "/moved") {
				e.Path = "/workspace/Makefile"
			}
			if strings.Contains(e.Path, "new") {
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(http.StatusNotFound)
				_, _ = io.WriteString(w, `{"code":"not_found","status":404,"detail":"ENOENT"}`)
				return
			}
			_ = json.NewEncoder(w).Encode(wire.FSListing{Items: []wire.FSEntry{e}})
		case r.Method == http.MethodGet && r.URL.Query().Get("tar") == "1":
			w.Header().Set("Trailer", "Sandfarm-Left-Out")
			_, _ = w.Write(packed.Bytes())
			w.Header().Set("Sandfarm-Left-Out", "2")
		case r.Method == http.MethodGet:
			_, _ = io.WriteString(w, "one file")
		default:
			content, _ := io.ReadAll(r.Body)
			f.mu.Lock()
			f.written[r.Method+" "+rest+"?"+r.URL.RawQuery] = content
			f.mu.Unlock()
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "{}")
		}
	}))
	t.Cleanup(f.Close)
	return f
}

// call runs the program and returns all that it printed, and "exit" with its code.
func call(t *testing.T, url string, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	code := program(t.Context(), strings.NewReader(""), &out, &errs, map[string]string{"SANDFARM_URL": url}, args...)
	return fmt.Sprintf("%s%sexit %d", out.String(), errs.String(), code)
}

func TestCopyOfADirectoryStaysInside(t *testing.T) {
	t.Parallel()
	reg := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755} }
	f := serveTree(t,
		reg("ok/a.txt"), reg("../escaped"), reg("ok/../../escaped"), reg("/absolute"), reg("Makefile"), reg(".git/config"), reg("sub/conftest.py"),
		tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/etc"}, reg("link/passwd"), tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"},
		tar.Header{Name: "empty/", Typeflag: tar.TypeDir, Mode: 0o755},
	)
	above := t.TempDir()
	to := filepath.Join(above, "here")
	got := call(t, f.URL, "cp", "-r", "sbx_1:d", to)
	var have []string
	_ = filepath.WalkDir(above, func(p string, e os.DirEntry, _ error) error {
		if !e.IsDir() || e.Name() == "empty" {
			have = append(have, strings.TrimPrefix(p, to+"/"))
		}
		return nil
	})
	if strings.Join(have, " ") != "empty link/passwd ok/a.txt" {
		t.Errorf("saved %q", have)
	}
	if info, err := os.Stat(filepath.Join(to, "ok", "a.txt")); err != nil || info.Mode().Perm()&0o111 != 0 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for _, want := range []string{"Makefile (make runs it)", ".git/config (it is hidden)", "conftest.py", "1 symbolic link", "copied 2 files (32 B)", "leads out", "not copied: 2 files or directories that"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not said: %s", want, got)
		}
	}
}

// Code of the sandbox chooses the names, also of what is not saved: they neither reach the terminal as they are nor begin a line.
func TestCopyShowsNamesInALine(t *testing.T) {
	t.Parallel()
	const tail = "\x1b]0;title\x07\nforged\u202e"
	f := serveTree(t, tar.Header{Name: ".hidden" + tail, Typeflag: tar.TypeReg}, tar.Header{Name: "../out" + tail, Typeflag: tar.TypeReg}, tar.Header{Name: "saved" + tail, Typeflag: tar.TypeReg})
	got := call(t, f.URL, "cp", "-r", "sbx_1:d", filepath.Join(t.TempDir(), "here"))
	testbed.Check(t, strings.Count(got, "forged") >= 3 && !strings.Contains(got, "\nforged") && !strings.ContainsAny(got, "\x1b\x07\u202e"), "%q", got)
}

func TestCopyNamesTheFirstThatItLeavesOut(t *testing.T) {
	t.Parallel()
	for n, more := range map[int]string{10: "", 11: "1 more file", 12: "2 more files"} {
		var members []tar.Header
		for i := range n {
			members = append(members, tar.Header{Name: fmt.Sprintf("d%d/Makefile", i), Typeflag: tar.TypeReg, Mode: 0o644})
		}
		f, to := serveTree(t, members...), filepath.Join(t.TempDir(), "here")
		got := call(t, f.URL, "cp", "-r", "sbx_1:d", to)
		want := "not copied: " + more + " like these. To get them, and to send what is only here: sandfarm sync --once --trust " + to + " sbx_1:/workspace/d\n"
		if strings.Count(got, "To get it:") != 10 || strings.Contains(got, want) != (more != "") || strings.Contains(got, "like these") != (more != "") {
			t.Errorf("%d files: %s", n, got)
		}
	}
}

func TestCopyOfADirectoryNeedsAFlag(t *testing.T) {
	t.Parallel()
	if got := call(t, serveTree(t).URL, "cp", "sbx_1:d", t.TempDir()); !strings.Contains(got, "sandfarm: /workspace/d is a directory: add -r") {
		t.Error(got)
	}
}

// The answer to a question about one file does not choose the name under which it is saved.
func TestCopyTakesNoOtherName(t *testing.T) {
	t.Parallel()
	f, dir := serveTree(t), t.TempDir()
	for _, flags := range [][]string{nil, {"-r"}} {
		got := call(t, f.URL, append(append([]string{"cp"}, flags...), "sbx_1:moved", dir)...)
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 || !strings.Contains(got, `"/workspace/Makefile", which is elsewhere`) {
			t.Errorf("%v, %v: %s", left, err, got)
		}
	}
}

func TestCopyIntoASandbox(t *testing.T) {
	t.Parallel()
	f, dir := serveTree(t), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "p", "sub"), 0o700))
	must(os.WriteFile(filepath.Join(dir, "p", "sub", "f"), []byte("content"), 0o600))
	for _, c := range []struct{ from, to, written string }{
		{"p/sub/f", "sbx_1:new", "PUT /workspace/new?"},
		{"p/sub/f", "sbx_1:", "PUT /workspace/f?"},
		{"p/sub/f", "sbx_1:d", "PUT /workspace/d/f?"},
		{"p/sub/f", "sbx_1:/tmp/new/", "PUT /tmp/new/f?"},
		{"p", "sbx_1:new", "POST ?path=new"},
		{"p", "sbx_1:/workspace/d", "POST ?path=%2Fworkspace%2Fd%2Fp"},
	} {
		got := call(t, f.URL, "cp", "-r", filepath.Join(dir, c.from), c.to)
		f.mu.Lock()
		if _, ok := f.written[c.written]; !ok || !strings.Contains(got, "(7 B)\n") {
			t.Errorf("%s to %s: %v, %s", c.from, c.to, f.written, got)
		}
		clear(f.written)
		f.mu.Unlock()
	}
	must(os.WriteFile(filepath.Join(dir, "g"), []byte("content"), 0o600))
	for to, written := range map[string][]string{
		"sbx_1:new":      {"PUT /workspace/new/f?", "PUT /workspace/new/g?"},
		"sbx_1:":         {"PUT /workspace/f?", "PUT /workspace/g?"},
		"sbx_1:/":        {"PUT /f?", "PUT /g?"},
		"sbx_1:/tmp/new": {"PUT /tmp/new/f?", "PUT /tmp/new/g?"},
	} {
		got := call(t, f.URL, "cp", filepath.Join(dir, "p", "sub", "f"), filepath.Join(dir, "missing"), filepath.Join(dir, "g"), to)
		f.mu.Lock()
		if !slices.Equal(slices.Sorted(maps.Keys(f.written)), written) || !strings.Contains(got, filepath.Join(dir, "missing")) || !strings.HasSuffix(got, "exit 1") {
			t.Errorf("several to %s: %v, %s", to, f.written, got)
		}
		clear(f.written)
		f.mu.Unlock()
	}
	for _, args := range [][]string{{"a", "b"}, {"a", "sbx_1:b", "sbx_1:c"}, {"sbx_1:a", "b", "c"}, {"sbx_1:a", "sbx_1:b"}, {"p"}, {filepath.Join(dir, "p"), "sbx_1:d"}, {"sbx_1:d", "here"}} {
		if got := call(t, f.URL, append([]string{"cp"}, args...)...); strings.HasSuffix(got, "exit 0") {
			t.Errorf("%v: %s", args, got)
		}
	}
}

func TestCopyOfSeveralFilesOut(t *testing.T) {
	t.Parallel()
	f, dir := serveTree(t), filepath.Join(t.TempDir(), "out")
	if got := call(t, f.URL, "cp", "sbx_1:a.txt", "sbx_1:/tmp/b.txt", dir); !strings.HasSuffix(got, "exit 0") {
		t.Error(got)
	}
	for _, name := range []string{"a.txt", "b.txt"} {
		if content, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(content) != "one file" {
			t.Errorf("%s: %q, %v", name, content, err)
		}
	}
}

// TestCopyOutKeepsWhatIsTheSame: a file that is here byte for byte was saved again under another name.
func TestCopyOutKeepsWhatIsTheSame(t *testing.T) {
	t.Parallel()
	f, dir := serveTree(t, tar.Header{Name: "m.txt", Typeflag: tar.TypeReg, Mode: 0o644}), t.TempDir()
	first, second, copied := filepath.Join(dir, "a.txt"), filepath.Join(dir, "a-1.txt"), filepath.Join(dir, "d")
	copyOut := func(want string, args ...string) {
		t.Helper()
		if got := call(t, f.URL, append([]string{"cp"}, args...)...); got != want+"\nexit 0" {
			t.Errorf("%q, want %q", got, want)
		}
	}
	copyOut("saved "+first+" (8 B)", "sbx_1:a.txt", dir)
	copyOut("kept "+first+" (unchanged)", "sbx_1:a.txt", dir)
	put(t, first, "mine")
	copyOut("saved "+second+" (8 B; "+first+" is another file and was kept)", "sbx_1:a.txt", dir)
	copyOut("kept "+second+" (unchanged)", "sbx_1:a.txt", dir)
	for range 2 {
		copyOut("copied 1 file (16 B) to "+copied+"\nnot copied: 2 files or directories that the sandbox's user cannot read, special files, names that are not UTF-8, or files that are too large",
			"-r", "sbx_1:d", dir)
	}
	testbed.Diff(t, "files", map[string]string{"a.txt": "mine", "a-1.txt": "one file", "d/m.txt": "from the sandbox"}, tree(t, dir))
}

// An artifact has the name that code in the sandbox chose. Other programs must not load it, unless the user names the file.
func TestArtifactIsNotSavedUnderANameOfTheSandbox(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/link" {
			http.Redirect(w, r, "/link", http.StatusFound)
			return
		}
		w.Header().Set("Content-Disposition", `attachment; filename="Makefile"`)
		_, _ = io.WriteString(w, "evil")
	}))
	defer server.Close()
	dir := t.TempDir()
	if got := call(t, server.URL, "artifact", "get", "art_1", dir); !strings.Contains(got, "not saved: Makefile (make runs it)") || !strings.HasSuffix(got, "exit 1") {
		t.Errorf("%s", got)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
	named := filepath.Join(dir, "Makefile")
	if got := call(t, server.URL, "artifact", "get", "art_1", named); !strings.HasSuffix(got, "exit 0") {
		t.Errorf("%s", got)
	}
	if text, err := os.ReadFile(named); err != nil || string(text) != "evil" {
		t.Errorf("%q, %v", text, err)
	}
	named = filepath.Join(dir, "output")
	if got := call(t, server.URL, "artifact", "get", "art_1", "-o", named); !strings.HasSuffix(got, "exit 0") {
		t.Errorf("%s", got)
	}
	if text, err := os.ReadFile(named); err != nil || string(text) != "evil" {
		t.Errorf("with -o: %q, %v", text, err)
	}
	if got := call(t, server.URL, "artifact", "get", "art_1", dir, "-o", named); !strings.Contains(got, "DEST is given twice") || !strings.HasSuffix(got, "exit 2") {
		t.Errorf("%s", got)
	}
}

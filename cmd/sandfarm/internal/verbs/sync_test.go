package verbs_test

import (
	"archive/tar"
	"bytes"
	"cmp"
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
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// syncFarm is a farm with one sandbox, whose files are in memory.
type syncFarm struct {
	*httptest.Server
	mu     sync.Mutex
	files  map[string]string
	count  int
	claims int64 // size that each file is said to have; 0: its own
	etags  map[string]string
}

func (f *syncFarm) put(name, content string) {
	f.count++
	f.files[name], f.etags[name] = content, fmt.Sprint(f.count)
}

func newSyncFarm(t *testing.T) *syncFarm {
	t.Helper()
	f := &syncFarm{files: map[string]string{}, etags: map[string]string{}}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.Close)
	return f
}

func (f *syncFarm) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const top = "/workspace/p"
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/v1/sandboxes/sbx_1/fs"), top+"/")
	entry := func(name string) wire.FSEntry {
		return wire.FSEntry{Path: top + "/" + name, Type: "file", Size: cmp.Or(f.claims, int64(len(f.files[name]))), ETag: f.etags[name]}
	}
	body, _ := io.ReadAll(r.Body)
	switch {
	case r.Method == http.MethodGet && name == "":
		var list wire.FSListing
		for _, name := range slices.Sorted(maps.Keys(f.files)) {
			list.Items = append(list.Items, entry(name))
		}
		_ = json.NewEncoder(w).Encode(list)
	case r.Method == http.MethodPost:
		for read := tar.NewReader(bytes.NewReader(body)); ; {
			h, err := read.Next()
			if err != nil {
				break
			}
			content, _ := io.ReadAll(read)
			f.put(h.Name, string(content))
		}
		_, _ = io.WriteString(w, "{}")
	case r.Method == http.MethodGet:
		w.Header().Set("ETag", `"`+f.etags[name]+`"`)
		_, _ = io.WriteString(w, f.files[name])
	case r.Method == http.MethodDelete:
		delete(f.files, name)
		w.WriteHeader(http.StatusNoContent)
	case name == "" || strings.HasSuffix(r.URL.Path, "/"): // mkdir
		_, _ = io.WriteString(w, "{}")
	default:
		_, there := f.files[name]
		if match := strings.Trim(r.Header.Get("If-Match"), `"`); match != "" && match != f.etags[name] || r.Header.Get("If-None-Match") == "*" && there {
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		f.put(name, string(body))
		_ = json.NewEncoder(w).Encode(entry(name))
	}
}

// A sandbox claims files of any size, which cost it nothing while they are sparse.
func TestSyncTakesNoMoreThanCp(t *testing.T) {
	t.Parallel()
	f := newSyncFarm(t)
	f.put("a", "x")
	f.put("b", "x")
	f.claims = 40 << 30
	dir := t.TempDir()
	got := call(t, f.URL, "sync", dir, "sbx_1:p", "--once", "--memory", t.TempDir())
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 || !strings.Contains(got, "more than 64.0 GiB") {
		t.Errorf("%v, %v: %s", left, err, got)
	}
}

func TestSyncBothWays(t *testing.T) {
	t.Parallel()
	f, dir, cache := newSyncFarm(t), t.TempDir(), t.TempDir()
	write := func(name, content string) {
		testbed.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		testbed.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	read := func(name string) string {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "none"
		}
		return string(raw)
	}
	run := func(args ...string) string {
		return call(t, f.URL, append([]string{"sync", dir, "sbx_1:p", "--once", "--memory", cache}, args...)...)
	}
	for n := range 20 { // as a tar
		write(fmt.Sprintf("many/%d", n), "first")
	}
	write(".git/config", "mine")
	write("Makefile", "mine")
	write("same", "equal")
	testbed.Must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	f.put("there", "t")
	f.put("same", "equal")
	f.put("../escape", "x")
	f.put("sub/conftest.py", "x")
	got := run()
	if again := run(); strings.Contains(again, "nothing to copy") { // files that cannot be copied are left
		t.Error(again)
	}
	if f.files["many/7"] != "first" || f.files["Makefile"] != "mine" || f.files[".git/config"] != "" || f.files["link"] != "" || read("there") != "t" || read("sub/conftest.py") != "none" {
		t.Errorf("%v\n%s", f.files, got)
	}
	for _, want := range []string{"pytest runs it", "left out", "exit 1"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not said: %s", want, got)
		}
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(dir), "escape")); err == nil {
		t.Error("a file escaped")
	}
	delete(f.files, "../escape")
	delete(f.files, "sub/conftest.py")

	// What changed on one side is copied; what changed on both is a conflict, and stays as it is.
	write("many/1", "changed here")
	f.put("many/2", "changed there")
	write("many/3", "here")
	f.put("many/3", "there")
	testbed.Must(t, os.Remove(filepath.Join(dir, "many/4")))
	delete(f.files, "many/5")
	write("many/6", "same change")
	f.put("many/6", "same change")
	got = run()
	if f.files["many/1"] != "changed here" || read("many/2") != "changed there" || read("many/3") != "here" || f.files["many/3"] != "there" ||
		f.files["many/4"] != "first" || read("many/5") != "first" || !strings.Contains(got, "conflict: many/3") {
		t.Errorf("%v\n%s", f.files, got)
	}
	for text, want := range map[string]bool{
		"many/6": false,
		"many/4 was deleted here and is still there (--delete deletes it)\n": true,
		"many/5 was deleted there and is still here (--delete deletes it)\n": true,
	} {
		if strings.Contains(got, text) != want {
			t.Errorf("%q said is not %v: %s", text, want, got)
		}
	}
	testbed.Must(t, os.Remove(filepath.Join(dir, "many/3")))
	if got = run("--delete"); f.files["many/4"] != "" || read("many/5") != "none" || read("many/3") != "there" || !strings.HasSuffix(got, "exit 0") {
		t.Errorf("%v\n%s", f.files, got)
	}

	if got = run("--delete"); got != "nothing to copy: both sides are the same\nexit 0" {
		t.Error(got)
	}

	// What the sandbox may not write here it may not delete here.
	delete(f.files, "Makefile")
	if got = run("--delete"); read("Makefile") != "mine" || !strings.Contains(got, "not deleted here: Makefile (make runs it)") {
		t.Errorf("%s", got)
	}
	if got = run("--delete", "--trust"); read("Makefile") != "none" {
		t.Errorf("%s", got)
	}

	// A side that is empty all at once deletes nothing.
	clear(f.files)
	if got = run("--delete"); read("many/1") != "changed here" || !strings.Contains(got, "nothing was deleted") {
		t.Errorf("%s", got)
	}
}

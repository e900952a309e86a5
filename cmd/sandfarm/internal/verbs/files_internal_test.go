package verbs

import (
	"archive/tar"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestLocalNames(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, linux, windows string }{
		{"a/b.txt", "a/b.txt", "a/b.txt"},
		{"/workspace/a.txt", "a.txt", "a.txt"},
		{"./a//b.txt", "a/b.txt", "a/b.txt"},
		{`a\b.txt`, `a\b.txt`, "a_b.txt"},
		{`..\..\evil.txt`, `..\..\evil.txt`, ".._.._evil.txt"},
		{`C:\evil.txt`, `C:\evil.txt`, "C__evil.txt"},
		{"a:b.txt", "a:b.txt", "a_b.txt"},
		{".git::$INDEX_ALLOCATION/config", ".git::$INDEX_ALLOCATION/config", ".git__$INDEX_ALLOCATION/config"},
		{`what?"<*>|.txt`, `what?"<*>|.txt`, "what______.txt"},
		{"CON", "CON", "_CON"},
		{"out/nul.txt", "out/nul.txt", "out/_nul.txt"},
		{"Com1 .tar.gz", "Com1 .tar.gz", "_Com1 .tar.gz"},
		{"console.txt", "console.txt", "console.txt"},
		{"Makefile.", "Makefile.", "Makefile_"},
		{"dir. /a", "dir. /a", "dir__/a"},
		{"GIT~1/config", "GIT~1/config", "GIT_1/config"},
		{"notes~.txt", "notes~.txt", "notes~.txt"},
		{"a\x1b[31m\n", "a_[31m_", "a_[31m_"},
		{"../a", "", ""},
		{"a/../../b", "", ""},
		{"/etc/passwd", "", ""},
		{"a/", "", ""},
		{".", "", ""},
		{"", "", ""},
	}
	for _, test := range tests {
		for system, want := range map[string]string{"linux": test.linux, "windows": test.windows} {
			got, err := localName(test.name, system)
			if got != want || (err == nil) != (want != "") {
				t.Errorf("%s: localName(%q) = %q, %v; want %q", system, test.name, got, err, want)
			}
		}
	}
}

// The Python SDK has a list of its own, which must name the same files.
func TestThePythonSDKRefusesTheSameNames(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../../../../sdk/python/src/sandfarm/_autoload.py")
	testbed.Must(t, err)
	got, want := map[string]string{}, map[string]string{}
	for _, entry := range regexp.MustCompile(`(?m)^    "(.+)": "(.+)",$`).FindAllStringSubmatch(string(source), -1) {
		got[entry[1]] = entry[2]
	}
	for _, file := range loadedBy {
		want[file.pattern] = file.who
	}
	for _, module := range importedAtStart {
		want[module+"*"] = "Python runs it at every start"
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the names in sdk/python differ (-here +there):\n%s", diff)
	}
}

// A tar of a few KB can have any number of sparse files, each of the size that one copy takes.
func TestFilesOfACopyAreBoundedTogether(t *testing.T) {
	t.Parallel()
	for bytes, ok := range map[int64]bool{maxCopyBytes - 4: true, maxCopyBytes - 3: true, maxCopyBytes - 2: false} {
		root, err := os.OpenRoot(t.TempDir())
		testbed.Must(t, err)
		t.Cleanup(func() { _ = root.Close() })
		saving := treeSaver{
			saver:    &saver{root: root, say: func(string, ...any) {}, autoload: NewAutoload("linux", "")},
			progress: &progress{out: io.Discard}, bytes: bytes,
		}
		err = saving.member(&tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 3}, strings.NewReader("abc"))
		if _, saved := root.Stat("a"); (err == nil) != ok || (saved == nil) != ok {
			t.Errorf("3 bytes behind %d: %v, %v", bytes, err, saved)
		}
	}
}

// A sparse file has any size: one that is too large fills no disk first.
func TestFileThatSaysThatItIsTooLargeIsNotCopied(t *testing.T) {
	t.Parallel()
	for bytes, ok := range map[int64]bool{-1: true, maxCopyBytes - 1: true, maxCopyBytes: true, maxCopyBytes + 1: false} {
		var to strings.Builder
		_, err := copyBounded(&to, &client.Content{ReadCloser: io.NopCloser(strings.NewReader("abc")), Size: bytes})
		if (err == nil) != ok || (to.String() == "abc") != ok {
			t.Errorf("a file of %d bytes: %q, %v", bytes, to.String(), err)
		}
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	was := pair{"h1", "t1"}
	for name, c := range map[string]struct {
		here, there version
		known       bool
		want, del   step // without and with deletes
	}{
		"new here":                    {"h1", "", false, push, push},
		"new there":                   {"", "t1", false, pull, pull},
		"new on both sides":           {"h1", "t1", false, compare, compare},
		"unchanged":                   {"h1", "t1", true, leave, leave},
		"changed here":                {"h2", "t1", true, push, push},
		"changed there":               {"h1", "t2", true, pull, pull},
		"changed on both sides":       {"h2", "t2", true, compare, compare},
		"deleted here":                {"", "t1", true, keepThere, dropThere},
		"deleted there":               {"h1", "", true, keepHere, dropHere},
		"deleted here, changed there": {"", "t2", true, pull, pull},
		"deleted there, changed here": {"h2", "", true, push, push},
		"deleted on both sides":       {"", "", true, leave, leave},
	} {
		for deletes, want := range map[bool]step{false: c.want, true: c.del} {
			if got := plan(c.here, c.there, was, c.known, deletes); got != want {
				t.Errorf("%s, deletes %v: %d, want %d", name, deletes, got, want)
			}
		}
	}
}

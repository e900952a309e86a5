package verbs

import (
	"archive/tar"
	"io"
	"os"
	"strings"
	"testing"
)

// A tar of a few KB can have any number of sparse files, each of the size that one copy takes.
func TestFilesOfACopyAreBoundedTogether(t *testing.T) {
	t.Parallel()
	for bytes, ok := range map[int64]bool{maxCopyBytes - 4: true, maxCopyBytes - 3: true, maxCopyBytes - 2: false} {
		root, err := os.OpenRoot(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
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

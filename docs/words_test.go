package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// notWords are phrases that CONTRIBUTING.md's rules of writing replace by plain ones.
var notWords = []string{
	"is gone on with", "are gone on with", "not over then", "in the hands of none", "what is none", "what cannot be had", "nobody can say",
	"is nobody's", "goes back as it was", "the sandboxes are told", "an artifact has the whole.",
}

// TestPlainWords looks for these phrases in pages, and in Go files other than tests.
func TestPlainWords(t *testing.T) {
	t.Parallel()
	checked := 0
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if path != ".." && (strings.HasPrefix(name, ".") || slices.Contains([]string{"node_modules", "dist", "bin", "testdata"}, name)) {
				return filepath.SkipDir
			}
			return nil
		}
		if ext := filepath.Ext(name); ext != ".md" && (ext != ".go" || strings.HasSuffix(name, "_test.go")) || name == "CONTRIBUTING.md" || name == "CHANGELOG.md" {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		checked++
		text := strings.Join(strings.Fields(strings.ReplaceAll(string(content), "\n// ", "\n")), " ")
		for _, phrase := range notWords {
			if strings.Contains(text, phrase) {
				t.Errorf("%s: write %q in plain words: see Writing in CONTRIBUTING.md", path, phrase)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 500 {
		t.Errorf("%d files were checked", checked)
	}
}

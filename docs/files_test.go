package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// named matches a link whose text is the path of what it leads to.
var named = regexp.MustCompile("\\[`([^`]+)`\\]\\(\\.\\./([^)]+)\\)")

// TestLifeOfAJobNamesItsFiles checks that each step names files that exist, and that each link leads to the file that it names.
func TestLifeOfAJobNamesItsFiles(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("life-of-a-job.md")
	if err != nil {
		t.Fatal(err)
	}
	steps := 0
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| |") && !strings.Contains(line, "**") || strings.HasPrefix(line, "| what dies") {
			continue
		}
		steps++
		files := named.FindAllStringSubmatch(line, -1)
		if len(files) == 0 {
			t.Errorf("no file is named in %q", line)
		}
		for _, f := range files {
			if f[1] != f[2] {
				t.Errorf("%s leads to %s", f[1], f[2])
			}
			if _, err := os.Stat(filepath.Join("..", f[1])); err != nil {
				t.Errorf("%s: %v", f[1], err)
			}
		}
	}
	if steps < 19 {
		t.Errorf("%d steps are checked", steps)
	}
}

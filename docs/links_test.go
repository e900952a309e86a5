// Package docs_test checks the documentation itself.
package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```$")
	span    = regexp.MustCompile("`[^`\n]*`")
	symbols = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestLinks follows every relative link of every page: to a file or folder of the tree, and to a heading of it.
func TestLinks(t *testing.T) {
	t.Parallel()
	root := ".."
	checked := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "dist" || name == "bin") {
			return filepath.SkipDir
		}
		if filepath.Ext(name) != ".md" || entry.IsDir() {
			return nil
		}
		page, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text := span.ReplaceAllString(fence.ReplaceAllString(string(page), ""), "")
		for _, found := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(found[1], "://") || strings.HasPrefix(found[1], "mailto:") {
				continue
			}
			checked++
			target, anchor, _ := strings.Cut(found[1], "#")
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: the link %s leads nowhere", path, found[1])
				continue
			}
			if anchor != "" && filepath.Ext(file) == ".md" && !hasAnchor(t, file, anchor) {
				t.Errorf("%s: %s has no heading for #%s", path, file, anchor)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 50 {
		t.Errorf("only %d links were found: the pattern is wrong", checked)
	}
}

// hasAnchor reports whether a page has a heading whose anchor, as GitHub makes them, is the one given.
func hasAnchor(t *testing.T, file, anchor string) bool {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range heading.FindAllStringSubmatch(fence.ReplaceAllString(string(page), ""), -1) {
		if strings.ReplaceAll(symbols.ReplaceAllString(strings.ToLower(found[1]), ""), " ", "-") == anchor {
			return true
		}
	}
	return false
}

package main_test // the checks of the pages

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/testbed"
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
	checked := 0
	for page, targets := range pages(t) {
		for _, to := range targets {
			checked++
			target, anchor, _ := strings.Cut(to, "#")
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(filepath.Join("..", file)); err != nil {
				t.Errorf("%s: the link %s leads nowhere", page, to)
				continue
			}
			if anchor != "" && filepath.Ext(file) == ".md" && !hasAnchor(t, filepath.Join("..", file), anchor) {
				t.Errorf("%s: %s has no heading for #%s", page, file, anchor)
			}
		}
	}
	if checked < 40 {
		t.Errorf("only %d links were found: the pattern is wrong", checked)
	}
}

// TestIndexLeadsToEveryPage checks that a reader who begins at the index finds every page of the tree.
func TestIndexLeadsToEveryPage(t *testing.T) {
	t.Parallel()
	all := pages(t)
	seen := map[string]bool{}
	next := []string{"docs/README.md"}
	for len(next) > 0 {
		page := next[0]
		next = next[1:]
		if targets, ok := all[page]; ok && !seen[page] {
			seen[page] = true
			for _, to := range targets {
				target, _, _ := strings.Cut(to, "#")
				next = append(next, filepath.Join(filepath.Dir(page), target))
			}
		}
	}
	for page := range all {
		if !seen[page] {
			t.Errorf("no way leads from docs/README.md to %s: add it there, or to the page of its subject", page)
		}
	}
}

// pages reads the relative links of every page of the tree, by the page's path in the tree.
func pages(t *testing.T) map[string][]string {
	t.Helper()
	root := ".."
	found := map[string][]string{}
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
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		page, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		found[page] = nil
		text := span.ReplaceAllString(fence.ReplaceAllString(string(content), ""), "")
		for _, one := range link.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(one[1], "://") && !strings.HasPrefix(one[1], "mailto:") {
				found[page] = append(found[page], one[1])
			}
		}
		return nil
	})
	testbed.Must(t, err)
	return found
}

// hasAnchor reports whether a page has a heading whose anchor, as GitHub makes them, is the one given.
func hasAnchor(t *testing.T, file, anchor string) bool {
	t.Helper()
	page, err := os.ReadFile(file)
	testbed.Must(t, err)
	for _, found := range heading.FindAllStringSubmatch(fence.ReplaceAllString(string(page), ""), -1) {
		if strings.ReplaceAll(symbols.ReplaceAllString(strings.ToLower(found[1]), ""), " ", "-") == anchor {
			return true
		}
	}
	return false
}

// named matches a link whose text is the path of what it leads to.
var named = regexp.MustCompile("\\[`([^`]+)`\\]\\(\\.\\./([^)]+)\\)")

// TestLifeOfAJobNamesItsFiles checks that each step names files that exist, and that each link leads to the file that it names.
func TestLifeOfAJobNamesItsFiles(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/life-of-a-job.md")
	testbed.Must(t, err)
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
			testbed.Diff(t, "target", f[2], f[1])
			if _, err := os.Stat(filepath.Join("..", f[1])); err != nil {
				t.Errorf("%s: %v", f[1], err)
			}
		}
	}
	if steps < 19 {
		t.Errorf("%d steps are checked", steps)
	}
}

// file matches a file of code in a comment: its name, or its path from the root or from the package.
var file = regexp.MustCompile(`[\w./-]*\w\.(?:go|lua|py)\b`)

// TestCommentsOfPackagesNameFilesThatExist checks the files that the comment of a package names.
func TestCommentsOfPackagesNameFilesThatExist(t *testing.T) {
	t.Parallel()
	checked := 0
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git" || d.Name() == ".sandfarm") {
			return filepath.SkipDir
		}
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		comment, _, _ := strings.Cut("\n"+string(text), "\npackage ")
		for _, name := range file.FindAllString(comment, -1) {
			checked++
			_, here := os.Stat(filepath.Join(filepath.Dir(path), name))
			_, root := os.Stat(filepath.Join("..", name))
			if here != nil && root != nil {
				t.Errorf("%s names %s, which is neither beside it nor a path from the root", path, name)
			}
		}
		return err
	})
	if err != nil || checked < 40 {
		t.Errorf("%d names are checked: %v", checked, err)
	}
}

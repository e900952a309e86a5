package files

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// pageEntries bounds the entries of a page.
	pageEntries = 100_000
	// pageBytes bounds the paths of a page.
	pageBytes = 8 << 20
	// openLevels bounds the directories that a walk keeps open, one per level. Directories far above the deepest one are closed
	// and reopened when the walk returns to them.
	openLevels = 64
)

// List lists the entries under a path, in the order of a walk: by name in each directory, a directory before its contents. Entries
// whose path is longer than farm.MaxPathBytes are left out and counted: no call could use them.
func (w *Workspace) List(p string, q agent.ListQuery) (agent.Listing, error) {
	list := agent.Listing{Entries: []farm.FileEntry{}, After: q.After}
	p, err := cleanPath(p)
	if err != nil {
		return list, err
	}
	info, err := w.root.Stat(p)
	if err != nil {
		return list, Problem(err, p)
	}
	if !info.IsDir() {
		list.Entries = append(list.Entries, entry(p, info))
		return list, nil
	}
	limit, size := q.Limit, 0
	if limit <= 0 || limit > pageEntries {
		limit = pageEntries
	}
	err = w.walk(p, func(name string, info fs.FileInfo) error {
		full := path.Join(p, name)
		switch {
		case q.After != "" && !isAfter(full, q.After): // on an earlier page
			return skipIf(info.IsDir() && (!q.Recursive || full != q.After && !strings.HasPrefix(q.After, full+"/")))
		case len(full) > farm.MaxPathBytes:
			list.TooLong++
			return skipIf(info.IsDir())
		}
		if size += len(full); len(list.Entries) == limit || size > pageBytes {
			list.More = true
			return fs.SkipAll
		}
		list.Entries = append(list.Entries, entry(full, info))
		return skipIf(info.IsDir() && !q.Recursive)
	})
	return list, Problem(err, p)
}

// skipIf is fs.SkipDir or nil.
func skipIf(skip bool) error {
	if skip {
		return fs.SkipDir
	}
	return nil
}

// isAfter reports whether a path comes after another one in a walk.
func isAfter(p, other string) bool {
	return slices.Compare(strings.Split(p, "/"), strings.Split(other, "/")) > 0
}

// walk calls do for everything under a directory, by name in each directory, with paths relative to it. do may return fs.SkipDir
// for a directory, and fs.SkipAll. walk does not follow symbolic links. It skips entries that vanish or cannot be read, and
// names that are not UTF-8.
func (w *Workspace) walk(p string, do func(name string, info fs.FileInfo) error) error {
	dir, err := w.root.OpenRoot(p)
	if err != nil {
		return err
	}
	err = (&walk{root: w.root, base: p, do: do}).visit(dir, "")
	if err == fs.SkipAll { //nolint:errorlint // as fs.WalkDir does
		return nil
	}
	return err
}

// walk is one walk. Each directory is opened relative to its parent, so that the cost of a level does not grow with its depth.
type walk struct {
	root *os.Root
	base string
	do   func(name string, info fs.FileInfo) error
	path []*os.Root // the directories from base to the one that is being visited; nil: closed for now
}

// visit visits the contents of a directory and closes it. below is empty, or the directory's path below base with a slash.
func (v *walk) visit(dir *os.Root, below string) error {
	level := len(v.path)
	v.path = append(v.path, dir)
	defer func() {
		v.closeLevel(level)
		v.path = v.path[:level]
	}()
	if level >= openLevels {
		v.closeLevel(level - openLevels)
	}
	for _, name := range namesIn(dir) {
		if !utf8.ValidString(name) || (v.base == "." && below+name == stagingDir) {
			continue
		}
		if v.path[level] == nil {
			if err := v.reopen(strings.Split(below, "/")[:level]); err != nil {
				return nil //nolint:nilerr // it vanished
			}
		}
		info, err := v.path[level].Lstat(name)
		if err != nil {
			continue // it vanished
		}
		if err := v.do(below+name, info); err != nil {
			if err == fs.SkipDir && info.IsDir() { //nolint:errorlint // as fs.WalkDir does
				continue
			}
			return err
		}
		if !info.IsDir() {
			continue
		}
		child, err := v.path[level].OpenRoot(name)
		if err != nil {
			continue // it vanished, or its permissions forbid it
		}
		if err := v.visit(child, below+name+"/"); err != nil {
			return err
		}
	}
	return nil
}

// reopen reopens the current directory, whose names below base are given, and the directories above it that the walk visits next.
func (v *walk) reopen(names []string) error {
	dir, err := v.root.OpenRoot(v.base)
	for level := 0; err == nil; level++ {
		v.closeLevel(level)
		v.path[level] = dir
		if level == len(names) {
			return nil
		}
		dir, err = dir.OpenRoot(names[level])
		if level <= len(names)-openLevels {
			v.closeLevel(level)
		}
	}
	return err
}

// closeLevel closes a directory of the path.
func (v *walk) closeLevel(level int) {
	if v.path[level] != nil {
		_ = v.path[level].Close()
		v.path[level] = nil
	}
}

// namesIn returns the sorted names in a directory, as far as they can be read.
func namesIn(dir *os.Root) []string {
	f, err := dir.Open(".")
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	names, _ := f.Readdirnames(-1)
	slices.Sort(names)
	return names
}

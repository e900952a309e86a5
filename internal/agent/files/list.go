package files

import (
	"io/fs"
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
	top, err := w.top()
	if err != nil {
		return list, err
	}
	defer top.close()
	of, err := top.stat(p, true)
	if err != nil {
		return list, Problem(err, p)
	}
	if !of.isDir() {
		list.Entries = append(list.Entries, entry(p, of))
		return list, nil
	}
	limit, size := q.Limit, 0
	if limit <= 0 || limit > pageEntries {
		limit = pageEntries
	}
	err = top.walk(p, func(name string, of info) error {
		full := path.Join(p, name)
		switch {
		case !utf8.ValidString(name):
			return skipIf(of.isDir())
		case q.After != "" && !isAfter(full, q.After): // on an earlier page
			return skipIf(of.isDir() && (!q.Recursive || full != q.After && !strings.HasPrefix(q.After, full+"/")))
		case len(full) > farm.MaxPathBytes:
			list.TooLong++
			return skipIf(of.isDir())
		}
		if size += len(full); len(list.Entries) == limit || size > pageBytes {
			list.More = true
			return fs.SkipAll
		}
		list.Entries = append(list.Entries, entry(full, of))
		return skipIf(of.isDir() && !q.Recursive)
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
// for a directory, and fs.SkipAll. walk does not follow symbolic links. It skips entries that vanish or cannot be read, and the staging
// directory unless it begins there.
func (t tree) walk(p string, do func(name string, of info) error) error {
	dir, err := t.open(p)
	if err != nil {
		return err
	}
	err = (&walk{top: t, base: p, do: do}).visit(dir, "")
	if err == fs.SkipAll { //nolint:errorlint // as fs.WalkDir does
		return nil
	}
	return err
}

// closedTree stands for a directory that is not open.
var closedTree = tree{-1}

// walk is one walk. Each directory is opened relative to its parent, so that the cost of a level does not grow with its depth.
type walk struct {
	top  tree
	base string
	do   func(name string, of info) error
	path []tree // the directories from base to the one that is being visited; closedTree: closed for now
}

// visit visits the contents of a directory and closes it. below is empty, or the directory's path below base with a slash.
func (v *walk) visit(dir tree, below string) error {
	level := len(v.path)
	v.path = append(v.path, dir)
	defer func() {
		v.closeLevel(level)
		v.path = v.path[:level]
	}()
	if level >= openLevels {
		v.closeLevel(level - openLevels)
	}
	for _, name := range dir.names() {
		if v.base == "." && below+name == stagingDir {
			continue
		}
		if v.path[level] == closedTree {
			if err := v.reopen(strings.Split(below, "/")[:level]); err != nil {
				return nil // it vanished
			}
		}
		of, err := v.path[level].lstat(name)
		if err != nil {
			continue // it vanished
		}
		if err := v.do(below+name, of); err != nil {
			if err == fs.SkipDir && of.isDir() { //nolint:errorlint // as fs.WalkDir does
				continue
			}
			return err
		}
		if !of.isDir() {
			continue
		}
		child, err := v.path[level].sub(name)
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
	dir, err := v.top.open(v.base)
	for level := 0; err == nil; level++ {
		v.closeLevel(level)
		v.path[level] = dir
		if level == len(names) {
			return nil
		}
		dir, err = dir.sub(names[level])
		if level <= len(names)-openLevels {
			v.closeLevel(level)
		}
	}
	return err
}

// closeLevel closes a directory of the path.
func (v *walk) closeLevel(level int) {
	if v.path[level] != closedTree {
		v.path[level].close()
		v.path[level] = closedTree
	}
}

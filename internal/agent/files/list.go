package files

import (
	"errors"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// openLevels bounds the directories that a walk keeps open, one per level. Directories far above the deepest one are closed
	// and reopened when the walk returns to them. MaxRequests walks at once stay within the 1024 descriptors of a process in a sandbox.
	openLevels = 12
	// pageEntries bounds the entries of a page of the workspace.
	pageEntries = 100_000
	// fsPageBytes bounds the paths of a page of files anywhere, with what else has no fixed size.
	fsPageBytes = 4 << 20
)

// found is what a walk meets. dir is open until the walk goes on.
type found struct {
	path string // below the beginning of the walk
	dir  tree
	name string // in dir
	info
}

// walk calls do for everything under a directory, by name in each directory, with paths relative to it. do may return fs.SkipDir
// for a directory, and fs.SkipAll. walk does not follow symbolic links. What cannot be described, and after its own call a directory that
// cannot be read, is told with an error; do goes on by returning nil. An error of the first directory ends the walk. Staging directories are not met
// unless all is set.
func walk(r root, p string, all bool, do func(f found, err error) error) error {
	dir, err := r.dir(p)
	if err != nil {
		return err
	}
	err = (&walker{root: r, base: p, all: all, do: do}).visit(dir, "")
	if err == fs.SkipAll { //nolint:errorlint // as fs.WalkDir does
		return nil
	}
	return err
}

// walker is one walk. Each directory is opened relative to its parent, so that the cost of a level does not grow with its depth.
type walker struct {
	root root
	base string
	all  bool
	do   func(f found, err error) error
	path []tree // the directories from base to the one that is being visited; closedTree: closed for now
}

// closedTree stands for a directory that is not open.
var closedTree = tree{-1}

// visit visits the contents of a directory and closes it. below is empty, or the directory's path below base with a slash.
func (v *walker) visit(dir tree, below string) error {
	level := len(v.path)
	v.path = append(v.path, dir)
	defer func() {
		v.closeLevel(level)
		v.path = v.path[:level]
	}()
	if level >= openLevels {
		v.closeLevel(level - openLevels)
	}
	names, err := dir.names()
	if err != nil && level == 0 {
		return err
	}
	if err != nil {
		if err := v.do(found{path: strings.TrimSuffix(below, "/")}, err); err != nil && err != fs.SkipDir { //nolint:errorlint // as fs.WalkDir does
			return err
		}
	}
	for _, name := range names {
		if name == stagingDir && !v.all {
			continue
		}
		if v.path[level] == closedTree {
			if err := v.reopen(strings.Split(below, "/")[:level]); err != nil {
				return nil // it vanished
			}
		}
		f := found{path: below + name, dir: v.path[level], name: name}
		var err error
		if f.info, err = f.dir.lstat(name); err != nil {
			if err := v.do(f, err); err != nil {
				return err
			}
			continue
		}
		if err := v.do(f, nil); err != nil {
			if err == fs.SkipDir && f.isDir() { //nolint:errorlint // as fs.WalkDir does
				continue
			}
			return err
		}
		if !f.isDir() {
			continue
		}
		child, err := f.dir.sub(name)
		if err != nil {
			if err := v.do(f, err); err != nil && err != fs.SkipDir { //nolint:errorlint // as fs.WalkDir does
				return err
			}
			continue
		}
		if err := v.visit(child, f.path+"/"); err != nil {
			return err
		}
	}
	return nil
}

// reopen reopens the current directory, whose names below base are given, and the directories above it that the walk visits next.
func (v *walker) reopen(names []string) error {
	dir, err := v.root.dir(v.base)
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
func (v *walker) closeLevel(level int) {
	if v.path[level] != closedTree {
		v.path[level].close()
		v.path[level] = closedTree
	}
}

// skipIf is fs.SkipDir or nil.
func skipIf(skip bool) error {
	if skip {
		return fs.SkipDir
	}
	return nil
}

// pages is a walk that goes on after the last entry of the page before. What callers cannot name, since its path is not UTF-8 or too long, is
// left out, with all below it.
type pages struct {
	root  root
	base  string       // as callers name it
	after string       // the last entry of the page before, as callers name it; empty: none
	depth int          // levels; 0: all
	all   bool         // staging directories, too
	stop  func() error // asked for each entry; nil: nothing stops it

	leftOut int // before the last entry of this page
	passed  int // behind it: the next page meets it again
}

// each calls do for each entry of the page, with its path as callers name it. do calls took when it has taken one, and returns fs.SkipAll
// when the page is full; there is more then. It does not go into file systems that are the kernel's view of itself, unless it begins in one.
func (g *pages) each(do func(full string, f found) error) (more bool, err error) {
	_, free := g.root.(anywhere)
	inside := !free || isVirtual(g.base)
	err = walk(g.root, g.base, g.all, func(f found, err error) error {
		full := path.Join(g.base, f.path)
		if g.stop != nil {
			if err := g.stop(); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
			return err
		case err != nil:
			g.pass(err)
			return nil
		case g.after != "" && !isAfter(full, g.after): // on an earlier page
			if !f.isDir() || full != g.after && !strings.HasPrefix(g.after, full+"/") {
				return skipIf(f.isDir())
			}
		case !utf8.ValidString(f.name) || len(full) > farm.MaxPathBytes:
			g.passed++
			return skipIf(f.isDir())
		default:
			if err := do(full, f); err != nil {
				more = errors.Is(err, fs.SkipAll)
				return err
			}
		}
		return skipIf(f.isDir() && (g.depth > 0 && strings.Count(f.path, "/") == g.depth-1 || !inside && isVirtual(full)))
	})
	if err == nil && !more {
		g.took()
	}
	return more, err
}

// took says that the page has another entry.
func (g *pages) took() { g.leftOut, g.passed = g.leftOut+g.passed, 0 }

// pass counts what is left out for an error. What has vanished meanwhile is not missing.
func (g *pages) pass(err error) {
	if !errors.Is(err, unix.ENOENT) {
		g.passed++
	}
}

// List lists the entries under a path, in the order of a walk: by name in each directory, a directory before its contents. Entries
// whose path is longer than farm.MaxPathBytes, or not UTF-8, are left out and counted: no call could use them.
func (w *Workspace) List(p string, q agent.ListQuery) (agent.Listing, error) {
	list := agent.Listing{Entries: []farm.FileEntry{}, After: q.After}
	err := w.at(p, func(top tree, p string) error {
		of, err := stat(top, p, true)
		if err != nil {
			return err
		}
		if !of.isDir() {
			list.Entries = append(list.Entries, of.workEntry(p))
			return nil
		}
		limit, size := q.Limit, 0
		if limit <= 0 || limit > pageEntries {
			limit = pageEntries
		}
		g := pages{root: top, base: p, after: q.After, depth: 1}
		if q.Recursive {
			g.depth = 0
		}
		list.More, err = g.each(func(full string, f found) error {
			if size += farm.Quoted(full); len(list.Entries) == limit || size > agent.PageBytes {
				return fs.SkipAll
			}
			g.took()
			list.Entries = append(list.Entries, f.workEntry(full))
			return nil
		})
		list.TooLong = g.leftOut
		return err
	})
	return list, err
}

// list lists what is under a path, down to a depth; depth 0 is the path itself.
func (s *Server) list(_ http.ResponseWriter, r *http.Request) (any, error) {
	p, err := pathOf(r, "path")
	if err != nil {
		return nil, err
	}
	depth, err := number(r, "depth", 1)
	if err != nil {
		return nil, err
	}
	bound, err := number(r, "limit", farm.MaxFSEntries)
	if err != nil {
		return nil, err
	}
	list := farm.FSListing{Entries: []farm.FSEntry{}}
	if depth == 0 {
		e, err := entryAt(p, nil)
		list.Entries = append(list.Entries, e)
		return list, err
	}
	limit, size, pairs := int(min(bound, farm.MaxFSEntries)), 0, 0                                                                                      //nolint:gosec // bounded
	g := pages{root: anywhere{}, base: p, after: r.URL.Query().Get("after"), depth: int(min(depth, farm.MaxFSDepth)), all: true, stop: r.Context().Err} //nolint:gosec // bounded
	list.More, err = g.each(func(full string, f found) error {
		e := describe(f.dir, f.name, full, f.info)
		size += len(full) + len(e.Target)
		for key, value := range e.Metadata {
			size += len(key) + len(value)
		}
		pairs += len(e.Metadata)
		if len(list.Entries) == limit || size > fsPageBytes || pairs > farm.PagePairs*limit+farm.MaxMetadata {
			return fs.SkipAll
		}
		g.took()
		list.Entries = append(list.Entries, e)
		return nil
	})
	list.LeftOut = g.leftOut
	return list, Problem(err, p)
}

// isAfter reports whether a path comes after another one in a walk.
func isAfter(p, other string) bool {
	return slices.Compare(strings.Split(p, "/"), strings.Split(other, "/")) > 0
}

// isVirtual reports whether a directory is the kernel's view of itself, which is as good as endless.
func isVirtual(dir string) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false
	}
	switch st.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC:
		return true
	}
	return false
}

// namesIn returns the sorted names in a directory.
func namesIn(p string) ([]string, error) {
	dir, err := openTree(p)
	if err != nil {
		return nil, err
	}
	defer dir.close()
	return dir.names()
}

package files

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// fsPageBytes bounds the paths of a page.
const fsPageBytes = 4 << 20

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
	limit, err := number(r, "limit", farm.MaxFSEntries)
	if err != nil {
		return nil, err
	}
	e, st, err := lstat(p)
	if err != nil {
		return nil, problem(err, p)
	}
	if depth == 0 {
		return farm.FSListing{Entries: []farm.FSEntry{e}}, nil
	}
	if !isDir(&st) {
		if err := unix.Stat(p, &st); err != nil || !isDir(&st) { // a link to a directory is listed
			return nil, problem(unix.ENOTDIR, p)
		}
	}
	l := lister{
		r: r, limit: int(min(limit, farm.MaxFSEntries)), after: r.URL.Query().Get("after"), //nolint:gosec // bounded
		list: farm.FSListing{Entries: []farm.FSEntry{}}, inside: isVirtual(p),
	}
	names, err := namesIn(p)
	if err != nil {
		return nil, problem(err, p)
	}
	if err := l.visit(p, names, int(min(depth, farm.MaxFSDepth))); err != nil && !errors.Is(err, fs.SkipAll) {
		return nil, problem(err, p)
	}
	return l.list, nil
}

type lister struct {
	r      *http.Request
	limit  int
	after  string // the last path of the page before
	size   int
	pairs  int  // of metadata
	inside bool // the listing began in a file system of the kernel
	list   farm.FSListing
}

// visit lists a directory in the order of names; fs.SkipAll at the end of the page. It leaves out what vanishes or cannot be read.
func (l *lister) visit(dir string, names []string, depth int) error {
	if err := l.r.Context().Err(); err != nil {
		return err
	}
	for _, name := range names {
		full := path.Join(dir, name)
		if !utf8.ValidString(name) || len(full) > farm.MaxPathBytes {
			if l.after == "" {
				l.list.LeftOut++
			}
			continue
		}
		seen := l.after != "" && !isAfter(full, l.after) // on an earlier page
		if seen && full != l.after && !strings.HasPrefix(l.after, full+"/") {
			continue
		}
		e, st, err := lstat(full)
		if err != nil {
			continue
		}
		if !seen {
			l.size += len(full) + len(e.Target)
			for key, value := range e.Metadata {
				l.size += len(key) + len(value)
			}
			l.pairs += len(e.Metadata)
			if len(l.list.Entries) == l.limit || l.size > fsPageBytes || l.pairs > farm.PagePairs*l.limit+farm.MaxMetadata {
				l.list.More = true
				return fs.SkipAll
			}
			l.list.Entries = append(l.list.Entries, e)
		}
		if depth == 1 || !isDir(&st) || !l.inside && isVirtual(full) {
			continue
		}
		below, err := namesIn(full)
		if err != nil {
			continue
		}
		if err := l.visit(full, below, depth-1); err != nil {
			return err
		}
	}
	return nil
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
func namesIn(dir string) ([]string, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), dir) //nolint:gosec // a descriptor is small
	defer func() { _ = f.Close() }()
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

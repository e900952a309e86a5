package files

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// errEscapes says that a path leads out of its tree.
var errEscapes = errors.New("the path leads out of its directory")

const (
	// newFile and newDir are the modes of files and directories whose mode nobody names.
	newFile, newDir = 0o644, 0o755
	// maxLinks is how many symbolic links a path may lead through, as in Linux.
	maxLinks = 40
	// maxSteps bounds the directories that the resolution of one path opens: links with ".." begin again at the top.
	maxSteps = 8192
)

// root is where paths begin: a tree, which no path leads out of, or anywhere.
type root interface {
	// parent opens the directory that holds the last element of a path, and returns that element: "." if the path is the root itself. It
	// follows links on the way, and one at the end if follow is set. create creates directories that are missing on the way. The caller
	// closes the directory.
	parent(p string, follow, create bool) (dir tree, name string, err error)
	// dir opens the directory that a path leads to. The caller closes it.
	dir(p string) (tree, error)
	// file opens the regular file that a path leads to. The caller closes it.
	file(p string, flags int, mode uint32) (*os.File, info, error)
}

// anywhere is the root of absolute paths as the kernel resolves them for the process. Its parent returns links of the kernel itself, such as
// /proc/self/cwd, as the path that they show; dir and file follow them as the kernel does.
type anywhere struct{}

func (anywhere) parent(p string, follow, create bool) (tree, string, error) {
	var err error
	if follow {
		if p, err = throughLinks(p); err != nil {
			return tree{}, "", err
		}
	}
	above, name := path.Split(p)
	if name == "" {
		name = "."
	}
	if create {
		if err := os.MkdirAll(above, newDir); err != nil {
			return tree{}, "", err
		}
	}
	dir, err := openTree(above)
	return dir, name, err
}

func (anywhere) dir(p string) (tree, error) { return openTree(p) }

func (anywhere) file(p string, flags int, mode uint32) (*os.File, info, error) {
	fd, err := unix.Open(p, flags|openFlags, mode)
	if err != nil {
		return nil, info{}, &os.PathError{Op: "open", Path: p, Err: err}
	}
	return regular(os.NewFile(uintptr(fd), p)) //nolint:gosec // a descriptor is small
}

// throughLinks follows the links at the end of an absolute path. What the result names is no link, or does not exist.
func throughLinks(p string) (string, error) {
	for range maxLinks {
		target, err := os.Readlink(p)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return p, nil
		case err != nil:
			return p, err
		case filepath.IsAbs(target):
			p = target
		default:
			above, _ := path.Split(p)
			p = above + target // not cleaned: ".." may follow a link
		}
	}
	return p, unix.ELOOP
}

// tree is an open directory, and a root. Paths below it are resolved element by element, and no link or ".." leads out of it, whatever user code
// does at the same time. os.Root promises the same, but opens directories with O_DIRECTORY and O_NOFOLLOW together; gVisor follows
// links then. tree opens each element with O_PATH and O_NOFOLLOW, and looks at what it has opened.
type tree struct {
	fd int
}

// openTree opens a directory as the kernel resolves its path. The caller closes it.
func openTree(dir string) (tree, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return tree{}, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return tree{fd}, nil
}

func (t tree) close() { _ = unix.Close(t.fd) }

func (t tree) dup() (tree, error) {
	fd, err := unix.FcntlInt(uintptr(t.fd), unix.F_DUPFD_CLOEXEC, 0) //nolint:gosec // a descriptor is small
	return tree{fd}, err
}

// The methods from here to empty take one name of the directory itself, not a path. None follows a link.

// look opens whatever has the name and describes it. The caller closes it.
func (t tree) look(name string) (tree, info, error) {
	fd, err := unix.Openat(t.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return tree{}, info{}, err
	}
	var of info
	if err := unix.Fstat(fd, &of.st); err != nil {
		_ = unix.Close(fd)
		return tree{}, info{}, err
	}
	return tree{fd}, of, nil
}

// sub opens a directory. The caller closes it.
func (t tree) sub(name string) (tree, error) {
	found, of, err := t.look(name)
	if err != nil {
		return tree{}, err
	}
	if !of.isDir() {
		found.close()
		return tree{}, unix.ENOTDIR
	}
	return found, nil
}

// lstat describes what has the name.
func (t tree) lstat(name string) (of info, err error) {
	for {
		if err = unix.Fstatat(t.fd, name, &of.st, unix.AT_SYMLINK_NOFOLLOW); !errors.Is(err, unix.EINTR) {
			return of, err
		}
	}
}

// openFlags open a file without waiting for the other end of a pipe, and make no terminal the process's own.
const openFlags = unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC

// openAt opens a file or a directory.
func (t tree) openAt(name string, flags int, mode uint32) (*os.File, error) {
	fd, err := unix.Openat(t.fd, name, flags|unix.O_NOFOLLOW|openFlags, mode)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil //nolint:gosec // a descriptor is small
}

// regularAt opens a regular file.
func (t tree) regularAt(name string, flags int, mode uint32) (*os.File, info, error) {
	f, err := t.openAt(name, flags, mode)
	if err != nil {
		return nil, info{}, err
	}
	return regular(f)
}

// regular describes an open file. One that is not a regular file is closed.
func regular(f *os.File) (*os.File, info, error) {
	var of info
	err := unix.Fstat(int(f.Fd()), &of.st) //nolint:gosec // a descriptor is small
	switch {
	case err != nil:
	case of.isDir():
		err = unix.EISDIR
	case !of.isRegular():
		err = farm.Invalidf("%s is not a regular file", farm.Shorten(f.Name()))
	}
	if err != nil {
		_ = f.Close()
		return nil, of, err
	}
	return f, of, nil
}

// names returns the sorted names in the directory.
func (t tree) names() ([]string, error) {
	f, err := t.openAt(".", unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// readlink returns the target of a link.
func (t tree) readlink(name string) (string, error) {
	var target [unix.PathMax]byte
	n, err := unix.Readlinkat(t.fd, name, target[:])
	return string(target[:max(n, 0)]), err
}

// removeTries bounds how often a directory is emptied again because user code fills it meanwhile.
const removeTries = 8

// removeAll removes a file, or a directory with all its contents. A name that does not exist is no error.
func (t tree) removeAll(name string) error {
	for range removeTries {
		err := unix.Unlinkat(t.fd, name, 0)
		if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
			err = unix.Unlinkat(t.fd, name, unix.AT_REMOVEDIR)
		}
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return err
		}
		if err := t.empty(name); err != nil {
			return err
		}
	}
	return unix.ENOTEMPTY
}

// empty removes the contents of a directory.
func (t tree) empty(name string) error {
	dir, err := t.sub(name)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) { // it was replaced
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.close()
	names, err := dir.names()
	for _, name := range names {
		if failed := dir.removeAll(name); err == nil {
			err = failed
		}
	}
	return err
}

// The methods from here on take a path below the tree, as those of root do.

func (t tree) parent(p string, follow, create bool) (dir tree, name string, err error) {
	parts, links := elements(p), 0
	if dir, err = t.dup(); err != nil {
		return tree{}, "", err
	}
	defer func() {
		if err != nil {
			dir.close()
		}
	}()
	for i, steps := 0, 0; i < len(parts); steps++ {
		last := i == len(parts)-1
		switch {
		case steps > maxSteps:
			return dir, "", unix.ENAMETOOLONG
		case parts[i] == ".." && i == 0:
			return dir, "", errEscapes
		case parts[i] == "..": // the directory may have moved: the one above it is found from the top
			parts = slices.Delete(parts, i-1, i+1)
			dir.close()
			if dir, err = t.dup(); err != nil {
				return tree{-1}, "", err
			}
			i = 0
			continue
		case last && !follow:
			return dir, parts[i], nil
		}
		found, of, err := dir.look(parts[i])
		if errors.Is(err, unix.ENOENT) && create && !last {
			if err = unix.Mkdirat(dir.fd, parts[i], newDir); err == nil || errors.Is(err, unix.EEXIST) {
				found, of, err = dir.look(parts[i])
			}
		}
		switch {
		case err != nil && last && errors.Is(err, unix.ENOENT):
			return dir, parts[i], nil
		case err != nil:
			return dir, "", err
		case of.isLink():
			found.close()
			if links++; links > maxLinks {
				return dir, "", unix.ELOOP
			}
			target, err := dir.readlink(parts[i])
			if err != nil {
				return dir, "", err
			}
			if path.IsAbs(target) {
				return dir, "", errEscapes
			}
			parts = slices.Concat(parts[:i], elements(target), parts[i+1:])
		case last:
			found.close()
			return dir, parts[i], nil
		case !of.isDir():
			found.close()
			return dir, "", unix.ENOTDIR
		default:
			dir.close()
			dir = found
			i++
		}
	}
	return dir, ".", nil
}

// elements splits a path.
func elements(p string) []string {
	return slices.DeleteFunc(strings.Split(p, "/"), func(name string) bool { return name == "" || name == "." })
}

func (t tree) dir(p string) (found tree, err error) {
	err = in(t, p, true, false, func(dir tree, name string) (err error) {
		found, err = dir.sub(name)
		return err
	})
	return found, err
}

func (t tree) file(p string, flags int, mode uint32) (f *os.File, of info, err error) {
	err = in(t, p, true, false, func(dir tree, name string) (err error) {
		f, of, err = dir.regularAt(name, flags, mode)
		return err
	})
	return f, of, err
}

// in calls do with the directory and the name that a path leads to.
func in(r root, p string, follow, create bool, do func(dir tree, name string) error) error {
	dir, name, err := r.parent(p, follow, create)
	if err != nil {
		return err
	}
	defer dir.close()
	return do(dir, name)
}

// stat describes what a path leads to, and a link only if follow is not set.
func stat(r root, p string, follow bool) (of info, err error) {
	err = in(r, p, follow, false, func(dir tree, name string) (err error) {
		of, err = dir.lstat(name)
		return err
	})
	return of, err
}

// mkdirAll creates a directory and its parents. It may exist, or be a link to one that does.
func mkdirAll(r root, p string) error {
	err := in(r, p, false, true, func(dir tree, name string) error {
		if name == "." {
			return nil
		}
		return unix.Mkdirat(dir.fd, name, newDir)
	})
	if errors.Is(err, unix.EEXIST) {
		var found tree
		if found, err = r.dir(p); err == nil {
			found.close()
		}
	}
	return err
}

// rename moves a file or a directory from one place to another. It replaces no directory.
func rename(r root, from string, to root, p string) error {
	return in(r, from, false, false, func(dir tree, name string) error {
		return in(to, p, false, false, func(toDir tree, toName string) error {
			if of, err := toDir.lstat(toName); err == nil && of.isDir() {
				return unix.EEXIST
			}
			return unix.Renameat(dir.fd, name, toDir.fd, toName)
		})
	})
}

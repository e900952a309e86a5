package files

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// errEscapes says that a path leads out of its tree.
var errEscapes = errors.New("the path leads out of its directory")

const (
	// maxLinks is how many symbolic links a path may lead through, as in Linux.
	maxLinks = 40
	// maxSteps bounds the directories that the resolution of one path opens: links with ".." begin again at the top.
	maxSteps = 8192
)

// tree is an open directory. Paths below it are resolved element by element, and no link or ".." leads out of it, whatever user code
// does at the same time. os.Root promises the same, but opens directories with O_DIRECTORY and O_NOFOLLOW together; gVisor follows
// links then. tree opens each element with O_PATH and O_NOFOLLOW, and looks at what it has opened.
type tree struct {
	fd int
}

// openTree opens a directory by a path that user code cannot change. The caller closes it.
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

// The methods from here to names take one name of the directory itself, not a path. None follows a link.

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
	return of, unix.Fstatat(t.fd, name, &of.st, unix.AT_SYMLINK_NOFOLLOW)
}

// file opens a file. A pipe is opened without waiting for its other end.
func (t tree) file(name string, flags int, mode uint32) (*os.File, error) {
	fd, err := unix.Openat(t.fd, name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil //nolint:gosec // a descriptor is small
}

// names returns the sorted names in the directory, as far as they can be read.
func (t tree) names() []string {
	f, err := t.file(".", unix.O_RDONLY, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	names, _ := f.Readdirnames(-1)
	slices.Sort(names)
	return names
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
	f, err := dir.file(".", unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	_ = f.Close()
	for _, name := range names {
		if err := dir.removeAll(name); err != nil {
			return err
		}
	}
	return err
}

// The methods from here on take a path below the tree.

// parent opens the directory that holds the last element of a path, and returns that element: "." if the path is the tree itself. It
// follows links on the way, and one at the end if follow is set. create creates directories that are missing on the way. The caller
// closes the directory.
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
			if err = unix.Mkdirat(dir.fd, parts[i], 0o755); err == nil || errors.Is(err, unix.EEXIST) {
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

// in calls do with the directory and the name that a path leads to.
func (t tree) in(p string, follow, create bool, do func(dir tree, name string) error) error {
	dir, name, err := t.parent(p, follow, create)
	if err != nil {
		return err
	}
	defer dir.close()
	return do(dir, name)
}

// stat describes what a path leads to, and a link only if follow is not set.
func (t tree) stat(p string, follow bool) (of info, err error) {
	return of, t.in(p, follow, false, func(dir tree, name string) (err error) {
		of, err = dir.lstat(name)
		return err
	})
}

// open opens a directory. The caller closes it.
func (t tree) open(p string) (found tree, err error) {
	return found, t.in(p, true, false, func(dir tree, name string) (err error) {
		found, err = dir.sub(name)
		return err
	})
}

// mkdirAll creates a directory and its parents. It may exist, or be a link to one that does.
func (t tree) mkdirAll(p string) error {
	err := t.in(p, false, true, func(dir tree, name string) error {
		if name == "." {
			return nil
		}
		return unix.Mkdirat(dir.fd, name, 0o755)
	})
	if errors.Is(err, unix.EEXIST) {
		var of info
		if of, err = t.stat(p, true); err == nil && !of.isDir() {
			err = unix.ENOTDIR
		}
	}
	return err
}

// rename moves a file or a directory. It replaces no directory.
func (t tree) rename(from, to string) error {
	return t.in(from, false, false, func(dir tree, name string) error {
		return t.in(to, false, false, func(toDir tree, toName string) error {
			if of, err := toDir.lstat(toName); err == nil && of.isDir() {
				return unix.EEXIST
			}
			return unix.Renameat(dir.fd, name, toDir.fd, toName)
		})
	})
}

// info is what the kernel says about a file.
type info struct {
	st unix.Stat_t
}

func (i *info) isDir() bool     { return i.st.Mode&unix.S_IFMT == unix.S_IFDIR }
func (i *info) isRegular() bool { return i.st.Mode&unix.S_IFMT == unix.S_IFREG }
func (i *info) isLink() bool    { return i.st.Mode&unix.S_IFMT == unix.S_IFLNK }

func (i *info) perm() fs.FileMode { return fs.FileMode(i.st.Mode) & fs.ModePerm }

// modTime is the time of the last change, in the years that JSON and archives can express: code may set any.
func (i *info) modTime() time.Time {
	return time.Unix(min(max(i.st.Mtim.Sec, firstSecond), lastSecond), i.st.Mtim.Nsec)
}

// firstSecond and lastSecond are the beginning of the year 1 and the end of the year 9999: JSON's form of a time has no others.
const firstSecond, lastSecond = -62135596800, 253402300799

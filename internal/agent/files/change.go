package files

import (
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// remove removes a file, a link, or a directory with all that is in it. It removes nothing of a file system's top.
func remove(r root, p string) error {
	return in(r, p, false, false, func(dir tree, name string) error {
		of, err := dir.lstat(name)
		if err != nil {
			return err
		}
		var above info
		if err := unix.Fstat(dir.fd, &above.st); err != nil {
			return err
		}
		if name == "." || of.isDir() && of.st.Dev != above.st.Dev {
			return unix.EBUSY
		}
		return dir.removeAll(name)
	})
}

// fromTo checks what is to be moved or copied, and makes the directories above the new name. It replaces a file, but no directory.
func fromTo(r root, from, to string) error {
	if _, err := stat(r, from, false); err != nil {
		return Problem(err, from)
	}
	if from == to {
		return nil
	}
	if strings.HasPrefix(to, strings.TrimSuffix(from, "/")+"/") {
		return farm.Invalidf("%s would be put into itself", farm.Shorten(from))
	}
	if of, err := stat(r, to, false); err == nil && of.isDir() {
		return farm.Conflictf("%s exists and is a directory", farm.Shorten(to))
	}
	return Problem(mkdirAll(r, path.Dir(to)), to)
}

// move renames a file or a directory, also to another file system. stop is that of replicate.
func move(r root, from, to string, stop func() error) error {
	if err := fromTo(r, from, to); err != nil || from == to {
		return err
	}
	err := rename(r, from, r, to)
	if errors.Is(err, unix.EXDEV) {
		if err = replicate(r, from, to, stop); err == nil {
			err = remove(r, from)
		}
	}
	return Problem(err, to)
}

// replicate copies aside and renames the copy, so that to is there complete or not at all. stop is asked before each file; nil: nothing stops it.
func replicate(r root, from, to string, stop func() error) error {
	return in(r, to, false, false, func(dir tree, name string) error {
		staged, done, err := dir.stageDir()
		if err != nil {
			return err
		}
		defer done()
		if err := (&copier{to: staged, stop: stop}).all(r, from, name); err != nil {
			return err
		}
		return rename(staged, name, dir, name)
	})
}

// copier copies to a tree.
type copier struct {
	to   tree
	stop func() error
	dirs []copied
}

// copied is a directory that was copied. Its mode and times are set when all is in it.
type copied struct {
	path string
	of   info
}

// all copies what is at a path, which may be a tree, to a name. Sockets, devices and pipes are left out.
func (c *copier) all(r root, from, name string) error {
	dir, at, err := r.parent(from, false, false)
	if err != nil {
		return err
	}
	defer dir.close()
	of, err := dir.lstat(at)
	if err != nil {
		return err
	}
	if err := c.one(found{dir: dir, name: at, info: of}, name); err != nil || !of.isDir() {
		return err
	}
	if err := walk(dir, at, false, func(f found, err error) error {
		if err == nil {
			err = c.one(f, path.Join(name, f.path))
		}
		if errors.Is(err, unix.ENOENT) { // it vanished
			return skipIf(f.isDir())
		}
		return err
	}); err != nil {
		return err
	}
	for _, d := range slices.Backward(c.dirs) {
		if err := in(c.to, d.path, false, false, func(dir tree, name string) error {
			if err := unix.Fchmodat(dir.fd, name, d.of.st.Mode&farm.MaxMode, 0); err != nil {
				return err
			}
			return setTimes(dir, name, d.of)
		}); err != nil {
			return err
		}
	}
	return nil
}

// one copies one file, link or directory, without what is in it.
func (c *copier) one(f found, p string) error {
	if c.stop != nil {
		if err := c.stop(); err != nil {
			return err
		}
	}
	return in(c.to, p, false, false, func(to tree, name string) error {
		switch {
		case f.isRegular():
			return c.file(f, to, name)
		case f.isLink():
			target, err := f.dir.readlink(f.name)
			if err != nil {
				return err
			}
			return unix.Symlinkat(target, to.fd, name)
		case f.isDir():
			c.dirs = append(c.dirs, copied{p, f.info})
			return unix.Mkdirat(to.fd, name, 0o700)
		}
		return nil
	})
}

func (c *copier) file(f found, to tree, name string) error {
	from, _, err := f.dir.regularAt(f.name, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	out, err := to.openAt(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, from)
	if err == nil {
		err = unix.Fchmod(int(out.Fd()), f.st.Mode&farm.MaxMode) //nolint:gosec // a descriptor is small
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	return setTimes(to, name, f.info)
}

func setTimes(dir tree, name string, of info) error {
	err := unix.UtimesNanoAt(dir.fd, name, []unix.Timespec{of.st.Atim, of.st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
	return os.NewSyscallError("set times", err)
}

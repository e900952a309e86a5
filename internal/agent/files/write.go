package files

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// stagingDir is where uploads and copies are written before they are moved into place: in the top of the workspace, and beside a file
	// anywhere, since it must be on the same file system. No archive, comparison or watch has it, and no listing of the workspace.
	stagingDir = ".sandfarm-staging"
	// stagingTries bounds how often the staging directory is recreated after another upload has removed it.
	stagingTries = 16
)

// stage creates a file or directory under a new name in the staging directory of t, which exists only while needed. The caller calls done,
// which removes what remains.
func (t tree) stage(make func(dir tree, name string) error) (dir tree, name string, done func(), err error) {
	name = rand.Text()
	err = fs.ErrNotExist
	for range stagingTries {
		if err = unix.Mkdirat(t.fd, stagingDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return tree{}, "", nil, err
		}
		if dir, err = t.sub(stagingDir); errors.Is(err, unix.ENOTDIR) { // the name is reserved for the agent
			_ = unix.Unlinkat(t.fd, stagingDir, 0)
			continue
		}
		if err == nil {
			if err = make(dir, name); err == nil {
				break
			}
			_ = dir.removeAll(name)
			dir.close()
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		_ = unix.Unlinkat(t.fd, stagingDir, unix.AT_REMOVEDIR)
		return tree{}, "", nil, err
	}
	return dir, name, func() {
		_ = dir.removeAll(name)
		dir.close()
		_ = unix.Unlinkat(t.fd, stagingDir, unix.AT_REMOVEDIR) // fails while other uploads use it
	}, nil
}

// stageDir is stage for a directory, which it opens.
func (t tree) stageDir() (staged tree, done func(), err error) {
	_, _, remove, err := t.stage(func(dir tree, name string) (err error) {
		if err = unix.Mkdirat(dir.fd, name, 0o700); err == nil {
			staged, err = dir.sub(name)
		}
		return err
	})
	return staged, func() {
		staged.close()
		remove()
	}, err
}

// write writes a file aside, and calls move when it is complete, which moves it into its place.
func (t tree) write(mode uint32, r io.Reader, move func(aside tree, name string) error) error {
	var f *os.File
	dir, name, done, err := t.stage(func(dir tree, name string) (err error) {
		f, err = dir.openAt(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	defer done()
	if err := fill(f, mode, r); err != nil {
		return err
	}
	return move(dir, name)
}

// fill writes the content of a new file and closes it.
func fill(f *os.File, mode uint32, r io.Reader) error {
	err := take(f, r)
	if err == nil {
		err = unix.Fchmod(int(f.Fd()), mode) //nolint:gosec // a descriptor is small
	}
	return errors.Join(err, f.Close())
}

// take writes what a caller sends to a file. It tells an error of the source from one of the file.
func take(f *os.File, r io.Reader) error {
	source := newSource(r)
	_, err := io.Copy(struct{ io.Writer }{f}, source)
	return source.or(err)
}

// memoryStep is after how many bytes of a source the memory is looked at: so many that it costs little, and so few that as many uploads as are served at
// once (MaxRequests) do not use up what a sandbox of 512 MiB must leave free (process.MemoryShort).
const memoryStep = 256 << 10

// sourceReader counts what comes from a source, and records the source's error. It ends with CodeTooLarge before the sandbox's memory is used up.
type sourceReader struct {
	r      io.Reader
	n      int64
	err    error
	next   int64                      // of n: when the memory is looked at again
	memory func() (held, limit int64) // process.HeldMemory
}

func newSource(r io.Reader) *sourceReader {
	return &sourceReader{r: r, next: memoryStep, memory: process.HeldMemory}
}

func (s *sourceReader) Read(b []byte) (int, error) {
	if s.n >= s.next {
		if process.MemoryShort(s.memory()) {
			s.err = farm.Errorf(farm.CodeTooLarge, "there is no memory left for the upload, since files are in the memory of the sandbox: delete files, end processes, or create a sandbox with more memory_mb")
			return 0, s.err
		}
		s.next = s.n + memoryStep
	}
	n, err := s.r.Read(b)
	s.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// or is the error of the source, or else err.
func (s *sourceReader) or(err error) error {
	if farm.CodeOf(s.err) == farm.CodeTooLarge {
		return s.err
	}
	if s.err != nil {
		return farm.Wrap(s.err, farm.CodeInvalid, "the upload was interrupted")
	}
	return err
}

// Put writes a file of the agent into a directory that user code may write to. It creates a new file and renames it, so it
// never writes through a link or into a pipe.
func Put(p string, data []byte) error {
	dir, err := openTree(path.Dir(p))
	if err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	defer dir.close()
	if err := dir.write(0o600, bytes.NewReader(data), func(aside tree, name string) error {
		return unix.Renameat(aside.fd, name, dir.fd, path.Base(p))
	}); err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	return nil
}

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

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

	"golang.org/x/sys/unix"

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
	source := &sourceReader{r: r}
	_, err := io.Copy(struct{ io.Writer }{f}, source)
	return source.or(err)
}

// sourceReader counts what comes from a source, and records the source's error.
type sourceReader struct {
	r   io.Reader
	n   int64
	err error
}

func (s *sourceReader) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	s.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// or is the error of the source, or else err.
func (s *sourceReader) or(err error) error {
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

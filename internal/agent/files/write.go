package files

import (
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

// stagingTries bounds how often the staging directory is recreated after another upload has removed it.
const stagingTries = 16

// stage creates a file or directory under a new name in the staging directory, which exists only while needed. The caller calls done,
// which removes what remains.
func (t tree) stage(make func(dir tree, name string) error) (name string, done func(), err error) {
	base := rand.Text()
	name = path.Join(stagingDir, base)
	err = fs.ErrNotExist
	for range stagingTries {
		if err = unix.Mkdirat(t.fd, stagingDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", nil, err
		}
		var dir tree
		if dir, err = t.sub(stagingDir); errors.Is(err, unix.ENOTDIR) { // the name is reserved for the agent
			_ = unix.Unlinkat(t.fd, stagingDir, 0)
			continue
		}
		if err == nil {
			err = make(dir, base)
			dir.close()
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	done = func() {
		if dir, err := t.sub(stagingDir); err == nil {
			_ = dir.removeAll(base)
			dir.close()
		}
		_ = unix.Unlinkat(t.fd, stagingDir, unix.AT_REMOVEDIR) // fails while other uploads use it
	}
	if err != nil {
		done()
		return "", nil, err
	}
	return name, done, nil
}

// Write writes a file atomically and creates its parents. It replaces an existing file.
func (w *Workspace) Write(p string, mode fs.FileMode, r io.Reader) (farm.FileEntry, error) {
	p, err := cleanFile(p)
	if err != nil {
		return farm.FileEntry{}, err
	}
	top, err := w.top()
	if err != nil {
		return farm.FileEntry{}, err
	}
	defer top.close()
	if of, err := top.stat(p, true); err == nil && of.isDir() {
		return farm.FileEntry{}, farm.Conflictf("%s is a directory", p)
	}
	var f *os.File
	name, done, err := top.stage(func(dir tree, name string) (err error) {
		f, err = dir.file(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	})
	if err != nil {
		return farm.FileEntry{}, Problem(err, p)
	}
	defer done()
	if err := fill(f, mode, r); err != nil {
		return farm.FileEntry{}, Problem(err, p)
	}
	if err := top.mkdirAll(path.Dir(p)); err != nil {
		return farm.FileEntry{}, Problem(err, p)
	}
	if err := top.rename(name, p); err != nil {
		return farm.FileEntry{}, Problem(err, p)
	}
	return w.Stat(p)
}

// errUpload says that the source of an upload failed.
var errUpload = errors.New("the upload was interrupted")

// fill writes the content of a new file and closes it.
func fill(f *os.File, mode fs.FileMode, r io.Reader) error {
	source := &sourceReader{r: r}
	_, err := io.Copy(struct{ io.Writer }{f}, source)
	if source.err != nil {
		err = fmt.Errorf("%w: %w", errUpload, source.err)
	}
	if err == nil {
		err = f.Chmod(mode)
	}
	return errors.Join(err, f.Close())
}

// sourceReader records the error of a source, to distinguish it from one of the destination.
type sourceReader struct {
	r   io.Reader
	err error
}

func (s *sourceReader) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

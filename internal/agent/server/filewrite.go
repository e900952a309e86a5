package server

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// stagingTries bounds how often the staging directory is made again when another upload has just removed it.
const stagingTries = 16

// stage makes something under a new name in the staging directory, which exists only while it is needed. done removes what is left.
func (s *Server) stage(make func(name string) error) (name string, done func(), err error) {
	name = path.Join(stagingDir, randomHex())
	err = fs.ErrNotExist
	for range stagingTries {
		if err = s.root.Mkdir(stagingDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", nil, err
		}
		if info, err := s.root.Lstat(stagingDir); err == nil && !info.IsDir() { // the name is ours
			_ = s.root.Remove(stagingDir)
			continue
		}
		if err = make(name); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	done = func() {
		_ = s.root.RemoveAll(name)
		_ = s.root.Remove(stagingDir) // stays while others use it
	}
	if err != nil {
		done()
		return "", nil, err
	}
	return name, done, nil
}

// write writes a file whole or not at all.
func (s *Server) write(p string, mode fs.FileMode, r io.Reader) (farm.FileEntry, error) {
	p, err := cleanFile(p)
	if err != nil {
		return farm.FileEntry{}, err
	}
	if info, err := s.root.Stat(p); err == nil && info.IsDir() {
		return farm.FileEntry{}, farm.Conflictf("%s is a directory", p)
	}
	var f *os.File
	name, done, err := s.stage(func(name string) error {
		var err error
		f, err = s.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	})
	if err != nil {
		return farm.FileEntry{}, fileError(err, p)
	}
	defer done()
	if err := fill(f, mode, r); err != nil {
		return farm.FileEntry{}, fileError(err, p)
	}
	if err := s.root.MkdirAll(path.Dir(p), 0o755); err != nil {
		return farm.FileEntry{}, fileError(err, p)
	}
	if err := s.root.Rename(name, p); err != nil {
		return farm.FileEntry{}, fileError(err, p)
	}
	return s.stat(p)
}

// errUpload is a body that broke off.
var errUpload = errors.New("upload broke off")

// fill writes a new file and closes it.
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

// sourceReader remembers the error of a source, to tell it from the destination's.
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

package bridge

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Roots are the directories of this machine that the tools may use. A model chooses the files, so nothing outside a root is read or
// written, by path or through a link. Hidden files and directories below a root (.git, .env) are left alone, no existing file is
// overwritten, and no file is created under a name that other programs load (Makefile, conftest.py).
type Roots struct {
	roots    []root
	why      string // if there are none: what to do about it
	autoload *verbs.Autoload
}

type root struct {
	open *os.Root
	name string   // absolute
	also []string // other spellings of it: with its links resolved
}

var _ mcp.LocalFiles = (*Roots)(nil)

// OpenRoots opens directories as roots. Without any, the current directory is the only root, unless it is the root of the file system
// or contains the user's home: desktop programs start their servers there, and no user wants to expose all of that to a model. Then
// there is no root, and every use of a local file is an error that says so. searchPath is the user's PATH: no file is created under
// the name of a program on it.
func OpenRoots(dirs []string, home, searchPath string) (*Roots, error) {
	r := &Roots{autoload: verbs.NewAutoload(runtime.GOOS, searchPath)}
	if len(dirs) == 0 {
		here, err := os.Getwd()
		if err != nil {
			return nil, fmt.Errorf("find the current directory: %w", err)
		}
		if wide(here, home) {
			r.why = fmt.Sprintf("no files of this machine may be used, since the server runs in %s and was not given a directory to use: ask the user to start it with --root DIR, or send the content instead", here)
			return r, nil
		}
		dirs = []string{here}
	}
	for _, dir := range dirs {
		one, err := openRoot(dir)
		if err != nil {
			return nil, errors.Join(err, r.Close())
		}
		r.roots = append(r.roots, one)
	}
	return r, nil
}

// wide reports whether a directory contains the user's home or is the root of the file system.
func wide(dir, home string) bool {
	if filepath.Dir(dir) == dir {
		return true
	}
	if home == "" {
		return false
	}
	for _, home := range []string{home, resolved(home)} {
		if _, inside := below(home, resolved(dir)); inside {
			return true
		}
	}
	return false
}

func openRoot(dir string) (root, error) {
	name, err := filepath.Abs(dir)
	if err != nil {
		return root{}, fmt.Errorf("open root: %w", err)
	}
	open, err := os.OpenRoot(name)
	if err != nil {
		return root{}, fmt.Errorf("open root: %w", err)
	}
	return root{open: open, name: name, also: []string{resolved(name)}}, nil
}

// resolved is a path with its links resolved, or the path itself if that fails.
func resolved(path string) string {
	if plain, err := filepath.EvalSymlinks(path); err == nil {
		return plain
	}
	return path
}

// Close closes the roots.
func (r *Roots) Close() error {
	var errs []error
	for _, one := range r.roots {
		errs = append(errs, one.open.Close())
	}
	return errors.Join(errs...)
}

// Names returns the roots' paths.
func (r *Roots) Names() []string {
	names := make([]string, len(r.roots))
	for i, one := range r.roots {
		names[i] = one.name
	}
	return names
}

// about describes the usable directories in a sentence.
func (r *Roots) about() string {
	if len(r.roots) == 0 {
		return r.why
	}
	return "files of this machine may be used below " + strings.Join(r.Names(), ", ")
}

// Open opens a regular file below a root and gives its size. Relative paths start at the first root.
func (r *Roots) Open(path string) (io.ReadCloser, int64, error) {
	in, name, err := r.find(path)
	if err != nil {
		return nil, 0, err
	}
	file, err := in.open.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a pipe would block
	if err != nil {
		return nil, 0, r.explain(err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = farm.Invalidf("it is not a regular file; name the files of a directory one by one")
	}
	if err != nil {
		file.Close()
		return nil, 0, r.explain(err)
	}
	return file, info.Size(), nil
}

// Create creates a new file below a root, and its parent directories. The file exists once it is closed without an error; an
// incomplete file is removed. A name that other programs load is an error.
func (r *Roots) Create(path string) (io.WriteCloser, error) {
	in, name, err := r.find(path)
	if err != nil {
		return nil, err
	}
	if info, err := in.open.Stat(name); err == nil && info.IsDir() || strings.HasSuffix(path, "/") {
		return nil, farm.Invalidf("it is a directory: name the file in it")
	}
	if reason := r.autoload.Reason(in.open, filepath.ToSlash(name)); reason != "" {
		return nil, farm.Invalidf("no file is created under this name (%s): give another name", reason)
	}
	if err := in.open.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		return nil, r.explain(err)
	}
	file, err := in.open.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return nil, r.explain(err)
	}
	return &created{File: file, in: in.open, name: name}, nil
}

// find finds the root of a path and the name relative to it.
func (r *Roots) find(path string) (root, string, error) {
	switch {
	case len(r.roots) == 0:
		return root{}, "", farm.Invalidf("%s", r.why)
	case path == "" || strings.ContainsRune(path, 0):
		return root{}, "", farm.Invalidf("it is empty or holds a NUL byte: name a file")
	}
	for _, in := range r.roots {
		for _, base := range append([]string{in.name}, in.also...) {
			whole := path
			if !filepath.IsAbs(path) {
				whole = filepath.Join(base, path)
			}
			name, inside := below(whole, base)
			if !inside {
				continue
			}
			name, err := r.resolve(in, name)
			return in, name, err
		}
		if !filepath.IsAbs(path) {
			break
		}
	}
	return root{}, "", r.outside()
}

// below returns a path relative to a directory that contains it.
func below(path, dir string) (string, bool) {
	name, err := filepath.Rel(dir, filepath.Clean(path))
	return name, err == nil && filepath.IsLocal(name)
}

func (r *Roots) outside() error {
	return farm.Invalidf("it lies outside the directories of this machine that may be used (%s): name a file there, or ask the user to start the server with --root for its directory", strings.Join(r.Names(), ", "))
}

// explain converts an error of the file system to one that says what to do. Errors of this file are fragments: the tool puts the name
// of the file in front.
func (r *Roots) explain(err error) error {
	if _, ours := errors.AsType[*farm.Error](err); ours {
		return err
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return farm.Invalidf("there is no such file; relative paths start at %s", r.roots[0].name)
	case errors.Is(err, fs.ErrExist):
		return farm.Invalidf("it exists already, and no file is overwritten: give another name")
	case err.Error() == "path escapes from parent": // os exports no value for this error
		return r.outside()
	default:
		return farm.Invalidf("%v", err)
	}
}

// created is a new file, which is removed if it was not written completely.
type created struct {
	*os.File
	in     *os.Root
	name   string
	failed error
}

// Write records whether it failed.
func (c *created) Write(p []byte) (int, error) {
	n, err := c.File.Write(p)
	if err != nil {
		c.failed = err
	}
	return n, err
}

// ReadFrom hides the file's own, which would bypass Write.
func (c *created) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(struct{ io.Writer }{c}, r)
	if err != nil {
		c.failed = err
	}
	return n, err
}

// Close closes the file, or removes it if it is incomplete.
func (c *created) Close() error {
	err := c.File.Close()
	if c.failed == nil && err == nil {
		return nil
	}
	return errors.Join(err, c.in.Remove(c.name))
}

var _ mcp.LocalFolders = (*Roots)(nil)

// Folder opens a directory below a root, or a root itself. Relative paths start at the first root. The caller must skip the hidden
// files in it.
func (r *Roots) Folder(path string) (*mcp.LocalFolder, error) {
	in, name, err := r.find(path)
	if err != nil {
		return nil, err
	}
	dir, err := in.open.OpenRoot(name)
	if err != nil {
		return nil, r.explain(err)
	}
	return &mcp.LocalFolder{Name: filepath.Base(filepath.Join(in.name, name)), Files: dir.FS(), Close: dir.Close}, nil
}

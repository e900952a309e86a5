package files

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Workspace is a directory of user code. Paths are relative to it, or absolute under its public name; no path and no symbolic
// link leads out of it. Create it with Open.
type Workspace struct {
	dir  string
	seed maphash.Seed

	mu     sync.RWMutex // while root is used to open something, and while it is closed
	root   tree
	closed bool
}

// Open opens the workspace in an existing directory. The caller closes it.
func Open(dir string) (*Workspace, error) {
	w, err := At(dir)
	if err == nil {
		_ = w.root.removeAll(stagingDir)
	}
	return w, err
}

// At opens any directory as a workspace is opened, while others may use it, too.
func At(dir string) (*Workspace, error) {
	dir = filepath.Clean(dir)
	root, err := openTree(dir)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	return &Workspace{dir: dir, root: root, seed: maphash.MakeSeed()}, nil
}

// Dir is the directory of the workspace.
func (w *Workspace) Dir() string { return w.dir }

// Close closes the workspace. The files stay.
func (w *Workspace) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.closed = true
		w.root.close()
	}
	return nil
}

// top returns the workspace's tree, for one call. The caller closes it.
func (w *Workspace) top() (tree, error) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.closed {
		return tree{}, fs.ErrClosed
	}
	return w.root.dup()
}

// cleanPath is farm.CleanPath; the staging directory is refused.
func cleanPath(p string) (string, error) {
	clean, err := farm.CleanPath(p)
	if err != nil {
		return "", err
	}
	if clean == stagingDir || strings.HasPrefix(clean, stagingDir+"/") {
		return "", farm.Invalidf("%s is a name that the sandbox reserves", stagingDir)
	}
	return clean, nil
}

// cleanFile is cleanPath for everything but the workspace itself.
func cleanFile(p string) (string, error) {
	if _, err := farm.CleanFilePath(p); err != nil {
		return "", err
	}
	return cleanPath(p)
}

// Problem converts a file system error to an error with a code and a sentence for the caller.
func Problem(err error, p string) error {
	switch {
	case err == nil:
		return nil
	case farm.CodeOf(err) != farm.CodeInternal:
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		return farm.Wrap(err, farm.CodeTooLarge, "the workspace is full: %s does not fit; delete files, or create a sandbox with more disk_mb", p)
	case errors.Is(err, fs.ErrNotExist):
		return farm.Wrap(err, farm.CodeNotFound, "%s does not exist in the workspace", p)
	case errors.Is(err, errEscapes):
		return farm.Wrap(err, farm.CodeInvalid, "%s leads out of the workspace", p)
	case errors.Is(err, syscall.ELOOP):
		return farm.Wrap(err, farm.CodeInvalid, "%s is a symbolic link that leads nowhere", p)
	case errors.Is(err, fs.ErrPermission):
		return farm.Wrap(err, farm.CodeInvalid, "the permissions of %s do not allow this", p)
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE): // the walk uses one descriptor per level
		return farm.Wrap(err, farm.CodeTooLarge, "%s is nested too deeply for this; use a shell command instead", p)
	case errors.Is(err, syscall.EISDIR):
		return farm.Wrap(err, farm.CodeConflict, "%s is a directory", p)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrExist), errors.Is(err, syscall.ENOTEMPTY):
		return farm.Wrap(err, farm.CodeConflict, "%s or a directory above it exists and is of another type", p)
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ENXIO):
		return farm.Wrap(err, farm.CodeInvalid, "%s is not a valid file name", p)
	}
	return fmt.Errorf("use %s: %w", p, err)
}

// entry describes a file of the workspace.
func entry(p string, of info) farm.FileEntry {
	e := farm.FileEntry{Path: p, Mode: fmt.Sprintf("%04o", of.perm()), ModifiedAt: of.modTime().UTC(), Type: "other"}
	switch {
	case of.isRegular():
		e.Type, e.Size = "file", of.st.Size
	case of.isDir():
		e.Type = "dir"
	case of.isLink():
		e.Type = "symlink"
	}
	return e
}

// Stat describes one path. It does not follow a symbolic link.
func (w *Workspace) Stat(p string) (farm.FileEntry, error) {
	p, err := cleanPath(p)
	if err != nil {
		return farm.FileEntry{}, err
	}
	top, err := w.top()
	if err != nil {
		return farm.FileEntry{}, err
	}
	defer top.close()
	of, err := top.stat(p, false)
	if err != nil {
		return farm.FileEntry{}, Problem(err, p)
	}
	return entry(p, of), nil
}

// Open opens a regular file for reading. It never opens a device and never waits for the other end of a pipe. The caller closes
// the file.
func (w *Workspace) Open(p string) (*os.File, farm.FileEntry, error) {
	p, err := cleanFile(p)
	if err != nil {
		return nil, farm.FileEntry{}, err
	}
	top, err := w.top()
	if err != nil {
		return nil, farm.FileEntry{}, err
	}
	defer top.close()
	var f *os.File
	var of info
	err = top.in(p, true, false, func(dir tree, name string) error {
		if f, err = dir.file(name, os.O_RDONLY, 0); err != nil {
			return err
		}
		if err = unix.Fstat(int(f.Fd()), &of.st); err == nil && !of.isRegular() {
			err = farm.Invalidf("%s is not a regular file", p)
		}
		if err != nil {
			_ = f.Close()
		}
		return err
	})
	if err != nil {
		return nil, farm.FileEntry{}, Problem(err, p)
	}
	return f, entry(p, of), nil
}

// Mkdir creates a directory and its parents.
func (w *Workspace) Mkdir(p string) error {
	p, err := cleanPath(p)
	if err != nil {
		return err
	}
	top, err := w.top()
	if err != nil {
		return err
	}
	defer top.close()
	return Problem(top.mkdirAll(p), p)
}

// Remove removes a file, or a directory with all its contents.
func (w *Workspace) Remove(p string) error {
	p, err := cleanFile(p)
	if err != nil {
		return err
	}
	top, err := w.top()
	if err != nil {
		return err
	}
	defer top.close()
	return Problem(top.in(p, false, false, func(dir tree, name string) error {
		if _, err := dir.lstat(name); err != nil {
			return err
		}
		return dir.removeAll(name)
	}), p)
}

// Move renames a file or a directory and creates the parents of the new name.
func (w *Workspace) Move(from, to string) error {
	from, err := cleanFile(from)
	if err != nil {
		return err
	}
	if to, err = cleanFile(to); err != nil {
		return err
	}
	top, err := w.top()
	if err != nil {
		return err
	}
	defer top.close()
	if _, err := top.stat(from, false); err != nil {
		return Problem(err, from)
	}
	if from == to {
		return nil
	}
	if strings.HasPrefix(to, from+"/") {
		return farm.Invalidf("%s cannot be moved into itself", from)
	}
	if of, err := top.stat(to, false); err == nil && of.isDir() {
		return farm.Conflictf("%s exists and is a directory", to)
	}
	if err := top.mkdirAll(path.Dir(to)); err != nil {
		return Problem(err, to)
	}
	return Problem(top.rename(from, to), to)
}

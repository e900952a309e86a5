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
	"syscall"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Workspace is a directory of user code. Paths are relative to it, or absolute under its public name; no path and no symbolic
// link leads out of it. Create it with Open.
type Workspace struct {
	dir  string
	root *os.Root
	seed maphash.Seed
}

// Open opens the workspace in an existing directory. The caller closes it.
func Open(dir string) (*Workspace, error) {
	dir = filepath.Clean(dir)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	_ = root.RemoveAll(stagingDir)
	return &Workspace{dir: dir, root: root, seed: maphash.MakeSeed()}, nil
}

// Dir is the directory of the workspace.
func (w *Workspace) Dir() string { return w.dir }

// Close closes the workspace. The files stay.
func (w *Workspace) Close() error { return w.root.Close() }

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
	case strings.Contains(err.Error(), "path escapes from parent"):
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
func entry(p string, info fs.FileInfo) farm.FileEntry {
	e := farm.FileEntry{Path: p, Mode: fmt.Sprintf("%04o", info.Mode().Perm()), ModifiedAt: info.ModTime().UTC(), Type: "other"}
	switch {
	case info.Mode().IsRegular():
		e.Type, e.Size = "file", info.Size()
	case info.IsDir():
		e.Type = "dir"
	case info.Mode()&fs.ModeSymlink != 0:
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
	info, err := w.root.Lstat(p)
	if err != nil {
		return farm.FileEntry{}, Problem(err, p)
	}
	return entry(p, info), nil
}

// Open opens a regular file for reading. It never opens a device and never waits for the other end of a pipe. The caller closes
// the file.
func (w *Workspace) Open(p string) (*os.File, farm.FileEntry, error) {
	p, err := cleanFile(p)
	if err != nil {
		return nil, farm.FileEntry{}, err
	}
	f, err := w.root.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, farm.FileEntry{}, Problem(err, p)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = farm.Invalidf("%s is not a regular file", p)
	}
	if err != nil {
		_ = f.Close()
		return nil, farm.FileEntry{}, Problem(err, p)
	}
	return f, entry(p, info), nil
}

// Mkdir creates a directory and its parents.
func (w *Workspace) Mkdir(p string) error {
	p, err := cleanPath(p)
	if err != nil {
		return err
	}
	return Problem(w.root.MkdirAll(p, 0o755), p)
}

// Remove removes a file, or a directory with all its contents.
func (w *Workspace) Remove(p string) error {
	p, err := cleanFile(p)
	if err != nil {
		return err
	}
	if _, err := w.root.Lstat(p); err != nil {
		return Problem(err, p)
	}
	return Problem(w.root.RemoveAll(p), p)
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
	if _, err := w.root.Lstat(from); err != nil {
		return Problem(err, from)
	}
	if from == to {
		return nil
	}
	if strings.HasPrefix(to, from+"/") {
		return farm.Invalidf("%s cannot be moved into itself", from)
	}
	if info, err := w.root.Lstat(to); err == nil && info.IsDir() {
		return farm.Conflictf("%s exists and is a directory", to)
	}
	if err := w.root.MkdirAll(path.Dir(to), 0o755); err != nil {
		return Problem(err, to)
	}
	return Problem(w.root.Rename(from, to), to)
}

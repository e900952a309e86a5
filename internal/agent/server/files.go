package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"sort"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// listDefault is how many entries a listing gives when nobody says.
	listDefault = 10_000
	// listMax is the most that a listing gives.
	listMax = 100_000
)

// cleanPath is farm.CleanPath, and the staging directory is no path of the user's.
func cleanPath(p string) (string, error) {
	clean, err := farm.CleanPath(p)
	if err != nil {
		return "", err
	}
	if clean == stagingDir || strings.HasPrefix(clean, stagingDir+"/") {
		return "", farm.Invalidf("%s is a name that the sandbox keeps for itself", stagingDir)
	}
	return clean, nil
}

// cleanFile is cleanPath for anything but the workspace itself.
func cleanFile(p string) (string, error) {
	if _, err := farm.CleanFilePath(p); err != nil {
		return "", err
	}
	return cleanPath(p)
}

// fileError gives an error of the file system a code and a sentence.
func fileError(err error, p string) error {
	switch {
	case err == nil:
		return nil
	case farm.CodeOf(err) != farm.CodeInternal:
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		return farm.Wrap(err, farm.CodeTooLarge, "the workspace is full: %s does not fit; delete something or create a sandbox with more disk", p)
	case errors.Is(err, fs.ErrNotExist):
		return farm.Wrap(err, farm.CodeNotFound, "%s does not exist in the workspace", p)
	case strings.Contains(err.Error(), "path escapes from parent"):
		return farm.Wrap(err, farm.CodeInvalid, "%s leads out of the workspace", p)
	case errors.Is(err, syscall.ELOOP):
		return farm.Wrap(err, farm.CodeInvalid, "%s is a symbolic link that leads nowhere", p)
	case errors.Is(err, fs.ErrPermission):
		return farm.Wrap(err, farm.CodeInvalid, "%s is closed by its permissions", p)
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE): // one descriptor a level
		return farm.Wrap(err, farm.CodeTooLarge, "%s is nested too deeply for this; use a command instead", p)
	case errors.Is(err, syscall.EISDIR):
		return farm.Wrap(err, farm.CodeConflict, "%s is a directory", p)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrExist), errors.Is(err, syscall.ENOTEMPTY):
		return farm.Wrap(err, farm.CodeConflict, "%s, or what it is in, exists and is of another kind", p)
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ENXIO):
		return farm.Wrap(err, farm.CodeInvalid, "%s is not a valid name for this", p)
	}
	return fmt.Errorf("use %s: %w", p, err)
}

// entry describes a file.
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

// stat describes one path; a symlink is described itself.
func (s *Server) stat(p string) (farm.FileEntry, error) {
	p, err := cleanPath(p)
	if err != nil {
		return farm.FileEntry{}, err
	}
	info, err := s.root.Lstat(p)
	if err != nil {
		return farm.FileEntry{}, fileError(err, p)
	}
	return entry(p, info), nil
}

// list lists what is under a path, at most limit entries.
func (s *Server) list(p string, recursive bool, limit int) (entries []farm.FileEntry, more bool, err error) {
	if p, err = cleanPath(p); err != nil {
		return nil, false, err
	}
	if limit <= 0 {
		limit = listDefault
	}
	limit = min(limit, listMax)
	info, err := s.root.Stat(p)
	if err != nil {
		return nil, false, fileError(err, p)
	}
	if !info.IsDir() {
		return []farm.FileEntry{entry(p, info)}, false, nil
	}
	err = s.walk(p, func(name string, info fs.FileInfo) error {
		if len(entries) == limit {
			more = true
			return fs.SkipAll
		}
		entries = append(entries, entry(path.Join(p, name), info))
		if info.IsDir() && !recursive {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return nil, false, fileError(err, p)
	}
	sort.Slice(entries, func(i, j int) bool { return entries[i].Path < entries[j].Path })
	if entries == nil {
		entries = []farm.FileEntry{}
	}
	return entries, more, nil
}

// walk calls do for everything under a directory, with names relative to it. Symlinks are not followed; what vanishes, is closed to us
// or has a name that is not UTF-8 is left out.
func (s *Server) walk(p string, do func(name string, info fs.FileInfo) error) error {
	sub, err := s.root.OpenRoot(p)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Close() }()
	return fs.WalkDir(sub.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if name == "." {
			return err
		}
		if err != nil || !utf8.ValidString(name) || (p == "." && name == stagingDir) {
			if d != nil && d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // it vanished
		}
		return do(name, info)
	})
}

// open opens a regular file for reading, never waiting for a pipe's other end and never a device.
func (s *Server) open(p string) (*os.File, farm.FileEntry, error) {
	p, err := cleanFile(p)
	if err != nil {
		return nil, farm.FileEntry{}, err
	}
	f, err := s.root.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, farm.FileEntry{}, fileError(err, p)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = farm.Invalidf("%s is not a regular file", p)
	}
	if err != nil {
		_ = f.Close()
		return nil, farm.FileEntry{}, fileError(err, p)
	}
	return f, entry(p, info), nil
}

// mkdir makes a directory and its parents.
func (s *Server) mkdir(p string) error {
	p, err := cleanPath(p)
	if err != nil {
		return err
	}
	return fileError(s.root.MkdirAll(p, 0o755), p)
}

// remove removes a file or a tree.
func (s *Server) remove(p string) error {
	p, err := cleanFile(p)
	if err != nil {
		return err
	}
	if _, err := s.root.Lstat(p); err != nil {
		return fileError(err, p)
	}
	return fileError(s.root.RemoveAll(p), p)
}

// move renames a file or a tree and makes the parents of its new name.
func (s *Server) move(from, to string) error {
	from, err := cleanFile(from)
	if err != nil {
		return err
	}
	if to, err = cleanFile(to); err != nil {
		return err
	}
	if _, err := s.root.Lstat(from); err != nil {
		return fileError(err, from)
	}
	if from == to {
		return nil
	}
	if strings.HasPrefix(to, from+"/") {
		return farm.Invalidf("%s cannot be moved into itself", from)
	}
	if info, err := s.root.Lstat(to); err == nil && info.IsDir() {
		return farm.Conflictf("%s exists and is a directory", to)
	}
	if err := s.root.MkdirAll(path.Dir(to), 0o755); err != nil {
		return fileError(err, to)
	}
	return fileError(s.root.Rename(from, to), to)
}

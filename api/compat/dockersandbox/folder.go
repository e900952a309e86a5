package dockersandbox

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/api/mcp"
)

// folder packs a directory of this machine. A link to a file of the directory becomes a file of its own; others are not
// followed: they may lead anywhere.
func (w *packer) folder(files fs.FS) error {
	return fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		from := name
		switch {
		case err != nil:
			return mcp.LocalError("local_src_dir", name, err)
		case name == ".":
			return nil
		case hidden(name):
			if !nobodySends(entry.Name()) {
				w.skip(name)
			}
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.Type()&fs.ModeSymlink != 0:
			if from = linked(files, name); from == "" {
				w.skip(name)
				return nil
			}
		case !entry.IsDir() && !entry.Type().IsRegular():
			w.skip(name)
			return nil
		}
		info, err := fs.Lstat(files, from)
		if err != nil {
			return mcp.LocalError("local_src_dir", name, err)
		}
		if info.IsDir() {
			if _, err := fs.Stat(files, path.Join(name, "pyvenv.cfg")); err == nil {
				return fs.SkipDir // a virtual environment by another name
			}
			return w.add(name, fs.ModeDir, 0, nil)
		}
		file, err := files.Open(from)
		if err != nil {
			return mcp.LocalError("local_src_dir", name, err)
		}
		defer func() { _ = file.Close() }() // it was only read
		// A file that grows meanwhile is taken as it was.
		return w.add(name, info.Mode(), info.Size(), io.LimitReader(file, info.Size()))
	})
}

// hidden reports whether a path leads to what stays with the caller: hidden files, and what nobody sends.
func hidden(name string) bool {
	return slices.ContainsFunc(strings.Split(name, "/"), func(element string) bool {
		return strings.HasPrefix(element, ".") || nobodySends(element)
	})
}

// linked gives the file of the same directory that a link leads to; empty where it leads elsewhere, or to another link.
func linked(files fs.FS, name string) string {
	target, err := fs.ReadLink(files, name)
	if err != nil || path.IsAbs(target) {
		return ""
	}
	to := path.Join(path.Dir(name), target)
	if !fs.ValidPath(to) || hidden(to) {
		return ""
	}
	if info, err := fs.Lstat(files, to); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return to
}

// maxSkipped is how many names of what was skipped an answer holds.
const maxSkipped = 50

func (w *packer) skip(name string) {
	if !slices.ContainsFunc(strings.Split(strings.TrimRight(name, "/"), "/"), nobodySends) {
		w.left = append(w.left, name)
	}
}

// skipped tells what was skipped.
func (w *packer) skipped() []string {
	slices.Sort(w.left)
	if more := len(w.left) - maxSkipped; more > 0 {
		return append(w.left[:maxSkipped:maxSkipped], fmt.Sprintf("and %d more", more))
	}
	return w.left
}

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

// folder packs a directory of this machine. A link to a file of the directory becomes a copy of it; other links are not followed,
// because they may lead anywhere.
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
				return fs.SkipDir // a virtual environment
			}
			return w.add(name, fs.ModeDir, 0, nil)
		}
		file, err := files.Open(from)
		if err != nil {
			return mcp.LocalError("local_src_dir", name, err)
		}
		defer func() { _ = file.Close() }() // it was only read
		// If the file grows meanwhile, only its size at the start is read.
		return w.add(name, info.Mode(), info.Size(), io.LimitReader(file, info.Size()))
	})
}

// hidden reports whether a path is not sent: hidden files, and the names of nobodySends.
func hidden(name string) bool {
	return slices.ContainsFunc(strings.Split(name, "/"), func(element string) bool {
		return strings.HasPrefix(element, ".") || nobodySends(element)
	})
}

// linked returns the file of the same directory that a link leads to, or "" if it leads elsewhere or to another link.
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

// maxSkipped is how many skipped names an answer lists.
const maxSkipped = 50

func (w *packer) skip(name string) {
	if !slices.ContainsFunc(strings.Split(strings.TrimRight(name, "/"), "/"), nobodySends) {
		w.left = append(w.left, name)
	}
}

// skipped lists the skipped names.
func (w *packer) skipped() []string {
	slices.Sort(w.left)
	if more := len(w.left) - maxSkipped; more > 0 {
		return append(w.left[:maxSkipped:maxSkipped], fmt.Sprintf("and %d more", more))
	}
	return w.left
}

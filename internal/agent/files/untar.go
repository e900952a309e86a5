package files

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// shownName bounds a name of an archive in an error.
const shownName = 80

// unpacker is the unpacking of an archive: first into a staging directory, then into its place once all of it is valid.
type unpacker struct {
	to    string          // target directory, relative to the tree that it must stay in
	stage tree            // the staging directory
	links map[string]bool // symbolic links of the archive
}

// unpack unpacks a tar archive under a directory of a tree, entirely or not at all.
func unpack(top tree, p string, r io.Reader) error {
	if of, err := stat(top, p, true); err == nil && !of.isDir() {
		return farm.Conflictf("%s exists and is not a directory", p)
	}
	staged, done, err := top.stageDir()
	if err != nil {
		return err
	}
	defer done()
	u := &unpacker{to: p, stage: staged, links: map[string]bool{}}
	if err := u.all(r); err != nil {
		return err
	}
	return merge(staged, top, p)
}

// all unpacks every member into the stage.
func (u *unpacker) all(r io.Reader) error {
	source := &sourceReader{r: r}
	reader := tar.NewReader(source)
	for {
		h, err := reader.Next()
		switch {
		case errors.Is(err, io.EOF) && source.n == 0:
			return farm.Invalidf("the body is empty: a tar archive is expected")
		case errors.Is(err, io.EOF):
			return nil
		case source.err != nil:
			return source.or(nil)
		case err != nil:
			return farm.Wrap(err, farm.CodeInvalid, "the body is not a valid uncompressed tar archive")
		}
		if err := u.member(h, reader); err != nil {
			if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
				return farm.Wrap(err, farm.CodeInvalid, "the tar archive is incomplete")
			}
			return Problem(err, execution.Cut(h.Name, shownName))
		}
	}
}

// member checks and unpacks one member.
func (u *unpacker) member(h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if strings.HasPrefix(h.Name, "/") {
		return farm.Invalidf("the tar archive contains the absolute name %q", execution.Cut(h.Name, shownName))
	}
	name, err := farm.CleanPath(h.Name)
	if err != nil {
		return err
	}
	if _, err := cleanPath(path.Join(u.to, name)); err != nil {
		return err
	}
	for dir := name; dir != "."; dir = path.Dir(dir) {
		if u.links[dir] {
			return farm.Invalidf("the tar archive writes through its own symbolic link %q", execution.Cut(dir, shownName))
		}
	}
	if name == "." && h.Typeflag != tar.TypeDir {
		return farm.Invalidf("the tar archive contains a file without a name")
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return mkdirAll(u.stage, name)
	case tar.TypeReg:
		return u.file(name, h, r)
	case tar.TypeSymlink:
		return u.link(name, h.Linkname)
	}
	return farm.Invalidf("the tar archive contains %q, which is neither a file, a directory nor a symbolic link", execution.Cut(h.Name, shownName))
}

func (u *unpacker) file(name string, h *tar.Header, r io.Reader) error {
	var f *os.File
	if err := in(u.stage, name, false, true, func(dir tree, name string) (err error) {
		_ = unix.Unlinkat(dir.fd, name, 0) // the last member with a name wins
		f, err = dir.openAt(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	}); err != nil {
		return err
	}
	mode := uint32(newFile)
	if h.Mode&0o111 != 0 {
		mode = newDir // executable
	}
	return fill(f, mode, r)
}

// link creates a symbolic link if its target is inside the workspace.
func (u *unpacker) link(name, target string) error {
	resolved := path.Join(u.to, path.Dir(name), target)
	if path.IsAbs(target) {
		resolved = strings.TrimPrefix(path.Clean(target), farm.Workspace+"/")
	}
	if target == "" || path.IsAbs(resolved) || resolved == ".." || strings.HasPrefix(resolved, "../") || strings.ContainsRune(target, 0) {
		return farm.Invalidf("the symbolic link %q in the tar archive leads out of the workspace", execution.Cut(name, shownName))
	}
	u.links[name] = true
	return in(u.stage, name, false, true, func(dir tree, name string) error { return unix.Symlinkat(target, dir.fd, name) })
}

// merge moves what is staged into place: directories are merged, files replace files. If anything conflicts, it moves nothing.
func merge(staged, top tree, to string) error {
	var dirs, others []string
	err := walk(staged, ".", false, func(f found, err error) error {
		if err != nil { // it vanished
			return nil
		}
		target := path.Join(to, f.path)
		old, err := stat(top, target, false)
		switch {
		case f.isDir():
			if err == nil && !old.isDir() {
				if real, err := stat(top, target, true); err != nil || !real.isDir() {
					return farm.Conflictf("%s exists and is not a directory", execution.Cut(target, shownName))
				}
			}
			dirs = append(dirs, f.path)
		case err == nil && old.isDir():
			return farm.Conflictf("%s exists and is a directory", execution.Cut(target, shownName))
		default:
			others = append(others, f.path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range append([]string{"."}, dirs...) {
		if err := mkdirAll(top, path.Join(to, name)); err != nil {
			return Problem(err, path.Join(to, name))
		}
	}
	for _, name := range others {
		if err := rename(staged, name, top, path.Join(to, name)); err != nil {
			return Problem(err, path.Join(to, name))
		}
	}
	return nil
}

package files

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// shownName bounds a name of an archive in an error.
const shownName = 80

// unpack is the unpacking of an archive: first into a staging directory, then into the workspace once all of it is valid.
type unpack struct {
	to    string          // target directory, relative to the workspace
	stage tree            // the staging directory
	links map[string]bool // symbolic links of the archive
}

// PutTar unpacks a tar archive under a directory, entirely or not at all.
func (w *Workspace) PutTar(p string, r io.Reader) error {
	p, err := cleanPath(p)
	if err != nil {
		return err
	}
	top, err := w.top()
	if err != nil {
		return err
	}
	defer top.close()
	if of, err := top.stat(p, true); err == nil && !of.isDir() {
		return farm.Conflictf("%s exists and is not a directory", p)
	}
	var stage tree
	name, done, err := top.stage(func(dir tree, name string) (err error) {
		if err = unix.Mkdirat(dir.fd, name, 0o700); err == nil {
			stage, err = dir.sub(name)
		}
		return err
	})
	if err != nil {
		return Problem(err, p)
	}
	defer done()
	defer stage.close()
	u := &unpack{to: p, stage: stage, links: map[string]bool{}}
	if err := u.all(r); err != nil {
		return err
	}
	return top.merge(name, p)
}

// all unpacks every member into the stage.
func (u *unpack) all(r io.Reader) error {
	source := &sourceReader{r: r}
	counted := &countReader{r: source}
	reader := tar.NewReader(counted)
	for {
		h, err := reader.Next()
		switch {
		case errors.Is(err, io.EOF) && counted.n == 0:
			return farm.Invalidf("the body is empty: a tar archive is expected")
		case errors.Is(err, io.EOF):
			return nil
		case source.err != nil:
			return farm.Wrap(source.err, farm.CodeInvalid, "the upload was interrupted")
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
func (u *unpack) member(h *tar.Header, r io.Reader) error {
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
		return u.stage.mkdirAll(name)
	case tar.TypeReg:
		return u.file(name, h, r)
	case tar.TypeSymlink:
		return u.link(name, h.Linkname)
	}
	return farm.Invalidf("the tar archive contains %q, which is neither a file, a directory nor a symbolic link", execution.Cut(h.Name, shownName))
}

func (u *unpack) file(name string, h *tar.Header, r io.Reader) error {
	var f *os.File
	if err := u.stage.in(name, false, true, func(dir tree, name string) (err error) {
		_ = unix.Unlinkat(dir.fd, name, 0) // the last member with a name wins
		f, err = dir.file(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	}); err != nil {
		return err
	}
	mode := fs.FileMode(0o644)
	if h.Mode&0o111 != 0 {
		mode = 0o755
	}
	return fill(f, mode, r)
}

// link creates a symbolic link if its target is inside the workspace.
func (u *unpack) link(name, target string) error {
	resolved := path.Join(u.to, path.Dir(name), target)
	if path.IsAbs(target) {
		resolved = strings.TrimPrefix(path.Clean(target), farm.Workspace+"/")
	}
	if target == "" || path.IsAbs(resolved) || resolved == ".." || strings.HasPrefix(resolved, "../") || strings.ContainsRune(target, 0) {
		return farm.Invalidf("the symbolic link %q in the tar archive leads out of the workspace", execution.Cut(name, shownName))
	}
	u.links[name] = true
	return u.stage.in(name, false, true, func(dir tree, name string) error { return unix.Symlinkat(target, dir.fd, name) })
}

// merge moves a staged tree into place: directories are merged, files replace files. If anything conflicts, it moves nothing.
func (t tree) merge(staged, to string) error {
	var dirs, others []string
	err := t.walk(staged, func(name string, of info) error {
		target := path.Join(to, name)
		old, err := t.stat(target, false)
		switch {
		case of.isDir():
			if err == nil && !old.isDir() {
				if real, err := t.stat(target, true); err != nil || !real.isDir() {
					return farm.Conflictf("%s exists and is not a directory", execution.Cut(target, shownName))
				}
			}
			dirs = append(dirs, name)
		case err == nil && old.isDir():
			return farm.Conflictf("%s exists and is a directory", execution.Cut(target, shownName))
		default:
			others = append(others, name)
		}
		return nil
	})
	if err != nil {
		return Problem(err, to)
	}
	if err := t.mkdirAll(to); err != nil {
		return Problem(err, to)
	}
	for _, name := range dirs {
		if err := t.mkdirAll(path.Join(to, name)); err != nil {
			return Problem(err, path.Join(to, name))
		}
	}
	for _, name := range others {
		if err := t.rename(path.Join(staged, name), path.Join(to, name)); err != nil {
			return Problem(err, path.Join(to, name))
		}
	}
	return nil
}

type countReader struct {
	r io.Reader
	n int64
}

func (c *countReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

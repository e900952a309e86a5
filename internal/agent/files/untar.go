package files

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// shownName bounds a name of an archive in an error.
const shownName = 80

// unpack is the unpacking of an archive: first into a staging directory, then into the workspace once all of it is valid.
type unpack struct {
	to    string          // target directory, relative to the workspace
	stage *os.Root        // the staging directory
	links map[string]bool // symbolic links of the archive
}

// PutTar unpacks a tar archive under a directory, entirely or not at all.
func (w *Workspace) PutTar(p string, r io.Reader) error {
	p, err := cleanPath(p)
	if err != nil {
		return err
	}
	if info, err := w.root.Stat(p); err == nil && !info.IsDir() {
		return farm.Conflictf("%s exists and is not a directory", p)
	}
	name, done, err := w.stage(func(name string) error { return w.root.Mkdir(name, 0o700) })
	if err != nil {
		return Problem(err, p)
	}
	defer done()
	stage, err := w.root.OpenRoot(name)
	if err != nil {
		return Problem(err, p)
	}
	defer func() { _ = stage.Close() }()
	u := &unpack{to: p, stage: stage, links: map[string]bool{}}
	if err := u.all(r); err != nil {
		return err
	}
	return w.merge(name, p)
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
		return u.stage.MkdirAll(name, 0o755)
	case tar.TypeReg:
		return u.file(name, h, r)
	case tar.TypeSymlink:
		return u.link(name, h.Linkname)
	}
	return farm.Invalidf("the tar archive contains %q, which is neither a file, a directory nor a symbolic link", execution.Cut(h.Name, shownName))
}

func (u *unpack) file(name string, h *tar.Header, r io.Reader) error {
	if err := u.stage.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	_ = u.stage.Remove(name) // the last member with a name wins
	f, err := u.stage.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
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
	if err := u.stage.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	u.links[name] = true
	return u.stage.Symlink(target, name)
}

// merge moves a staged tree into place: directories are merged, files replace files. If anything conflicts, it moves nothing.
func (w *Workspace) merge(staged, to string) error {
	var dirs, others []string
	err := w.walk(staged, func(name string, info fs.FileInfo) error {
		target := path.Join(to, name)
		old, err := w.root.Lstat(target)
		switch {
		case info.IsDir():
			if err == nil && !old.IsDir() {
				if real, err := w.root.Stat(target); err != nil || !real.IsDir() {
					return farm.Conflictf("%s exists and is not a directory", execution.Cut(target, shownName))
				}
			}
			dirs = append(dirs, name)
		case err == nil && old.IsDir():
			return farm.Conflictf("%s exists and is a directory", execution.Cut(target, shownName))
		default:
			others = append(others, name)
		}
		return nil
	})
	if err != nil {
		return Problem(err, to)
	}
	if err := w.root.MkdirAll(to, 0o755); err != nil {
		return Problem(err, to)
	}
	for _, name := range dirs {
		if err := w.root.MkdirAll(path.Join(to, name), 0o755); err != nil {
			return Problem(err, path.Join(to, name))
		}
	}
	for _, name := range others {
		if err := w.root.Rename(path.Join(staged, name), path.Join(to, name)); err != nil {
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

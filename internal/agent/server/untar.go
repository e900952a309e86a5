package server

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// unpack is one tar on its way into the workspace: it grows in a staging directory and is merged when all of it is there and good.
type unpack struct {
	to    string   // where it goes, relative to the workspace
	stage *os.Root // where it grows
	links map[string]bool
}

// putTar unpacks a tar under a directory: all of it or nothing.
func (s *Server) putTar(p string, r io.Reader) error {
	p, err := cleanPath(p)
	if err != nil {
		return err
	}
	if info, err := s.root.Stat(p); err == nil && !info.IsDir() {
		return farm.Conflictf("%s exists and is not a directory", p)
	}
	name, done, err := s.stage(func(name string) error { return s.root.Mkdir(name, 0o700) })
	if err != nil {
		return fileError(err, p)
	}
	defer done()
	stage, err := s.root.OpenRoot(name)
	if err != nil {
		return fileError(err, p)
	}
	defer func() { _ = stage.Close() }()
	u := &unpack{to: p, stage: stage, links: map[string]bool{}}
	if err := u.all(r); err != nil {
		return err
	}
	return s.merge(name, p)
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
			return farm.Wrap(source.err, farm.CodeInvalid, "the upload broke off")
		case err != nil:
			return farm.Wrap(err, farm.CodeInvalid, "the body is not a valid uncompressed tar archive")
		}
		if err := u.member(h, reader); err != nil {
			if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
				return farm.Wrap(err, farm.CodeInvalid, "the tar archive is cut short")
			}
			return fileError(err, short(h.Name))
		}
	}
}

// member checks and unpacks one member.
func (u *unpack) member(h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if strings.HasPrefix(h.Name, "/") {
		return farm.Invalidf("the tar archive holds the absolute name %q", short(h.Name))
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
			return farm.Invalidf("the tar archive writes through its own symbolic link %q", short(dir))
		}
	}
	if name == "." && h.Typeflag != tar.TypeDir {
		return farm.Invalidf("the tar archive holds a file without a name")
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.stage.MkdirAll(name, 0o755)
	case tar.TypeReg:
		return u.file(name, h, r)
	case tar.TypeSymlink:
		return u.link(name, h.Linkname)
	}
	return farm.Invalidf("the tar archive holds %q, which is neither a file, a directory nor a symbolic link", short(h.Name))
}

func (u *unpack) file(name string, h *tar.Header, r io.Reader) error {
	if err := u.stage.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	_ = u.stage.Remove(name) // the last member of a name counts
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

// link makes a symlink that stays in the workspace.
func (u *unpack) link(name, target string) error {
	resolved := path.Join(u.to, path.Dir(name), target)
	if path.IsAbs(target) {
		resolved = strings.TrimPrefix(path.Clean(target), farm.Workspace+"/")
	}
	if target == "" || path.IsAbs(resolved) || resolved == ".." || strings.HasPrefix(resolved, "../") || strings.ContainsRune(target, 0) {
		return farm.Invalidf("the symbolic link %q in the tar archive leads out of the workspace", short(name))
	}
	if err := u.stage.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	u.links[name] = true
	return u.stage.Symlink(target, name)
}

// merge moves a staged tree into place: directories join, files replace files. Nothing is moved when anything would clash.
func (s *Server) merge(staged, to string) error {
	var dirs, others []string
	err := s.walk(staged, func(name string, info fs.FileInfo) error {
		target := path.Join(to, name)
		old, err := s.root.Lstat(target)
		switch {
		case info.IsDir():
			if err == nil && !old.IsDir() {
				if real, err := s.root.Stat(target); err != nil || !real.IsDir() {
					return farm.Conflictf("%s exists and is not a directory", short(target))
				}
			}
			dirs = append(dirs, name)
		case err == nil && old.IsDir():
			return farm.Conflictf("%s exists and is a directory", short(target))
		default:
			others = append(others, name)
		}
		return nil
	})
	if err != nil {
		return fileError(err, to)
	}
	if err := s.root.MkdirAll(to, 0o755); err != nil {
		return fileError(err, to)
	}
	for _, name := range dirs {
		if err := s.root.MkdirAll(path.Join(to, name), 0o755); err != nil {
			return fileError(err, path.Join(to, name))
		}
	}
	for _, name := range others {
		if err := s.root.Rename(path.Join(staged, name), path.Join(to, name)); err != nil {
			return fileError(err, path.Join(to, name))
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

func short(s string) string { return cut(s, 80) }

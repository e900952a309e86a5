package files

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// entryAt answers with what is at a path, unless err says why it is not.
func entryAt(p string, err error) (any, error) {
	if err != nil {
		return nil, problem(err, p)
	}
	e, _, err := lstat(p)
	return e, problem(err, p)
}

// mkdir creates a directory and those above it. It may exist.
func (s *Server) mkdir(_ http.ResponseWriter, r *http.Request) (any, error) {
	p, err := pathOf(r, "path")
	if err != nil {
		return nil, err
	}
	mode, err := modeOf(r)
	if err != nil {
		return nil, err
	}
	if err = os.MkdirAll(p, newDir); err == nil && mode >= 0 {
		err = unix.Chmod(p, uint32(mode)) //nolint:gosec // small
	}
	return entryAt(p, err)
}

// change sets the mode of a file, or of what a link leads to, and the time of its content.
func (s *Server) change(_ http.ResponseWriter, r *http.Request) (any, error) {
	p, err := pathOf(r, "path")
	if err != nil {
		return nil, err
	}
	mode, err := modeOf(r)
	if err != nil {
		return nil, err
	}
	text := r.URL.Query().Get("modified")
	nanos, bad := strconv.ParseInt(text, 10, 64)
	if text != "" && bad != nil || text == "" && mode < 0 {
		return nil, farm.Invalidf("mode or modified is missing, or modified is no time")
	}
	if mode >= 0 {
		err = unix.Chmod(p, uint32(mode)) //nolint:gosec // small
	}
	if err == nil && text != "" {
		times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(nanos)}
		err = unix.UtimesNanoAt(unix.AT_FDCWD, p, times, 0)
	}
	return entryAt(p, err)
}

// remove removes a file, a link, or a directory with all that is in it.
func (s *Server) remove(_ http.ResponseWriter, r *http.Request) (any, error) {
	p, err := pathOf(r, "path")
	if err != nil {
		return nil, err
	}
	if mounted, err := isMountPoint(p); err != nil || mounted {
		if err == nil {
			err = unix.EBUSY
		}
		return nil, problem(err, p)
	}
	return struct{}{}, problem(os.RemoveAll(p), p)
}

// isMountPoint reports whether a path is the top of a file system.
func isMountPoint(p string) (bool, error) {
	_, st, err := lstat(p)
	if err != nil {
		return false, err
	}
	_, above, err := lstat(filepath.Dir(p))
	return err == nil && (p == "/" || isDir(&st) && isDir(&above) && st.Dev != above.Dev), nil
}

// fromTo reads both paths of a change, and prepares the place of the new one.
func fromTo(r *http.Request) (from, to string, err error) {
	if from, err = pathOf(r, "from"); err != nil {
		return "", "", err
	}
	if to, err = pathOf(r, "to"); err != nil {
		return "", "", err
	}
	if _, _, err := lstat(from); err != nil {
		return "", "", problem(err, from)
	}
	if to == from {
		return from, to, nil
	}
	if strings.HasPrefix(to, strings.TrimSuffix(from, "/")+"/") {
		return "", "", farm.Invalidf("%s would be put into itself", farm.Shorten(from))
	}
	if _, st, err := lstat(to); err == nil && isDir(&st) {
		return "", "", farm.Conflictf("%s exists and is a directory", farm.Shorten(to))
	}
	return from, to, problem(os.MkdirAll(filepath.Dir(to), newDir), to)
}

// move renames a file or a directory, also to another file system. It replaces a file, but no directory.
func (s *Server) move(_ http.ResponseWriter, r *http.Request) (any, error) {
	from, to, err := fromTo(r)
	if err != nil || from == to {
		return entryAt(to, err)
	}
	err = os.Rename(from, to)
	if errors.Is(err, unix.EXDEV) {
		if err = replicate(r.Context(), from, to); err == nil {
			return entryAt(to, os.RemoveAll(from))
		}
	}
	return entryAt(to, err)
}

// copy copies a file, a link, or a directory with all that is in it. It replaces a file, but no directory.
func (s *Server) copy(_ http.ResponseWriter, r *http.Request) (any, error) {
	from, to, err := fromTo(r)
	if err != nil {
		return nil, err
	}
	if from == to {
		return nil, farm.Invalidf("%s would be copied onto itself", farm.Shorten(from))
	}
	return entryAt(to, replicate(r.Context(), from, to))
}

// replicate copies aside and renames the copy, so that to is there complete or not at all.
func replicate(ctx context.Context, from, to string) error {
	temp := aside(to)
	err := (&copier{ctx: ctx, aside: temp}).one(from, temp)
	if err == nil {
		err = os.Rename(temp, to)
	}
	if err != nil {
		_ = os.RemoveAll(temp)
	}
	return err
}

type copier struct {
	ctx   context.Context // of the request
	aside string          // the copy itself, which may lie in what is copied
}

// one copies what is at a path, which may be a tree. Sockets, devices and pipes are left out.
func (c *copier) one(from, to string) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	_, st, err := lstat(from)
	if err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		err = c.file(from, to, &st)
	case unix.S_IFLNK:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case unix.S_IFDIR:
		err = c.dir(from, to, &st)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, to, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

func (c *copier) file(from, to string, st *unix.Stat_t) error {
	in, _, err := open(from, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, _, err := open(to, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err == nil {
		err = unix.Fchmod(int(out.Fd()), st.Mode&farm.MaxMode) //nolint:gosec // a descriptor is small
	}
	return errors.Join(err, out.Close())
}

func (c *copier) dir(from, to string, st *unix.Stat_t) error {
	names, err := namesIn(from)
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for _, name := range names {
		below := filepath.Join(from, name)
		if below == c.aside {
			continue
		}
		if err := c.one(below, filepath.Join(to, name)); err != nil && !errors.Is(err, unix.ENOENT) { // it vanished
			return err
		}
	}
	return unix.Chmod(to, st.Mode&farm.MaxMode)
}

// link makes a symbolic link. Its target may be anything, also nothing.
func (s *Server) link(_ http.ResponseWriter, r *http.Request) (any, error) {
	p, err := pathOf(r, "path")
	if err != nil {
		return nil, err
	}
	target := r.URL.Query().Get("target")
	if target == "" || len(target) > farm.MaxLinkTarget || strings.ContainsRune(target, 0) || !utf8.ValidString(target) {
		return nil, farm.Invalidf("target has 1 to %d bytes, in UTF-8 and without NUL", farm.MaxLinkTarget)
	}
	err = os.MkdirAll(filepath.Dir(p), newDir)
	if err == nil {
		err = os.Symlink(target, p)
	}
	return entryAt(p, err)
}

// unpack unpacks the body, a tar, into a directory, which is created: all of it, or nothing.
func (s *Server) unpack(_ http.ResponseWriter, r *http.Request) (any, error) {
	p, err := pathOf(r, "path")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(p, newDir); err != nil {
		return nil, problem(err, p)
	}
	dir, err := At(p)
	if err != nil {
		return nil, problem(err, p)
	}
	defer func() { _ = dir.Close() }()
	if err := dir.PutTar(".", r.Body); err != nil {
		return nil, problem(err, p)
	}
	_, _ = io.Copy(io.Discard, r.Body) // padding after the end of the archive
	return entryAt(p, nil)
}

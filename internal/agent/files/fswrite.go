package files

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// asidePrefix and asideSuffix mark what is being written aside. Watches do not tell of it.
	asidePrefix, asideSuffix = ".sandfarm-", ".part"
	newFile, newDir          = 0o644, 0o755
)

// isAside reports whether a name is one that is written aside.
func isAside(name string) bool {
	return strings.HasPrefix(name, asidePrefix) && strings.HasSuffix(name, asideSuffix)
}

// aside is a free name beside a path, on the same file system.
func aside(p string) string {
	return filepath.Join(filepath.Dir(p), asidePrefix+rand.Text()+asideSuffix)
}

// write writes the body to a file and creates the directories above it.
func (s *Server) write(_ http.ResponseWriter, r *http.Request) (any, error) {
	p, err := pathOf(r, "path")
	if err != nil {
		return nil, err
	}
	query := r.URL.Query()
	how := farm.FSWrite{How: farm.FSHow(query.Get("how")), Match: query.Get("match"), NoMatch: query.Get("nomatch")}
	if how.Mode, err = modeOf(r); err != nil {
		return nil, err
	}
	if how.Offset, err = number(r, "offset", 0); err != nil {
		return nil, err
	}
	if text := query.Get("metadata"); text != "" {
		if json.Unmarshal([]byte(text), &how.Metadata) != nil || farm.CheckMetadata(how.Metadata) != nil || how.How != farm.FSOverwrite {
			return nil, farm.Invalidf("metadata is not that of a file that is overwritten")
		}
	}
	p, err = throughLinks(p)
	if err != nil {
		return nil, problem(err, p)
	}
	body := &sourceReader{r: r.Body}
	switch how.How {
	case farm.FSReplace:
		err = s.replace(p, how, body)
	case farm.FSAppend, farm.FSAt, farm.FSOverwrite:
		err = s.writeInPlace(p, how, body)
	default:
		err = farm.Invalidf("how is none of replace, append, at and overwrite")
	}
	if body.err != nil {
		err = farm.Wrap(body.err, farm.CodeInvalid, "the upload was interrupted")
	}
	if err != nil {
		return nil, problem(err, p)
	}
	e, _, err := lstat(p)
	return e, problem(err, p)
}

// throughLinks follows the links at the end of a path, so that what they lead to is written and not they are replaced.
func throughLinks(p string) (string, error) {
	for range maxLinks {
		target, err := os.Readlink(p)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT): // not a link, or nothing yet
			return p, nil
		case err != nil:
			return p, err
		case filepath.IsAbs(target):
			p = target
		default:
			p = filepath.Join(filepath.Dir(p), target)
		}
	}
	return p, unix.ELOOP
}

// check compares what is at a path with the conditions of a write, and returns it; nil: nothing.
func check(p string, how farm.FSWrite) (*unix.Stat_t, error) {
	e, st, err := lstat(p)
	there := err == nil
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	switch {
	case how.Match == "*" && !there:
		return nil, unmet("%s does not exist", p)
	case how.Match != "" && how.Match != "*" && (!there || e.ETag != how.Match):
		return nil, unmet("%s is not the version that If-Match names", p)
	case how.NoMatch == "*" && there:
		return nil, unmet("%s exists", p)
	case how.NoMatch != "" && how.NoMatch != "*" && there && e.ETag == how.NoMatch:
		return nil, unmet("%s is the version that If-None-Match names", p)
	case !there:
		return nil, nil // nothing is there
	case isDir(&st):
		return nil, unix.EISDIR
	case !isRegular(&st):
		return nil, farm.Invalidf("%s is not a regular file", farm.Shorten(p))
	}
	return &st, nil
}

// unmet says that a condition of a write does not hold.
func unmet(format, p string) error {
	return farm.Conflictf(farm.UnmetPrefix+format, farm.Shorten(p))
}

// replace writes a file aside and renames it. Conditions hold at the rename against all other callers; against the sandbox's own programs only
// the one that there is no file.
func (s *Server) replace(p string, how farm.FSWrite, body io.Reader) error {
	old, err := check(p, how)
	if err != nil {
		return err
	}
	mode := how.Mode
	switch {
	case mode >= 0:
	case old != nil:
		mode = int(old.Mode & farm.MaxMode)
	default:
		mode = newFile
	}
	if err := os.MkdirAll(filepath.Dir(p), newDir); err != nil {
		return err
	}
	temp := aside(p)
	f, _, err := open(temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, body)
	if err == nil {
		err = unix.Fchmod(int(f.Fd()), uint32(mode)) //nolint:gosec // both are small
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = s.moveInto(temp, p, how)
	}
	if err != nil {
		_ = os.Remove(temp)
	}
	return err
}

// moveInto renames what was written aside, if the conditions hold.
func (s *Server) moveInto(temp, p string, how farm.FSWrite) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if how.NoMatch == "*" {
		err := unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, p, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EEXIST) {
			return unmet("%s exists", p)
		}
		return err
	}
	if _, err := check(p, how); err != nil {
		return err
	}
	return os.Rename(temp, p)
}

// writeInPlace writes into a file, which it creates if it is missing.
func (s *Server) writeInPlace(p string, how farm.FSWrite, body io.Reader) error {
	s.writing.Lock() // only while it is opened: the body may take long
	f, err := func() (*os.File, error) {
		defer s.writing.Unlock()
		old, err := check(p, how)
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(filepath.Dir(p), newDir); err != nil {
			return nil, err
		}
		flags, mode := unix.O_WRONLY, how.Mode
		if mode < 0 {
			mode = newFile
		}
		if how.How == farm.FSAppend {
			flags |= unix.O_APPEND
		}
		if how.How == farm.FSOverwrite {
			flags |= unix.O_TRUNC
		}
		if old == nil {
			flags |= unix.O_CREAT
		}
		f, _, err := open(p, flags, uint32(mode)) //nolint:gosec // small
		if err == nil && how.Mode >= 0 {
			err = unix.Fchmod(int(f.Fd()), uint32(mode)) //nolint:gosec // both are small
		}
		if err == nil && how.Metadata != nil {
			err = setMetadata(f, how.Metadata)
		}
		return f, err
	}()
	if err != nil {
		if f != nil {
			_ = f.Close()
		}
		return err
	}
	if how.How == farm.FSAt {
		_, err = f.Seek(how.Offset, io.SeekStart)
	}
	if err == nil {
		_, err = io.Copy(f, body)
	}
	return errors.Join(err, f.Close())
}

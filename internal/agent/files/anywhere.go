package files

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
)

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
	if err = mkdirAll(anywhere{}, p); err == nil && mode >= 0 {
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
	return struct{}{}, Problem(remove(anywhere{}, p), p)
}

// pathsOf reads both paths of a change.
func pathsOf(r *http.Request) (from, to string, err error) {
	if from, err = pathOf(r, "from"); err != nil {
		return "", "", err
	}
	to, err = pathOf(r, "to")
	return from, to, err
}

// move renames a file or a directory. It replaces a file, but no directory.
func (s *Server) move(_ http.ResponseWriter, r *http.Request) (any, error) {
	from, to, err := pathsOf(r)
	if err != nil {
		return nil, err
	}
	return entryAt(to, move(anywhere{}, from, to, r.Context().Err))
}

// copy copies a file, a link, or a directory with all that is in it. It replaces a file, but no directory.
func (s *Server) copy(_ http.ResponseWriter, r *http.Request) (any, error) {
	from, to, err := pathsOf(r)
	if err == nil {
		err = fromTo(anywhere{}, from, to)
	}
	if err != nil {
		return nil, err
	}
	if from == to {
		return nil, farm.Invalidf("%s would be copied onto itself", farm.Shorten(from))
	}
	return entryAt(to, replicate(anywhere{}, from, to, r.Context().Err))
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
	return entryAt(p, in(anywhere{}, p, false, true, func(dir tree, name string) error { return unix.Symlinkat(target, dir.fd, name) }))
}

// unpack unpacks the body, a tar, into a directory, which is created: all of it, or nothing.
func (s *Server) unpack(_ http.ResponseWriter, r *http.Request) (any, error) {
	p, err := pathOf(r, "path")
	if err != nil {
		return nil, err
	}
	if err := mkdirAll(anywhere{}, p); err != nil {
		return nil, Problem(err, p)
	}
	top, err := openTree(p)
	if err != nil {
		return nil, Problem(err, p)
	}
	defer top.close()
	if err := unpack(top, ".", r.Body, nil); err != nil {
		return nil, Problem(err, p)
	}
	_, _ = io.Copy(io.Discard, r.Body) // padding after the end of the archive
	return entryAt(p, nil)
}

// write writes the body to a file and creates the directories above it. It follows links at the end of the path.
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
	if p, err = throughLinks(p); err != nil {
		return nil, Problem(err, p)
	}
	switch how.How {
	case farm.FSReplace:
		err = s.replace(p, how, r.Body)
	case farm.FSAppend, farm.FSAt, farm.FSOverwrite:
		err = s.writeInPlace(p, how, r.Body)
	default:
		err = farm.Invalidf("how is none of replace, append, at and overwrite")
	}
	return entryAt(p, err)
}

// check compares what is at a path with the conditions of a write, and returns it; nil: nothing.
func check(p string, how farm.FSWrite) (*info, error) {
	of, err := stat(anywhere{}, p, false)
	there := err == nil
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	switch {
	case how.Match == "*" && !there:
		return nil, unmet("%s does not exist", p)
	case how.Match != "" && how.Match != "*" && (!there || of.etag() != how.Match):
		return nil, unmet("%s is not the version that If-Match names", p)
	case how.NoMatch == "*" && there:
		return nil, unmet("%s exists", p)
	case how.NoMatch != "" && how.NoMatch != "*" && there && of.etag() == how.NoMatch:
		return nil, unmet("%s is the version that If-None-Match names", p)
	case !there:
		return nil, nil // nothing is there
	case of.isDir():
		return nil, unix.EISDIR
	case !of.isRegular():
		return nil, farm.Invalidf("%s is not a regular file", farm.Shorten(p))
	}
	return &of, nil
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
	mode := uint32(newFile)
	switch {
	case how.Mode >= 0:
		mode = uint32(how.Mode) //nolint:gosec // small
	case old != nil:
		mode = old.st.Mode & farm.MaxMode
	}
	return in(anywhere{}, p, false, true, func(dir tree, name string) error {
		return dir.write(mode, body, func(aside tree, temp string) error {
			s.writing.Lock()
			defer s.writing.Unlock()
			if how.NoMatch == "*" {
				err := unix.Renameat2(aside.fd, temp, dir.fd, name, unix.RENAME_NOREPLACE)
				if errors.Is(err, unix.EEXIST) {
					return unmet("%s exists", p)
				}
				return err
			}
			if _, err := check(p, how); err != nil {
				return err
			}
			return unix.Renameat(aside.fd, temp, dir.fd, name)
		})
	})
}

// writeInPlace writes into a file, which it creates if it is missing.
func (s *Server) writeInPlace(p string, how farm.FSWrite, body io.Reader) error {
	f, err := s.openToWrite(p, how)
	if err != nil {
		return err
	}
	if how.How == farm.FSAt {
		_, err = f.Seek(how.Offset, io.SeekStart)
	}
	if err == nil {
		err = take(f, body)
	}
	return errors.Join(err, f.Close())
}

// openToWrite opens a file for writeInPlace if the conditions hold.
func (s *Server) openToWrite(p string, how farm.FSWrite) (*os.File, error) {
	s.writing.Lock() // only while it is opened: the body may take long
	defer s.writing.Unlock()
	old, err := check(p, how)
	if err != nil {
		return nil, err
	}
	above, _ := path.Split(p)
	if err := mkdirAll(anywhere{}, above); err != nil {
		return nil, err
	}
	flags, mode := unix.O_WRONLY, uint32(newFile)
	if how.Mode >= 0 {
		mode = uint32(how.Mode) //nolint:gosec // small
	}
	switch how.How {
	case farm.FSAppend:
		flags |= unix.O_APPEND
	case farm.FSOverwrite:
		flags |= unix.O_TRUNC
	}
	if old == nil {
		flags |= unix.O_CREAT
	}
	f, _, err := anywhere{}.file(p, flags, mode)
	if err != nil {
		return nil, err
	}
	if how.Mode >= 0 || old == nil { // also of a new file: the umask may have taken rights, and who watches sees what E2B's envd shows
		err = unix.Fchmod(int(f.Fd()), mode) //nolint:gosec // a descriptor is small
	}
	if err == nil && how.Metadata != nil {
		err = setMetadata(f, how.Metadata)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

package files

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
)


// lstat describes a file. It does not follow a link.
func lstat(p string) (farm.FSEntry, unix.Stat_t, error) {
	var st unix.Stat_t
	for {
		err := unix.Lstat(p, &st)
		if err == unix.EINTR { //nolint:errorlint // an errno
			continue
		}
		if err != nil {
			return farm.FSEntry{}, st, &os.PathError{Op: "lstat", Path: p, Err: err}
		}
		e := describe(p, &st)
		e.Metadata = metadataOf(p)
		return e, st, nil
	}
}

func describe(p string, st *unix.Stat_t) farm.FSEntry {
	e := farm.FSEntry{
		Path: p, Type: "other", Mode: fmt.Sprintf("%04o", st.Mode&farm.MaxMode), UID: int(st.Uid), GID: int(st.Gid), ETag: etag(st),
		ModifiedAt: time.Unix(min(max(st.Mtim.Sec, firstSecond), lastSecond), st.Mtim.Nsec).UTC(),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Type, e.Size = "file", st.Size
	case unix.S_IFDIR:
		e.Type = "dir"
	case unix.S_IFLNK:
		e.Type = "symlink"
		if target, err := os.Readlink(p); err == nil && utf8.ValidString(target) {
			e.Target = target
		}
	}
	return e
}

// etag names a version of a file: another inode, or another time of its last change, is another version.
func etag(st *unix.Stat_t) string {
	var b strings.Builder
	for i, n := range []int64{int64(st.Ino), st.Size, st.Ctim.Sec, st.Ctim.Nsec, st.Mtim.Sec, st.Mtim.Nsec} { //nolint:gosec // bits only
		if i > 0 {
			b.WriteByte('-')
		}
		b.WriteString(strconv.FormatUint(uint64(n), 36)) //nolint:gosec // bits only
	}
	return b.String()
}

// isRegular reports whether a file is a regular one.
func isRegular(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFREG }

func isDir(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// open opens a regular file. It waits for no other end of a pipe, and makes no terminal the process's own.
func open(p string, flags int, mode uint32) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := unix.Open(p, flags|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, st, &os.PathError{Op: "open", Path: p, Err: err}
	}
	if err = unix.Fstat(fd, &st); err == nil {
		switch {
		case isDir(&st):
			err = unix.EISDIR
		case !isRegular(&st):
			err = farm.Invalidf("%s is not a regular file", farm.Shorten(p))
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, st, err
	}
	return os.NewFile(uintptr(fd), p), st, nil //nolint:gosec // a descriptor is small
}

package files

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// info is what the kernel says about a file.
type info struct {
	st unix.Stat_t
}

func (i *info) isDir() bool     { return i.st.Mode&unix.S_IFMT == unix.S_IFDIR }
func (i *info) isRegular() bool { return i.st.Mode&unix.S_IFMT == unix.S_IFREG }
func (i *info) isLink() bool    { return i.st.Mode&unix.S_IFMT == unix.S_IFLNK }

func (i *info) perm() fs.FileMode { return fs.FileMode(i.st.Mode) & fs.ModePerm }

// firstSecond and lastSecond are the beginning of the year 1 and the end of the year 9999: JSON's form of a time has no others.
const firstSecond, lastSecond = -62135596800, 253402300799

// modTime is the time of the last change, in the years that JSON and archives can express: code may set any.
func (i *info) modTime() time.Time {
	return time.Unix(min(max(i.st.Mtim.Sec, firstSecond), lastSecond), i.st.Mtim.Nsec)
}

// kind is the type of an entry, and size its bytes.
func (i *info) kind() (kind string, size int64) {
	switch {
	case i.isRegular():
		return "file", i.st.Size
	case i.isDir():
		return "dir", 0
	case i.isLink():
		return "symlink", 0
	}
	return "other", 0
}

// workEntry describes a file of the workspace.
func (i *info) workEntry(p string) farm.FileEntry {
	kind, size := i.kind()
	return farm.FileEntry{Path: p, Type: kind, Size: size, Mode: fmt.Sprintf("%04o", i.perm()), ModifiedAt: i.modTime().UTC()}
}

// entry describes a file anywhere, without what only a further call of the kernel tells.
func (i *info) entry(p string) farm.FSEntry {
	kind, size := i.kind()
	e := farm.FSEntry{
		Path: p, Type: kind, Size: size, Mode: fmt.Sprintf("%04o", i.st.Mode&farm.MaxMode), UID: int(i.st.Uid), GID: int(i.st.Gid),
		ModifiedAt: i.modTime().UTC(), ETag: i.etag(),
	}
	if i.isDir() {
		e.DirSize = i.st.Size
	}
	return e
}

// etag names a version of a file: another inode, or another time of its last change, is another version.
func (i *info) etag() string {
	var b strings.Builder
	st := &i.st
	for n, v := range []int64{int64(st.Ino), st.Size, st.Ctim.Sec, st.Ctim.Nsec, st.Mtim.Sec, st.Mtim.Nsec} { //nolint:gosec // bits only
		if n > 0 {
			b.WriteByte('-')
		}
		b.WriteString(strconv.FormatUint(uint64(v), 36)) //nolint:gosec // bits only
	}
	return b.String()
}

// describe describes what has a name in a directory, whose absolute path is p, completely.
func describe(dir tree, name, p string, of info) farm.FSEntry {
	e := of.entry(p)
	if of.isLink() {
		if target, err := dir.readlink(name); err == nil && utf8.ValidString(target) {
			e.Target = target
		}
	}
	e.Metadata = metadataOf(p)
	return e
}

// entryAt describes what is at an absolute path, unless err says why it is not.
func entryAt(p string, err error) (e farm.FSEntry, _ error) {
	if err == nil {
		err = in(anywhere{}, p, false, false, func(dir tree, name string) error {
			of, err := dir.lstat(name)
			if err == nil {
				e = describe(dir, name, path.Clean(p), of)
			}
			return err
		})
	}
	return e, Problem(err, p)
}

// reasons say what an error of the kernel means, and which code it has.
var reasons = map[syscall.Errno]struct {
	code farm.Code
	text string
}{
	unix.ENOENT:       {farm.CodeNotFound, "%s does not exist"},
	unix.EACCES:       {farm.CodeInvalid, "the sandbox's user has no permission for %s"},
	unix.EPERM:        {farm.CodeInvalid, "the sandbox's user is not allowed to do this to %s"},
	unix.EROFS:        {farm.CodeInvalid, "%s is on a file system that cannot be written"},
	unix.ENOSPC:       {farm.CodeTooLarge, "there is no space left for %s: delete files, or create a sandbox with more disk_mb"},
	unix.EDQUOT:       {farm.CodeTooLarge, "there is no space left for %s: delete files, or create a sandbox with more disk_mb"},
	unix.EFBIG:        {farm.CodeTooLarge, "%s would be larger than a file may be"},
	unix.EISDIR:       {farm.CodeConflict, "%s is a directory"},
	unix.ENOTDIR:      {farm.CodeConflict, "%s, or something above it, is not a directory"},
	unix.EEXIST:       {farm.CodeConflict, "%s exists"},
	unix.ENOTEMPTY:    {farm.CodeConflict, "%s is a directory that is not empty"},
	unix.EBUSY:        {farm.CodeConflict, "%s is in use, or a mount point"},
	unix.ETXTBSY:      {farm.CodeConflict, "%s is a program that runs"},
	unix.ELOOP:        {farm.CodeInvalid, "%s leads through too many symbolic links"},
	unix.EXDEV:        {farm.CodeInvalid, "%s is on another file system"},
	unix.EINVAL:       {farm.CodeInvalid, "%s does not support this, or is not a valid name there"},
	unix.ENAMETOOLONG: {farm.CodeInvalid, "%s is too long"},
	unix.ENXIO:        {farm.CodeInvalid, "%s is not a regular file"},
	unix.ENOMEM:       {farm.CodeExhausted, "the sandbox has no memory for %s"},
	unix.EMFILE:       {farm.CodeTooLarge, "%s is nested too deeply for this; use a shell command instead"}, // one descriptor for each level
	unix.ENFILE:       {farm.CodeTooLarge, "%s is nested too deeply for this; use a shell command instead"},
}

// Problem converts an error of the file system to one with a code and a sentence for the caller.
func Problem(err error, p string) error {
	if err == nil || farm.CodeOf(err) != farm.CodeInternal {
		return err
	}
	if errors.Is(err, errEscapes) {
		return farm.Wrap(err, farm.CodeInvalid, "%s leads out of the workspace, or of the directory that is unpacked into", farm.Shorten(p))
	}
	errno, _ := errors.AsType[syscall.Errno](err)
	known, ok := reasons[errno]
	if !ok {
		return fmt.Errorf("use %s: %w", farm.Shorten(p), err)
	}
	return farm.Wrap(err, known.code, known.text, farm.Shorten(p))
}

// named begins the message of an error with the kernel's name of it, if it has one.
func named(err error) string {
	text := farm.MessageOf(err)
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		text = unix.ErrnoName(errno) + ": " + text
	}
	return text
}

const (
	// maxNames bounds the names of a file's extended attributes, in bytes, as Linux does.
	maxNames = 64 << 10
	// smallNames is what suffices for those of nearly every file.
	smallNames = 512
)

// metadataOf reads the metadata of a file, without following a link. What is not metadata that callers could set is left out.
func metadataOf(p string) map[string]string {
	var out map[string]string
	value := make([]byte, farm.MaxMetadataValue+1)
	for _, name := range attributes(func(to []byte) (int, error) { return unix.Llistxattr(p, to) }) {
		n, err := unix.Lgetxattr(p, name, value)
		if err != nil { // it has more, or is gone
			continue
		}
		one := map[string]string{strings.TrimPrefix(name, farm.MetadataPrefix): strings.TrimSuffix(string(value[:n]), "\x00")}
		if farm.CheckMetadata(one) != nil {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		for key, text := range one {
			out[key] = text
		}
		if len(out) == farm.MaxMetadata {
			break
		}
	}
	return out
}

// attributes are the names of the extended attributes that are metadata; none where there are no attributes.
func attributes(list func([]byte) (int, error)) []string {
	names := make([]byte, smallNames)
	n, err := list(names)
	if errors.Is(err, unix.ERANGE) {
		names = make([]byte, maxNames)
		n, err = list(names)
	}
	if err != nil {
		return nil
	}
	var out []string
	for name := range bytes.SplitSeq(names[:n], []byte{0}) {
		if bytes.HasPrefix(name, []byte(farm.MetadataPrefix)) {
			out = append(out, string(name))
		}
	}
	return out
}

// setMetadata replaces the metadata of a file.
func setMetadata(f *os.File, metadata map[string]string) error {
	fd := int(f.Fd()) //nolint:gosec // a descriptor is small
	for _, name := range attributes(func(to []byte) (int, error) { return unix.Flistxattr(fd, to) }) {
		if _, kept := metadata[strings.TrimPrefix(name, farm.MetadataPrefix)]; !kept {
			if err := unix.Fremovexattr(fd, name); err != nil && !errors.Is(err, unix.ENODATA) {
				return err
			}
		}
	}
	for key, value := range metadata {
		if len(value)%8 == 4 { // a sandbox may set none of such a length, which an access control list has
			value += "\x00"
		}
		err := unix.Fsetxattr(fd, farm.MetadataPrefix+key, []byte(value), 0)
		switch {
		case errors.Is(err, unix.ENOTSUP):
			return farm.Invalidf("%s is on a file system that keeps no metadata (extended attributes)", farm.Shorten(f.Name()))
		case err != nil:
			return err
		}
	}
	return nil
}

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
)

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
	unix.EINVAL:       {farm.CodeInvalid, "%s does not support this"},
	unix.ENAMETOOLONG: {farm.CodeInvalid, "%s is too long"},
	unix.ENXIO:        {farm.CodeInvalid, "%s is not a regular file"},
	unix.EMFILE:       {farm.CodeExhausted, "too many files are open for %s: try again"},
	unix.ENOMEM:       {farm.CodeExhausted, "the sandbox has no memory for %s"},
}

// problem converts an error of the file system to one with a code, whose message begins with the kernel's name of the error.
func problem(err error, p string) error {
	if err == nil || farm.CodeOf(err) != farm.CodeInternal {
		return err
	}
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		for kind, number := range map[error]syscall.Errno{fs.ErrNotExist: unix.ENOENT, fs.ErrExist: unix.EEXIST, fs.ErrPermission: unix.EACCES} {
			if errors.Is(err, kind) {
				errno = number
			}
		}
	}
	known, ok := reasons[errno]
	if !ok {
		return fmt.Errorf("use %s: %w", farm.Shorten(p), err)
	}
	return farm.Wrap(err, known.code, "%s: "+known.text, unix.ErrnoName(errno), farm.Shorten(p))
}

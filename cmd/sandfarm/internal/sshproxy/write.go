package sshproxy

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"time"

	"github.com/pkg/sftp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

// newMode are the permissions of a file whose client says nothing.
const newMode = 0o644

// upload is a file that is being written. sftp writes its parts in any order, so it is collected here and sent when it is closed: in the sandbox
// the file is the old one or the new one, never a part.
type upload struct {
	*os.File
	files *files
	path  string
	mode  string // before it is set
	set   wire.FSChange
}

// Filewrite opens a file to write it.
func (f *files) Filewrite(r *sftp.Request) (io.WriterAt, error) {
	flags := r.Pflags()
	have, err := f.stat(r.Filepath, true)
	there := err == nil
	switch {
	case !there && !errors.Is(err, sftp.ErrSSHFxNoSuchFile):
		return nil, err
	case !there && !flags.Creat:
		return nil, err
	case there && flags.Creat && flags.Excl:
		return nil, fmt.Errorf("%s exists: %w", r.Filepath, sftp.ErrSSHFxFailure)
	case there && have.Type != "file":
		return nil, fmt.Errorf("%s is not a file: %w", r.Filepath, sftp.ErrSSHFxFailure)
	case !there:
		if above, err := f.stat(path.Dir(r.Filepath), true); err != nil || above.Type != "dir" {
			return nil, fmt.Errorf("%s is not a directory: %w", path.Dir(r.Filepath), sftp.ErrSSHFxNoSuchFile)
		}
	}
	u := &upload{files: f, path: r.Filepath, mode: have.Mode}
	if !there {
		u.set.Mode = octal(newMode)
		if mode, ok := openMode(r); ok {
			u.set.Mode = mode
		}
	}
	if u.File, err = os.CreateTemp("", "sandfarm-upload-*"); err != nil {
		return nil, err
	}
	if there && !flags.Trunc {
		if err := u.fetch(); err != nil {
			u.discard()
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.uploads[r.Filepath] != nil {
		u.discard()
		return nil, fmt.Errorf("%s is being written: %w", r.Filepath, sftp.ErrSSHFxFailure)
	}
	f.uploads[r.Filepath] = u
	return u, nil
}

// openMode reads the permissions of an open. The package does not say which attributes there are; OpenSSH sends these alone.
func openMode(r *sftp.Request) (mode string, ok bool) {
	if len(r.Attrs) != 4 {
		return "", false
	}
	a := r.Attrs
	return octal(uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])), true
}

// fetch copies the file as it is, for an open that keeps it.
func (u *upload) fetch() error {
	content, err := u.files.fs.Open(u.files.ctx, u.path)
	if err != nil {
		return failure(err)
	}
	defer content.Close()
	if _, err = u.files.copy(u.File, content); err != nil {
		return fmt.Errorf("fetch %s: %w", u.path, err)
	}
	return nil
}

// Close sends the file.
func (u *upload) Close() error {
	u.files.mu.Lock()
	delete(u.files.uploads, u.path)
	u.files.mu.Unlock()
	defer u.discard()
	if _, err := u.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if _, err := u.files.fs.Write(u.files.ctx, u.path, u.File, client.WriteIf{Mode: u.set.Mode}); err != nil {
		return failure(err)
	}
	if u.set.ModifiedAt == nil {
		return nil
	}
	_, err := u.files.fs.Change(u.files.ctx, u.path, wire.FSChange{ModifiedAt: u.set.ModifiedAt})
	return failure(err)
}

func (u *upload) discard() {
	_ = u.File.Close()
	_ = os.Remove(u.File.Name())
}

// change keeps what the file shall be when it is closed.
func (u *upload) change(flags sftp.FileAttrFlags, to *sftp.FileStat) error {
	if flags.Size {
		if err := u.Truncate(int64(to.Size)); err != nil { //nolint:gosec // a length beyond it fails
			return err
		}
	}
	if flags.Permissions {
		u.set.Mode = octal(to.Mode)
	}
	if flags.Acmodtime {
		at := to.ModTime()
		u.set.ModifiedAt = &at
	}
	return nil
}

// truncate sets the length of a file that is not open.
func (f *files) truncate(name string, size int64) error {
	content := io.Reader(zeros{})
	if size > 0 {
		open, err := f.fs.OpenAt(f.ctx, name, 0, size)
		if err != nil {
			return failure(err)
		}
		defer open.Close()
		content = io.LimitReader(io.MultiReader(open, zeros{}), size)
	} else {
		content = io.LimitReader(content, 0)
	}
	_, err := f.fs.Write(f.ctx, name, content, client.WriteIf{})
	return failure(err)
}

// zeros reads zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// The open file describes itself until it is closed.

// Name implements fs.FileInfo.
func (u *upload) Name() string { return path.Base(u.path) }

// Size implements fs.FileInfo.
func (u *upload) Size() int64 {
	info, err := u.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

// Mode implements fs.FileInfo.
func (u *upload) Mode() fs.FileMode {
	bits, _ := strconv.ParseUint(cmp.Or(u.set.Mode, u.mode), 8, 32)
	return fs.FileMode(bits) & fs.ModePerm
}

// ModTime implements fs.FileInfo.
func (u *upload) ModTime() time.Time { return time.Now() }

// IsDir implements fs.FileInfo.
func (u *upload) IsDir() bool { return false }

// Sys implements fs.FileInfo.
func (u *upload) Sys() any { return nil }

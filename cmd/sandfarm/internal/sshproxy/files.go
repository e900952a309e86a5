package sshproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/pkg/sftp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
)

const (
	// startDirectory is where relative paths begin.
	startDirectory = "/workspace"
	// maxLinks is how many links are followed for one path.
	maxLinks = 40
)

// serveFiles serves sftp over the channel until the client leaves, and returns the exit code.
func (s *session) serveFiles(ctx context.Context) int {
	f := &files{fs: s.Client.FS(s.Sandbox), copy: s.Copy, ctx: ctx, uploads: map[string]*upload{}}
	defer f.drop()
	served := sftp.NewRequestServer(s.channel, sftp.Handlers{FileGet: f, FilePut: f, FileCmd: f, FileList: f}, sftp.WithStartDirectory(startDirectory))
	if err := served.Serve(); err != nil && !errors.Is(err, io.EOF) {
		return failedCode
	}
	return 0
}

// files are the files of a sandbox, as sftp asks for them.
type files struct {
	fs   *client.FS
	copy func(io.Writer, io.Reader) (int64, error) // see Config
	ctx  context.Context                           // of the session; the requests of a handle end with its open

	mu      sync.Mutex
	uploads map[string]*upload // that are open, by path
}

// drop removes what uploads that were not closed have left here.
func (f *files) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, u := range f.uploads {
		u.discard()
	}
}

// failure is an error as sftp has it: with the farm's sentence.
func failure(err error) error {
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		return err
	}
	message := e.Detail
	if message == "" {
		message = e.Error()
	}
	switch {
	case e.Code == "not_found":
		return fmt.Errorf("%s: %w", message, sftp.ErrSSHFxNoSuchFile)
	case hasName(message, "EACCES"), hasName(message, "EPERM"), hasName(message, "EROFS"), e.Code == "unauthorized":
		return fmt.Errorf("%s: %w", message, sftp.ErrSSHFxPermissionDenied)
	}
	return errors.New(message)
}

// hasName reports whether a sentence of the farm begins with the kernel's name of an error.
func hasName(message, name string) bool {
	return len(message) > len(name) && message[:len(name)+1] == name+":"
}

// Filelist lists a directory, or describes a file or what a link leads to.
func (f *files) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	if r.Method != "List" {
		return f.describe(r.Filepath, true)
	}
	found, err := f.fs.List(f.ctx, r.Filepath, 1)
	if err != nil {
		return nil, failure(err)
	}
	out := make(listing, 0, len(found))
	for _, e := range found {
		if e.Path != r.Filepath {
			out = append(out, entry{e})
		}
	}
	return out, nil
}

// Lstat describes a file, and follows no link.
func (f *files) Lstat(r *sftp.Request) (sftp.ListerAt, error) { return f.describe(r.Filepath, false) }

func (f *files) describe(name string, follow bool) (sftp.ListerAt, error) {
	f.mu.Lock()
	u := f.uploads[name]
	f.mu.Unlock()
	if u != nil {
		return listing{u}, nil
	}
	e, err := f.stat(name, follow)
	if err != nil {
		return nil, err
	}
	return listing{entry{e}}, nil
}

func (f *files) stat(name string, follow bool) (wire.FSEntry, error) {
	at := name
	for range maxLinks {
		e, err := f.fs.Stat(f.ctx, at)
		if err != nil {
			return e, failure(err)
		}
		if !follow || e.Target == nil {
			e.Path = name
			return e, nil
		}
		if at = *e.Target; !path.IsAbs(at) {
			at = path.Join(path.Dir(e.Path), at)
		}
	}
	return wire.FSEntry{}, fmt.Errorf("%s leads through too many links: %w", name, sftp.ErrSSHFxFailure)
}

// Readlink is what a link leads to, as it is written.
func (f *files) Readlink(name string) (string, error) {
	e, err := f.stat(name, false)
	if err != nil {
		return "", err
	}
	if e.Target == nil {
		return "", fmt.Errorf("%s is no link: %w", name, sftp.ErrSSHFxFailure)
	}
	return *e.Target, nil
}

// Filecmd changes files.
func (f *files) Filecmd(r *sftp.Request) error {
	switch r.Method {
	case "Setstat":
		return f.change(r)
	case "Rename": // which never replaces anything
		if _, err := f.fs.Stat(f.ctx, r.Target); err == nil {
			return fmt.Errorf("%s exists: %w", r.Target, sftp.ErrSSHFxFailure)
		}
		return f.PosixRename(r)
	case "Mkdir":
		if _, err := f.fs.Stat(f.ctx, r.Filepath); err == nil {
			return fmt.Errorf("%s exists: %w", r.Filepath, sftp.ErrSSHFxFailure)
		}
		return failure(f.fs.Mkdir(f.ctx, r.Filepath))
	case "Rmdir":
		return f.rmdir(r.Filepath)
	case "Remove":
		e, err := f.stat(r.Filepath, false)
		if err == nil && e.Type == "dir" {
			err = fmt.Errorf("%s is a directory: %w", r.Filepath, sftp.ErrSSHFxFailure)
		}
		if err != nil {
			return err
		}
		return failure(f.fs.Remove(f.ctx, r.Filepath))
	case "Symlink":
		_, err := f.fs.Symlink(f.ctx, r.Filepath, r.Target)
		return failure(err)
	default:
		return sftp.ErrSSHFxOpUnsupported
	}
}

// PosixRename renames, and replaces what has the name.
func (f *files) PosixRename(r *sftp.Request) error {
	_, err := f.fs.Move(f.ctx, r.Filepath, r.Target)
	return failure(err)
}

// rmdir removes an empty directory. The farm would remove one with all that is in it.
func (f *files) rmdir(name string) error {
	found, err := f.fs.List(f.ctx, name, 1)
	switch {
	case err != nil:
		return failure(err)
	case len(found) > 1 || len(found) == 1 && found[0].Path != name:
		return fmt.Errorf("%s is not an empty directory: %w", name, sftp.ErrSSHFxFailure)
	}
	return failure(f.fs.Remove(f.ctx, name))
}

// change sets permissions, times and length. Of owners only the own one could be set.
func (f *files) change(r *sftp.Request) error {
	flags, to := r.AttrFlags(), r.Attributes()
	f.mu.Lock()
	u := f.uploads[r.Filepath]
	f.mu.Unlock()
	if u != nil {
		return u.change(flags, to)
	}
	if flags.Size {
		if err := f.truncate(r.Filepath, int64(to.Size)); err != nil { //nolint:gosec // a length beyond it fails
			return err
		}
	}
	set := wire.FSChange{}
	if flags.Permissions {
		set.Mode = octal(to.Mode)
	}
	if flags.Acmodtime {
		at := to.ModTime()
		set.ModifiedAt = &at
	}
	if set == (wire.FSChange{}) {
		return nil
	}
	_, err := f.fs.Change(f.ctx, r.Filepath, set)
	return failure(err)
}

func octal(mode uint32) string { return strconv.FormatUint(uint64(mode&0o7777), 8) }

// entry describes a file.
type entry struct{ wire.FSEntry }

func (e entry) Name() string       { return path.Base(e.Path) }
func (e entry) Size() int64        { return e.FSEntry.Size }
func (e entry) ModTime() time.Time { return e.ModifiedAt }
func (e entry) IsDir() bool        { return e.Type == "dir" }
func (e entry) Sys() any           { return nil }
func (e entry) Uid() uint32        { return uint32(e.UID) } //nolint:gosec,revive // ids are small; sftp has this name
func (e entry) Gid() uint32        { return uint32(e.GID) } //nolint:gosec,revive // as above

func (e entry) Mode() fs.FileMode {
	bits, _ := strconv.ParseUint(e.FSEntry.Mode, 8, 32)
	mode := fs.FileMode(bits) & fs.ModePerm
	for bit, means := range map[uint64]fs.FileMode{syscall.S_ISUID: fs.ModeSetuid, syscall.S_ISGID: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if bits&bit != 0 {
			mode |= means
		}
	}
	switch e.Type {
	case "dir":
		mode |= fs.ModeDir
	case "symlink":
		mode |= fs.ModeSymlink
	case "other":
		mode |= fs.ModeIrregular
	}
	return mode
}

// listing is a list of files.
type listing []os.FileInfo

// ListAt implements sftp.ListerAt.
func (l listing) ListAt(into []os.FileInfo, offset int64) (int, error) {
	if offset >= int64(len(l)) {
		return 0, io.EOF
	}
	n := copy(into, l[offset:])
	if n < len(into) {
		return n, io.EOF
	}
	return n, nil
}

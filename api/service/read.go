package service

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// File is a file of a workspace, or a part of it. Content must be closed; it is nil if only a link was requested.
type File struct {
	Entry   wire.FileEntry
	Size    int64 // of the whole file
	Offset  int64 // where Content begins
	Length  int64 // bytes of Content
	Content io.ReadCloser
	Link    string
}

// Range is the requested part of a file. Length 0: to the end.
type Range struct{ Offset, Length int64 }

// read runs a job that changes nothing. It does not wait in the sandbox's FIFO and is not listed.
func (s *Service) read(ctx context.Context, c Call, sandboxID string, r farm.FileRequest) (Outcome, error) {
	if !farm.ValidID(farm.SandboxPrefix, sandboxID) {
		return Outcome{}, noSandbox(sandboxID)
	}
	job := s.record(c, farm.KindFile, sandboxID)
	job.Inline, job.Hidden = true, true
	if r.Op == farm.FileRead {
		r.Staged = farm.StagingOf(job.Ref()) + "read"
	}
	out, err := s.ask(ctx, c, store.Accept{Job: job, Request: &farm.Request{File: &r}})
	if err != nil {
		return out, err
	}
	out, err = s.fileOutcome(out)
	if err == nil && (out.record.Result == nil || out.record.Result.File == nil) {
		err = fmt.Errorf("read files: job %s has no result", out.Job.ID)
	}
	return out, err
}

// ask submits a job whose answer only its caller needs, and waits for its end. If the caller no longer waits, the job is canceled, also if it may
// have been accepted though its caller has not heard of it.
func (s *Service) ask(ctx context.Context, c Call, a store.Accept) (Outcome, error) {
	out, err := s.submit(ctx, c, a)
	if out.record != nil && !out.Done() || err != nil && ctx.Err() != nil {
		s.giveUp(ctx, a.Job.Ref())
	}
	if err == nil && !out.Done() {
		err = farm.Errorf(farm.CodeUnavailable, "The sandbox did not answer within %g s. Try again.", c.Wait.Seconds())
	}
	return out, err
}

// giveUp cancels a read whose caller no longer waits. If it has ended meanwhile, what it has staged is deleted.
func (s *Service) giveUp(ctx context.Context, ref farm.Ref) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	job, err := s.Submitter.Cancel(ctx, ref)
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound: // it was not accepted
	case err != nil:
		s.Logger.WarnContext(ctx, "read is not canceled", slog.String("job_id", ref.ID), slog.Any("error", err))
	case job.Result != nil && job.Result.File != nil && job.Result.File.Staged != "":
		s.forget(ctx, ref, job.Result.File.Staged)
	}
}

// FilePage chooses a part of a listing. The zero value is its first farm.MaxListedFiles entries.
type FilePage struct {
	Limit int
	After string // the last path of the page before: see FileCursor
}

// FileCursor decodes the cursor of a listing and returns the path after which the next page starts. Empty: the first page.
func FileCursor(cursor string) (after string, err error) {
	path, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || !utf8.Valid(path) || len(path) > farm.MaxPathBytes {
		return "", errors.New("read cursor: it is not one that a listing gave")
	}
	return string(path), nil
}

// ListFiles lists a directory of the workspace, or the whole tree under it, page by page.
func (s *Service) ListFiles(ctx context.Context, c Call, sandboxID, directory string, recursive bool, page FilePage) (wire.Files, error) {
	clean, err := farm.CleanPath(directory)
	if err != nil {
		return wire.Files{}, err
	}
	out, err := s.read(ctx, c, sandboxID, farm.FileRequest{Op: farm.FileList, Path: clean, Recursive: recursive, Limit: page.Limit, After: page.After})
	if err != nil {
		return wire.Files{}, err
	}
	found := out.record.Result.File
	files := wire.Files{Items: out.Job.Result.File.Entries}
	if n := len(found.Entries); found.More && n > 0 {
		files.NextCursor = wire.Cursor(base64.RawURLEncoding.EncodeToString([]byte(found.Entries[n-1].Path)))
	}
	if found.TooLong > 0 {
		files.Note = fmt.Sprintf("Files whose path has more than %d bytes or is not UTF-8 are left out, with all below them: %d here.", farm.MaxPathBytes, found.TooLong)
	}
	return files, nil
}

// StatFile describes a file or directory.
func (s *Service) StatFile(ctx context.Context, c Call, sandboxID, file string) (wire.FileEntry, error) {
	clean, err := farm.CleanPath(file)
	if err != nil {
		return wire.FileEntry{}, err
	}
	out, err := s.read(ctx, c, sandboxID, farm.FileRequest{Op: farm.FileStat, Path: clean})
	if err != nil {
		return wire.FileEntry{}, err
	}
	if len(out.Entries) == 0 {
		return wire.FileEntry{}, fmt.Errorf("stat %s: job %s has no entry", sandboxID, out.Job.ID)
	}
	return out.Entries[0], nil
}

// ReadFile reads a file, or a part of it.
func (s *Service) ReadFile(ctx context.Context, c Call, sandboxID, file string, part Range) (File, error) {
	clean, err := farm.CleanFilePath(file)
	if err != nil {
		return File{}, err
	}
	out, err := s.read(ctx, c, sandboxID, farm.FileRequest{Op: farm.FileRead, Path: clean, Offset: part.Offset, Length: part.Length})
	if err != nil {
		return File{}, err
	}
	r := out.record.Result.File
	f := File{Entry: wire.FileEntry{Path: clean}, Size: r.Size, Offset: r.Offset, Length: int64(len(r.Content))}
	if len(out.Entries) > 0 {
		f.Entry = out.Entries[0]
	}
	if r.Staged == "" {
		f.Content = io.NopCloser(bytes.NewReader(r.Content))
		return f, nil
	}
	job := out.record.Ref()
	content, info, err := s.Blobs.Get(ctx, r.Staged, 0, 0)
	if err != nil {
		s.forget(ctx, job, r.Staged)
		return File{}, fmt.Errorf("open staged file: %w", err)
	}
	f.Length = info.Size
	f.Content = &taken{
		ReadCloser: content, now: s.Now, at: s.Now(), done: func() { s.forget(ctx, job, r.Staged) },
		keep: func() error { return s.Store.KeepCopy(ctx, job, info.Size, 0) },
	}
	return f, nil
}

// LinkFile copies a file to the object store and returns a presigned link. The copy counts as stored, and the scheduler deletes it some minutes
// after the link has expired.
func (s *Service) LinkFile(ctx context.Context, c Call, sandboxID, file string) (string, error) {
	clean, err := farm.CleanFilePath(file)
	if err != nil {
		return "", err
	}
	out, err := s.read(ctx, c, sandboxID, farm.FileRequest{Op: farm.FileRead, Path: clean, Link: true})
	if err != nil {
		return "", err
	}
	r := out.record.Result.File
	if r.Staged == "" {
		return "", fmt.Errorf("link file: job %s staged nothing", out.Job.ID)
	}
	link, err := s.Blobs.Presign(ctx, r.Staged, blob.PresignOptions{
		Expiry: s.linkLife(), Filename: path.Base(clean), ContentType: mime.TypeByExtension(strings.ToLower(path.Ext(clean))), Inline: true,
	})
	if err != nil {
		return "", fmt.Errorf("link file: %w", err)
	}
	return link, nil
}

// forget deletes the copy of a file that is no longer needed, and what it counts.
func (s *Service) forget(ctx context.Context, job farm.Ref, key string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	err := s.Blobs.Delete(ctx, key)
	if err == nil {
		err = s.Store.KeepUploads(ctx, job, 0)
	}
	if err != nil {
		s.Logger.WarnContext(ctx, "copy of a file is left to the scheduler", slog.String("job_id", job.ID), slog.Any("error", err))
	}
}

// taken is the copy of a file that a caller reads: it is kept meanwhile, and deleted when it is closed.
type taken struct {
	io.ReadCloser
	now  func() time.Time
	at   time.Time // when it was last said to be in use
	keep func() error
	done func()
}

// Read reads. A slow reader says again and again that the copy is in use.
func (t *taken) Read(p []byte) (int, error) {
	if now := t.now(); now.Sub(t.at) > chargeEvery {
		if err := t.keep(); err != nil {
			return 0, err
		}
		t.at = now
	}
	return t.ReadCloser.Read(p)
}

// Close closes and deletes the object.
func (t *taken) Close() error {
	err := t.ReadCloser.Close()
	t.done()
	return err
}

// FileWait is the default wait of file routes.
func (s *Service) FileWait() time.Duration {
	return time.Duration(s.limits.WaitMaxSeconds) * time.Second
}

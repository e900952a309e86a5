package execution

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/worker/retry"
)

const (
	// inlineRead is how many bytes of a file travel in the job's record instead of the object store.
	inlineRead = 256 << 10
)

// File does a file operation in the workspace.
func (x *Runner) File(ctx context.Context, t Task) (Outcome, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer t.OnCancel(ctx, func() { stop(ErrCanceled) })()
	c, err := x.node.Connect(ctx, t.Sandbox)
	if err == nil {
		var result *farm.FileResult
		if result, err = x.fileOp(ctx, c, t); err == nil {
			return Outcome{State: farm.JobCompleted, Result: &farm.Result{File: result}}, nil
		}
	}
	if ctx.Err() != nil {
		return Outcome{}, context.Cause(ctx)
	}
	if gone, ok := x.node.Gone(ctx, t.Sandbox); ok {
		return Outcome{}, gone
	}
	return Outcome{}, err
}

func (x *Runner) fileOp(ctx context.Context, c *client.Client, t Task) (*farm.FileResult, error) {
	f := t.Request.File
	switch f.Op {
	case farm.FileList:
		list, err := c.List(ctx, f.Path, agent.ListQuery{Recursive: f.Recursive, Limit: listLimit(f.Limit), After: f.After})
		if err != nil {
			return nil, err
		}
		text := 0
		for _, e := range list.Entries {
			text += client.EntryBytes + farm.Quoted(e.Path)
		}
		return &farm.FileResult{Entries: list.Entries, More: list.More, TooLong: max(list.TooLong, 0)}, chargeList(ctx, text)
	case farm.FileStat:
		return one(c.Stat(ctx, f.Path))
	case farm.FileRead:
		return x.readFile(ctx, c, t)
	case farm.FileMkdir:
		if err := c.Mkdir(ctx, f.Path); err != nil {
			return nil, err
		}
		return one(c.Stat(ctx, f.Path))
	case farm.FileDelete:
		return &farm.FileResult{}, c.Remove(ctx, f.Path)
	case farm.FileMove:
		if err := c.Move(ctx, f.Path, f.To); err != nil {
			return nil, err
		}
		return one(c.Stat(ctx, f.To))
	case farm.FileWrite, farm.FileMany, farm.FileTar:
		return x.writeFiles(ctx, c, t)
	default:
		return nil, farm.Invalidf("unknown operation %q on files", f.Op)
	}
}

// chargeList charges the job for a list that its result is, of which it makes so many bytes of text, until the result is stored. The agent's answer was
// charged as it came: what that leaves to charge is little or nothing, and a list for which there is no memory is asked for again. A short one is not charged.
func chargeList(ctx context.Context, text int) error {
	if text <= budget.SmallBytes {
		return nil
	}
	return budget.Charge(ctx, int64(text)*resultWeight-budget.Held(ctx))
}

// listLimit is the number of entries of a page.
func listLimit(limit int) int {
	if limit <= 0 {
		return farm.MaxListedFiles
	}
	return min(limit, farm.MaxListedFiles)
}

func one(entry farm.FileEntry, err error) (*farm.FileResult, error) {
	if err != nil {
		return nil, err
	}
	return &farm.FileResult{Entries: []farm.FileEntry{entry}}, nil
}

func (x *Runner) writeFiles(ctx context.Context, c *client.Client, t Task) (*farm.FileResult, error) {
	f := t.Request.File
	result := &farm.FileResult{}
	if f.Op == farm.FileTar {
		err := x.withUpload(ctx, f.Staged, func(body io.Reader) error { return c.PutTar(ctx, f.Path, body) })
		x.removeUploads(ctx, t.Job, err, f.Staged)
		return result, err
	}
	parts := f.Parts
	if f.Op == farm.FileWrite && len(parts) == 0 {
		parts = []farm.InputFile{{Path: f.Path, Staged: f.Staged, Size: f.Size}}
	}
	var err error
	if result.Entries, err = x.writeInputs(ctx, c, t.Job.Tenant, parts); err != nil {
		return nil, err
	}
	var staged []string
	for _, part := range parts {
		if part.Staged != "" {
			staged = append(staged, part.Staged)
		}
	}
	x.removeUploads(ctx, t.Job, nil, staged...)
	return result, nil
}

// writeInputs writes files that came with a request, and describes them. Those that are stored in the request are sent together, since there may
// be thousands.
func (x *Runner) writeInputs(ctx context.Context, c *client.Client, tenant string, inputs []farm.InputFile) ([]farm.FileEntry, error) {
	var small []farm.InputFile
	for _, f := range inputs {
		if f.Staged == "" {
			small = append(small, f)
		}
	}
	together := len(small) > 1
	written := map[string]farm.FileEntry{}
	if together {
		entries, err := x.putFiles(ctx, c, tenant, small)
		if err != nil {
			return nil, fmt.Errorf("write files: %w", err)
		}
		for _, e := range entries {
			written[e.Path] = e
		}
	}
	entries := make([]farm.FileEntry, len(inputs))
	for i, f := range inputs {
		entry, ok := written[f.Path]
		var err error
		switch {
		case ok:
		case f.Staged != "":
			err = x.withUpload(ctx, f.Staged, func(body io.Reader) error {
				entry, err = c.Write(ctx, f.Path, body)
				return err
			})
		case together: // the agent does not describe what it unpacks
			entry, err = c.Stat(ctx, f.Path)
		default:
			entry, err = c.Write(ctx, f.Path, bytes.NewReader(f.Content))
		}
		if err != nil {
			return nil, fmt.Errorf("write %q: %w", f.Path, err)
		}
		entries[i] = entry
	}
	return entries, nil
}

// putFiles sends files to the agent as one tar.
func (x *Runner) putFiles(ctx context.Context, c *client.Client, tenant string, files []farm.InputFile) ([]farm.FileEntry, error) {
	ctx, hold := x.memory.With(ctx, tenant, 0) // the answer is charged as it comes
	defer hold.Release()
	r, w := io.Pipe()
	packed := make(chan struct{})
	go func() {
		defer close(packed)
		_ = w.CloseWithError(pack(w, files))
	}()
	entries, err := c.PutFiles(ctx, r, len(files))
	_ = r.Close()
	<-packed
	return entries, err
}

func pack(w io.Writer, files []farm.InputFile) error {
	to := tar.NewWriter(w)
	for _, f := range files {
		err := to.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.Path, Size: int64(len(f.Content)), Mode: 0o644})
		if err == nil {
			_, err = to.Write(f.Content)
		}
		if err != nil {
			return fmt.Errorf("pack %q: %w", f.Path, err)
		}
	}
	return to.Close()
}

// withUpload calls use with a staged upload.
func (x *Runner) withUpload(ctx context.Context, key string, use func(io.Reader) error) error {
	r, _, err := x.blobs.Get(ctx, key, 0, 0)
	if err != nil {
		return fmt.Errorf("read upload: %w", err)
	}
	return errors.Join(use(r), r.Close())
}

// removeUploads removes the staged uploads of a job, which are not needed again: they were written, or err says that they never can be. What it
// leaves the scheduler removes after the end of the job.
func (x *Runner) removeUploads(ctx context.Context, job *farm.Job, err error, keys ...string) {
	if len(keys) == 0 || farm.CodeOf(err) == farm.CodeUnavailable {
		return
	}
	err = x.blobs.Delete(ctx, keys...)
	if err == nil {
		err = x.store.KeepUploads(ctx, job.Ref(), 0)
	}
	if err != nil {
		x.log.WarnContext(ctx, "staged uploads are left to the scheduler", "job_id", job.ID, "error", err)
	}
}

// Bounds on files that come out of sandboxes: they take buffers that others need, and code may leave its agent as little of the sandbox's cores as it
// likes. By fileGrace the bytes may be late that must come at httpserver.PaceBytes a second, and all of a file must come in its timeOf.
const fileGrace = time.Minute

func timeOf(size int64) time.Duration {
	return 5*time.Minute + time.Duration(min(size>>20, 1<<30))*time.Second
}

// open opens a file of the workspace. One that comes too slowly breaks off. ErrProtocol: the agent says of it what can be said of no file.
func open(ctx context.Context, c *client.Client, path string, offset, length int64) (_ io.ReadCloser, entry farm.FileEntry, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		if err != nil {
			stop()
		}
	}()
	body, entry, err := c.Open(ctx, path, offset, length)
	if err != nil {
		return nil, entry, err
	}
	if client.CheckEntry(entry) != nil {
		_ = body.Close()
		return nil, entry, fmt.Errorf("%w: a file %q of %d bytes, mode %q and type %q", ErrProtocol, clip(entry.Path, 256), entry.Size, clip(entry.Mode, 16), clip(entry.Type, 16))
	}
	return &openFile{body, httpserver.NewPace(fileGrace, timeOf(entry.Size)), stop}, entry, nil
}

// openFile is a file of a sandbox that is read.
type openFile struct {
	io.ReadCloser
	pace *httpserver.Pace
	stop context.CancelFunc // ends a read in progress
}

func (f *openFile) Read(p []byte) (int, error) {
	began, timer := time.Now(), time.AfterFunc(f.pace.Allows(), f.stop)
	n, err := f.ReadCloser.Read(p)
	timer.Stop()
	f.pace.Took(n, time.Since(began))
	return n, err
}

func (f *openFile) Close() error {
	defer f.stop()
	return f.ReadCloser.Close()
}

// readFile returns a file, or a part of it: inline when it is small, else through the object store.
func (x *Runner) readFile(ctx context.Context, c *client.Client, t Task) (*farm.FileResult, error) {
	f := t.Request.File
	body, entry, err := open(ctx, c, f.Path, f.Offset, f.Length)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	result := &farm.FileResult{Entries: []farm.FileEntry{entry}, Size: entry.Size}
	result.Offset, result.Length = part(entry.Size, f.Offset, f.Length)
	source := &exactReader{r: io.LimitReader(body, result.Length), left: result.Length}
	if result.Length <= inlineRead && !f.Link {
		result.Content = make([]byte, result.Length)
		if _, err := io.ReadFull(source, result.Content); err != nil {
			return nil, farm.Wrap(err, farm.CodeConflict, "the file changed while it was read, or came too slowly; ask again")
		}
		return result, nil
	}
	if err := x.chargeCopy(ctx, t, result.Length); err != nil {
		return nil, err
	}
	result.Staged = f.Staged
	_, err = x.blobs.Put(ctx, f.Staged, source, result.Length, blob.PutOptions{ContentType: contentType(f.Path, nil)})
	if err != nil {
		ctx, done := retry.Detached(ctx)
		defer done()
		x.removeUploads(ctx, t.Job, nil, f.Staged)
	}
	if err != nil && source.broken {
		return nil, farm.Wrap(err, farm.CodeConflict, "the file changed while it was read, or came too slowly; ask again")
	}
	return result, err
}

// chargeCopy charges the copy of a file to its tenant before it is written. CodeTooLarge, CodeExhausted: there may be none.
func (x *Runner) chargeCopy(ctx context.Context, t Task, size int64) error {
	limits, linked := x.cfg.Limits, time.Duration(0)
	switch link := t.Request.File.Link; {
	case link && size > limits.MaxArtifactBytes:
		return farm.Errorf(farm.CodeTooLarge, "The file has %d bytes; a link is made to one of at most %d (max_artifact_bytes). Read it without a link, in parts if need be.",
			size, limits.MaxArtifactBytes)
	case !link && size > limits.MaxFileBytes:
		return farm.Errorf(farm.CodeTooLarge, "These are %d bytes; at most %d are read at once (max_file_bytes). Ask for a range.", size, limits.MaxFileBytes)
	case link: // its time begins when it is made, which its caller waits for
		linked = time.Duration(limits.LinkSeconds+limits.WaitMaxSeconds) * time.Second
	}
	return x.retry(ctx, func(ctx context.Context) error { return x.store.KeepCopy(ctx, t.Job.Ref(), size, linked) })
}

// part returns the range of a file of this size that a request asks for; a negative offset counts from the end.
func part(size, offset, length int64) (from, n int64) {
	if offset < 0 {
		offset = max(size+offset, 0)
	}
	offset = min(offset, size)
	n = size - offset
	if length > 0 {
		n = min(n, length)
	}
	return offset, n
}

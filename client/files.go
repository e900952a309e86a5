package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

// Files is the workspace of a sandbox. Paths are relative to it.
type Files struct {
	c  *Client
	id string
}

// Files returns the workspace of a sandbox. It sends nothing.
func (c *Client) Files(sandboxID string) *Files { return &Files{c: c, id: sandboxID} }

// List lists a directory ("" is the workspace), or the whole tree below it, with as many requests as it takes. Entries are ordered
// by name in each directory, a directory before its content.
func (f *Files) List(ctx context.Context, path string, recursive bool) ([]wire.FileEntry, error) {
	return f.First(ctx, path, recursive, math.MaxInt)
}

// maxListed is the largest page of a list of files that the farm allows.
const maxListed = 50_000

// First is List that ends after limit entries: a few of a tree of any size.
func (f *Files) First(ctx context.Context, path string, recursive bool, limit int) ([]wire.FileEntry, error) {
	query := url.Values{"path": {path}, "recursive": {strconv.FormatBool(recursive)}}
	var entries []wire.FileEntry
	at := cursors{}
	for limit > 0 {
		if left := limit - len(entries); left < maxListed {
			query.Set("limit", strconv.Itoa(left))
		}
		var got wire.Files
		if err := f.c.json(ctx, call{method: http.MethodGet, path: sandboxPath(f.id, "files"), query: query}, &got); err != nil {
			return nil, err
		}
		entries = append(entries, got.Items...)
		next := string(got.NextCursor)
		if at.end(next) || len(entries) >= limit {
			return entries, nil
		}
		query.Set("cursor", next)
	}
	return nil, nil
}

// Info is the result of Stat.
type Info struct {
	Size       int64
	ModifiedAt time.Time
}

// Stat reads size and time of a file. For a missing file the error is an *Error with the code not_found.
func (f *Files) Stat(ctx context.Context, path string) (Info, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, maxAttempts*answerTimeout, errSlow)
	defer cancel()
	r, err := f.c.send(ctx, call{method: http.MethodHead, path: f.at(path)})
	if err != nil {
		return Info{}, err
	}
	defer r.Body.Close()
	info := Info{Size: r.ContentLength}
	if at, err := http.ParseTime(r.Header.Get("Last-Modified")); err == nil {
		info.ModifiedAt = at
	}
	return info, nil
}

// Read streams a file from a byte offset; a negative offset counts from the end. The caller closes it. Only ctx limits it.
func (f *Files) Read(ctx context.Context, path string, offset int64) (io.ReadCloser, error) {
	header := http.Header{"Accept": {"*/*"}}
	switch {
	case offset > 0:
		header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	case offset < 0:
		header.Set("Range", fmt.Sprintf("bytes=%d", offset))
	}
	r, err := f.c.send(ctx, call{method: http.MethodGet, path: f.at(path), header: header})
	if e, ok := errors.AsType[*Error](err); ok && offset != 0 && e.Status == http.StatusRequestedRangeNotSatisfiable {
		return http.NoBody, nil // the offset is beyond the end
	}
	if err != nil {
		return nil, err
	}
	if offset != 0 && r.StatusCode != http.StatusPartialContent {
		r.Body.Close()
		return nil, fmt.Errorf("read %s from byte %d: the farm sent the whole file", path, offset)
	}
	return r.Body, nil
}

// Write streams content into a file and replaces an existing one; missing directories are created. Only ctx limits it, and it
// is never retried. After an error the file is either unchanged or complete.
func (f *Files) Write(ctx context.Context, path string, content io.Reader) error {
	header := http.Header{"Content-Type": {"application/octet-stream"}}
	return f.change(ctx, call{method: http.MethodPut, path: f.at(path), header: header, stream: body(content)})
}

// Mkdir creates a directory and its parents.
func (f *Files) Mkdir(ctx context.Context, path string) error {
	return f.change(ctx, call{method: http.MethodPut, path: f.at(strings.TrimRight(path, "/") + "/")})
}

// PutTar unpacks an uncompressed tar into dir ("" is the workspace). A tar with a member outside the workspace is refused as a
// whole.
func (f *Files) PutTar(ctx context.Context, dir string, tar io.Reader) error {
	query := url.Values{}
	if dir != "" {
		query.Set("path", dir)
	}
	header := http.Header{"Content-Type": {"application/x-tar"}}
	return f.change(ctx, call{method: http.MethodPost, path: sandboxPath(f.id, "files"), query: query, header: header, stream: body(tar)})
}

// Delete removes a file, or a directory with its contents.
func (f *Files) Delete(ctx context.Context, path string) error {
	return f.change(ctx, call{method: http.MethodDelete, path: f.at(path)})
}

// Move renames a file or directory within the workspace.
func (f *Files) Move(ctx context.Context, from, to string) error {
	request := wire.MoveRequest{From: from, To: to}
	return f.change(ctx, call{method: http.MethodPost, path: sandboxPath(f.id, "files", "move"), body: request})
}

// change makes a request that changes files. If the farm answers with a job, it waits for the job.
func (f *Files) change(ctx context.Context, in call) error {
	if in.stream == nil {
		in.wait = -1
	}
	job, err := f.c.accepted(ctx, in)
	if err != nil || job.ID == "" {
		return err
	}
	done, err := f.c.Wait(ctx, job.ID)
	if err != nil {
		return err
	}
	return Failure(done)
}

// at is the path of the route of a file.
func (f *Files) at(path string) []string {
	return append(sandboxPath(f.id, "files"), strings.Split(path, "/")...)
}

// body hides Close from net/http: the caller closes its own reader.
func body(r io.Reader) io.Reader { return struct{ io.Reader }{r} }

// accepted makes a request. If the answer is 202 with a job, it returns the job, else an empty one.
func (c *Client) accepted(ctx context.Context, in call) (wire.Job, error) {
	if in.stream == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, bound(in), errSlow)
		defer cancel()
	}
	var job wire.Job
	r, err := c.send(ctx, in)
	if err != nil {
		return job, err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusAccepted {
		return job, nil
	}
	return job, decode(in, r, &job)
}

// Open streams a file and reports its size. The caller closes it. Only ctx limits it.
func (f *Files) Open(ctx context.Context, path string) (*Content, error) {
	r, err := f.c.send(ctx, call{method: http.MethodGet, path: f.at(path), header: http.Header{"Accept": {"*/*"}, "Accept-Encoding": {"identity"}}}) //nolint:bodyclose // the caller closes it as the content
	if err != nil {
		return nil, err
	}
	content := &Content{ReadCloser: r.Body, Size: r.ContentLength}
	if at, err := http.ParseTime(r.Header.Get("Last-Modified")); err == nil {
		content.ModifiedAt = at
	}
	return content, nil
}

// Link makes a link to the current content of a file. Anyone with the link can download until it expires.
func (f *Files) Link(ctx context.Context, path string) (string, error) {
	in := call{method: http.MethodGet, path: f.at(path), query: url.Values{"link": {"1"}}, wait: -1}
	ctx, cancel := context.WithTimeoutCause(ctx, bound(in), errSlow)
	defer cancel()
	r, err := f.c.send(ctx, in)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	to, err := r.Location()
	if err != nil {
		return "", fmt.Errorf("read the link of file %s: %w", path, err)
	}
	return to.String(), nil
}

// Put is Write, and returns the entry of the file.
func (f *Files) Put(ctx context.Context, path string, content io.Reader) (wire.FileEntry, error) {
	header := http.Header{"Content-Type": {"application/octet-stream"}}
	in := call{method: http.MethodPut, path: f.at(path), header: header, stream: body(content)}
	r, err := f.c.send(ctx, in)
	if err != nil {
		return wire.FileEntry{}, err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusAccepted {
		var entry wire.FileEntry
		return entry, decode(in, r, &entry)
	}
	var job wire.Job
	if err := decode(in, r, &job); err != nil {
		return wire.FileEntry{}, err
	}
	if job, err = f.c.Wait(ctx, job.ID); err != nil {
		return wire.FileEntry{}, err
	}
	if err := Failure(job); err != nil {
		return wire.FileEntry{}, err
	}
	if job.Result == nil || job.Result.File == nil || len(job.Result.File.Entries) == 0 {
		return wire.FileEntry{}, fmt.Errorf("write %s: job %s names no file", path, job.ID)
	}
	return job.Result.File.Entries[0], nil
}

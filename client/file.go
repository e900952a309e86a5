package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/sandfarm/sandfarm/api/wire"
)

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

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/sandfarm/sandfarm/api/wire"
)

// FS is all files of a sandbox, as its user sees them. Paths are absolute, or relative to the workspace. Its methods act at once, beside running
// jobs.
type FS struct {
	c  *Client
	id string
}

// FS returns all files of a sandbox. It sends nothing.
func (c *Client) FS(sandboxID string) *FS { return &FS{c: c, id: sandboxID} }

// Absolute is the absolute form of a path in a sandbox.
func Absolute(path string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	return "/workspace/" + path
}

// at is the path of the route of a file.
func (f *FS) at(path string) []string {
	return append(sandboxPath(f.id, "fs"), strings.Split(strings.TrimPrefix(Absolute(path), "/"), "/")...)
}

// List lists what is under a path down to a depth, with as many requests as it takes. A depth of 0 describes the path itself.
func (f *FS) List(ctx context.Context, dir string, depth int) ([]wire.FSEntry, error) {
	query := url.Values{"path": {dir}, "depth": {strconv.Itoa(depth)}}
	var entries []wire.FSEntry
	at := cursors{}
	for {
		var got wire.FSListing
		if err := f.c.json(ctx, call{method: http.MethodGet, path: sandboxPath(f.id, "fs"), query: query}, &got); err != nil {
			return nil, err
		}
		for _, e := range got.Items {
			if !isUnder(e.Path, Absolute(dir), depth) {
				return nil, fmt.Errorf("list %s: the farm answered with %q, which is elsewhere", dir, e.Path)
			}
		}
		entries = append(entries, got.Items...)
		next := string(got.NextCursor)
		if at.end(next) {
			return entries, nil
		}
		query.Set("cursor", next)
	}
}

// isUnder reports whether a file can be in the listing of a directory: callers save files below names that a sandbox has chosen.
func isUnder(file, dir string, depth int) bool {
	dir = path.Clean(dir)
	return file == dir || depth > 0 && strings.HasPrefix(file, strings.TrimSuffix(dir, "/")+"/")
}

// Stat describes a path. It follows no link. For a missing file the error is an *Error with the code not_found.
func (f *FS) Stat(ctx context.Context, path string) (wire.FSEntry, error) {
	entries, err := f.List(ctx, path, 0)
	if err == nil && len(entries) != 1 {
		err = fmt.Errorf("stat %s: the farm described %d files", path, len(entries))
	}
	if err != nil {
		return wire.FSEntry{}, err
	}
	return entries[0], nil
}

// Open streams a file. The caller closes it. Only ctx limits it.
func (f *FS) Open(ctx context.Context, path string) (*Content, error) {
	return f.stream(ctx, call{method: http.MethodGet, path: f.at(path), header: http.Header{"Accept": {"*/*"}, "Accept-Encoding": {"identity"}}})
}

// OpenAt streams up to length bytes of a file from offset on; there may be none. The caller closes it.
func (f *FS) OpenAt(ctx context.Context, path string, offset, length int64) (*Content, error) {
	header := http.Header{"Accept": {"*/*"}, "Accept-Encoding": {"identity"}, "Range": {fmt.Sprintf("bytes=%d-%d", offset, offset+length-1)}}
	content, err := f.stream(ctx, call{method: http.MethodGet, path: f.at(path), header: header})
	if e, ok := errors.AsType[*Error](err); ok && e.Status == http.StatusRequestedRangeNotSatisfiable {
		return &Content{ReadCloser: http.NoBody}, nil
	}
	return content, err
}

// Tar streams a directory as a tar of its files, directories and symbolic links. The caller closes it. Only ctx limits it.
func (f *FS) Tar(ctx context.Context, path string) (*Content, error) {
	header := http.Header{"Accept": {"*/*"}} // the transport asks for gzip, and unpacks it
	return f.stream(ctx, call{method: http.MethodGet, path: f.at(path), query: url.Values{"tar": {"1"}}, header: header})
}

func (f *FS) stream(ctx context.Context, in call) (*Content, error) {
	r, err := f.c.send(ctx, in) //nolint:bodyclose // the caller closes it as the content
	if err != nil {
		return nil, err
	}
	return &Content{ReadCloser: r.Body, Size: r.ContentLength, ETag: strings.Trim(r.Header.Get("ETag"), `"`), trailer: r.Trailer}, nil
}

// WriteIf are conditions of a write; the zero value has none.
type WriteIf struct {
	Match string // an etag that the file must have
	New   bool   // there must be no file
	Mode  string // permissions in octal digits; empty: those that the file has, or 0644
}

// Write streams content into a file and replaces an existing one in one step. Only ctx limits it, and it is never retried.
func (f *FS) Write(ctx context.Context, path string, content io.Reader, how WriteIf) (wire.FSEntry, error) {
	header, query := http.Header{"Content-Type": {"application/octet-stream"}}, url.Values{}
	if how.Match != "" {
		header.Set("If-Match", `"`+how.Match+`"`)
	}
	if how.New {
		header.Set("If-None-Match", "*")
	}
	if how.Mode != "" {
		query.Set("mode", how.Mode)
	}
	var entry wire.FSEntry
	err := f.c.json(ctx, call{method: http.MethodPut, path: f.at(path), query: query, header: header, stream: body(content)}, &entry)
	return entry, err
}

// PutTar unpacks an uncompressed tar into a directory, which is created: all of it, or nothing.
func (f *FS) PutTar(ctx context.Context, dir string, tar io.Reader) error {
	header := http.Header{"Content-Type": {"application/x-tar"}}
	return f.c.json(ctx, call{method: http.MethodPost, path: sandboxPath(f.id, "fs"), query: url.Values{"path": {dir}}, header: header, stream: body(tar)}, nil)
}

// Mkdir creates a directory and those above it. It may exist.
func (f *FS) Mkdir(ctx context.Context, path string) error {
	return f.c.json(ctx, call{method: http.MethodPut, path: f.at(strings.TrimRight(path, "/") + "/")}, nil)
}

// Change sets the permissions or the time of a file, or both.
func (f *FS) Change(ctx context.Context, path string, to wire.FSChange) (wire.FSEntry, error) {
	var entry wire.FSEntry
	err := f.c.json(ctx, call{method: http.MethodPatch, path: f.at(path), body: to}, &entry)
	return entry, err
}

// Move renames a file or directory. Directories above the new path are created, and a file there is replaced.
func (f *FS) Move(ctx context.Context, from, to string) (wire.FSEntry, error) {
	var entry wire.FSEntry
	err := f.c.json(ctx, call{method: http.MethodPost, path: sandboxPath(f.id, "fs", "move"), body: wire.FSMove{From: from, To: to}, once: true}, &entry)
	return entry, err
}

// Symlink makes a symbolic link.
func (f *FS) Symlink(ctx context.Context, target, path string) (wire.FSEntry, error) {
	var entry wire.FSEntry
	err := f.c.json(ctx, call{method: http.MethodPost, path: sandboxPath(f.id, "fs", "link"), body: wire.FSLink{Path: path, Target: target}, once: true}, &entry)
	return entry, err
}

// Remove removes a file, or a directory with all that is in it.
func (f *FS) Remove(ctx context.Context, path string) error {
	return f.c.json(ctx, call{method: http.MethodDelete, path: f.at(path)}, nil)
}

// Watch streams what happens to a path, and with recursive to all below it, without names that match an ignored pattern. If the connection breaks,
// it reconnects and continues after the last event; an event "dropped" says that some are missing. An error ends it.
func (f *FS) Watch(ctx context.Context, path string, recursive bool, ignore []string) iter.Seq2[wire.Event, error] {
	query := url.Values{"path": {path}, "recursive": {strconv.FormatBool(recursive)}, "ignore": ignore}
	in := call{method: http.MethodGet, path: sandboxPath(f.id, "watch"), query: query}
	return f.c.stream(ctx, "watch "+path, in, "", func(wire.Event) bool { return false })
}

package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// maxListed bounds the entries of a listing without a limit: those of a page of the agent.
	maxListed = 100_000
	// fileValues bounds the JSON values of an entry: its fields, and the entry.
	fileValues = 8
	// EntryBytes is what an entry of a listing takes as JSON beside its path.
	EntryBytes = 128
	// maxListedBytes bounds the paths of a listing, as JSON has them: agent.PageBytes, and half as much again for agents that are older than this bound and
	// count those of the names themselves.
	maxListedBytes = agent.PageBytes * 3 / 2
)

// CheckEntry checks what an agent says of a file of the workspace.
func CheckEntry(e farm.FileEntry) error {
	clean, err := farm.CleanPath(e.Path)
	if err != nil || clean != e.Path || !validKind(e.Type, e.Mode) || e.Size < 0 {
		return errFile
	}
	return nil
}

// List lists the entries under a directory of the workspace ("" and "." mean the workspace). A file lists itself.
func (c *Client) List(ctx context.Context, path string, q agent.ListQuery) (agent.Listing, error) {
	query := url.Values{"path": {path}, "recursive": {strconv.FormatBool(q.Recursive)}, "limit": {strconv.Itoa(q.Limit)}, "after": {q.After}}
	limit := q.Limit
	if limit <= 0 || limit > maxListed {
		limit = maxListed
	}
	var found agent.Listing
	if err := c.callFor(ctx, callTimeout, http.MethodGet, "/v1/files", query, nil, answer{&found, int64(maxListedBytes + limit*EntryBytes + shortJSON), limit*fileValues + fewValues}); err != nil {
		return found, err
	}
	if found.After != q.After { // an agent older than paging returns the first page every time
		return found, farm.Errorf(farm.CodeTooLarge, "This sandbox was started by an older version, which lists %d entries at most: list a subdirectory.", len(found.Entries))
	}
	if len(found.Entries) > limit {
		return agent.Listing{}, farm.Errorf(farm.CodeInternal, "the agent listed %d files, and %d were asked for", len(found.Entries), limit)
	}
	paths := 0
	for _, e := range found.Entries {
		if err := CheckEntry(e); err != nil {
			return agent.Listing{}, err
		}
		if paths += farm.Quoted(e.Path); paths > maxListedBytes {
			return agent.Listing{}, farm.Errorf(farm.CodeTooLarge, "The sandbox listed files whose paths have more than %d bytes.", maxListedBytes)
		}
	}
	return found, nil
}

// Stat describes one file or directory. It does not follow a symbolic link.
func (c *Client) Stat(ctx context.Context, path string) (farm.FileEntry, error) {
	var entry farm.FileEntry
	if err := c.call(ctx, callTimeout, http.MethodGet, "/v1/files/stat", url.Values{"path": {path}}, nil, &entry); err != nil {
		return entry, err
	}
	return entry, CheckEntry(entry)
}

// Open reads a regular file from offset on (negative: from the end), length bytes of it (0: to the end). The entry describes the whole
// file; the caller checks it (CheckEntry). The caller closes the reader; an interrupted transfer returns an error other than io.EOF.
func (c *Client) Open(ctx context.Context, path string, offset, length int64) (io.ReadCloser, farm.FileEntry, error) {
	query := url.Values{"path": {path}, "offset": {strconv.FormatInt(offset, 10)}, "length": {strconv.FormatInt(length, 10)}}
	res, err := c.do(ctx, http.MethodGet, "/v1/files/content", query, nil)
	if err != nil {
		return nil, farm.FileEntry{}, err
	}
	var entry farm.FileEntry
	if err := json.Unmarshal([]byte(res.Header.Get("X-Entry")), &entry); err != nil {
		_ = res.Body.Close()
		return nil, farm.FileEntry{}, farm.Errorf(farm.CodeInternal, "agent sent a file without its description")
	}
	return res.Body, entry, nil
}

// Write writes a file atomically: it creates the parents, and replaces an existing file in one step at the end. ctx bounds
// the transfer.
func (c *Client) Write(ctx context.Context, path string, r io.Reader) (farm.FileEntry, error) {
	return c.WriteMode(ctx, path, 0, r)
}

// WriteMode is Write with permission bits; 0 means 0644.
func (c *Client) WriteMode(ctx context.Context, path string, mode uint32, r io.Reader) (farm.FileEntry, error) {
	query := url.Values{"path": {path}}
	if mode != 0 {
		query.Set("mode", strconv.FormatUint(uint64(mode), 8))
	}
	var entry farm.FileEntry
	res, err := c.do(ctx, http.MethodPut, "/v1/files/content", query, struct{ io.Reader }{r})
	if err != nil {
		return entry, err
	}
	defer func() { _ = res.Body.Close() }()
	if err := decode(ctx, res, short(&entry)); err != nil {
		return entry, err
	}
	return entry, CheckEntry(entry)
}

// Mkdir creates a directory and its parents. An existing directory is not an error.
func (c *Client) Mkdir(ctx context.Context, path string) error {
	return c.call(ctx, callTimeout, http.MethodPost, "/v1/files/mkdir", url.Values{"path": {path}}, nil, nil)
}

// Remove removes a file, or a directory with all its contents.
func (c *Client) Remove(ctx context.Context, path string) error {
	return c.call(ctx, kernelTimeout, http.MethodDelete, "/v1/files", url.Values{"path": {path}}, nil, nil)
}

// Move renames a file or directory and creates the parents of the new name.
func (c *Client) Move(ctx context.Context, from, to string) error {
	in := map[string]string{"from": from, "to": to}
	return c.call(ctx, callTimeout, http.MethodPost, "/v1/files/move", nil, in, nil)
}

// PutTar unpacks an uncompressed tar under a directory, entirely or not at all. ctx bounds the transfer.
func (c *Client) PutTar(ctx context.Context, path string, r io.Reader) error {
	res, err := c.do(ctx, http.MethodPost, "/v1/files/tar", url.Values{"path": {path}}, struct{ io.Reader }{r})
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	return decode(ctx, res, short(nil))
}

// PutFiles writes files of the workspace as Write does, all of them or none, and describes them. The tar has up to n of them, with paths relative to the
// workspace. An agent that is older than this call describes none. ctx bounds the transfer.
func (c *Client) PutFiles(ctx context.Context, tar io.Reader, n int) ([]farm.FileEntry, error) {
	query := url.Values{"path": {""}, "describe": {"true"}}
	res, err := c.do(ctx, http.MethodPost, "/v1/files/tar", query, struct{ io.Reader }{tar})
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	var placed agent.Listing
	if err := decode(ctx, res, list(&placed, n, fileValues)); err != nil {
		return nil, err
	}
	for _, e := range placed.Entries {
		if err := CheckEntry(e); err != nil {
			return nil, err
		}
	}
	return placed.Entries, nil
}

// GetTar streams a directory as an uncompressed tar of its regular files and directories. The caller closes the reader.
func (c *Client) GetTar(ctx context.Context, path string) (io.ReadCloser, error) {
	res, err := c.do(ctx, http.MethodGet, "/v1/files/tar", url.Values{"path": {path}}, nil)
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

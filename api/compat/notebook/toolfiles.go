package notebook

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/api/compat/toolset"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// inlineBytes is the largest file that stands in the answer of a download.
const inlineBytes = 1 << 20

// upload4 is the tool upload_file. The original's own wanted a form, which the protocol has not.
func upload4(ctx context.Context, c *toolset.Call) (any, error) {
	content, err := given(c)
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }() // read to its end, or its error is told
	target := c.Text("file_path")
	if name := strings.Trim(path.Base("/"+strings.ReplaceAll(c.Text("local_file_path"), "\\", "/")), "/"); target == "" || strings.HasSuffix(target, "/") {
		target += name
	}
	if target == "" || strings.HasSuffix(target, "/") {
		return nil, Missing("file_path")
	}
	return NewService(c).Write(ctx, c.Text("sandbox_id"), target, content)
}

// given is the content of an upload.
func given(c *toolset.Call) (io.ReadCloser, error) {
	local := c.Text("local_file_path")
	switch {
	case c.Has("content") && c.Has("content_base64"):
		return nil, farm.Invalidf("Give content or content_base64, not both.")
	case c.Has("content"):
		return io.NopCloser(strings.NewReader(c.Text("content"))), nil
	case c.Has("content_base64"):
		raw, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(c.Text("content_base64")), ""))
		if err != nil {
			return nil, farm.Invalidf("content_base64 is not base64.")
		}
		return io.NopCloser(bytes.NewReader(raw)), nil
	case local == "":
		return nil, farm.Invalidf("Give the file's text as content, or its bytes as content_base64.")
	case c.Local == nil:
		return nil, farm.Invalidf("local_file_path is on your machine, which this server cannot read: give the file's text as content, or its bytes as content_base64. The stdio server, sandfarm mcp --toolset notebook, reads it.")
	}
	file, _, err := c.Local.Open(local)
	if err != nil {
		return nil, farm.Invalidf("local_file_path %q cannot be used: %v.", local, err)
	}
	return file, nil
}

// downloaded is the answer of download_file.
type downloaded struct {
	FilePath      string  `json:"file_path"`
	Size          int64   `json:"size"`
	URL           string  `json:"url"`
	Content       *string `json:"content,omitempty"`
	ContentBase64 string  `json:"content_base64,omitempty"`
	LocalPath     string  `json:"local_path,omitempty"`
}

// download4 is the tool download_file.
func download4(ctx context.Context, c *toolset.Call) (any, error) {
	n, id, local := NewService(c), c.Text("sandbox_id"), c.Text("local_dest_path")
	if err := n.Readable(ctx, id, c.Text("file_path")); err != nil {
		return nil, err
	}
	if local != "" && c.Local == nil {
		return nil, farm.Invalidf("local_dest_path is on your machine, where this server cannot write: leave it out and use the url or the content. The stdio server, sandfarm mcp --toolset notebook, writes it.")
	}
	file, err := c.Farm.ReadFile(ctx, id, c.Text("file_path"), inlineBytes)
	if err != nil {
		return nil, n.Unreadable(ctx, id, err)
	}
	out := downloaded{FilePath: file.Entry.Path, Size: file.Entry.Size}
	if out.URL, err = c.Farm.LinkFile(ctx, id, file.Entry.Path); err != nil {
		return nil, n.Unreadable(ctx, id, err)
	}
	if local != "" {
		if err := save(ctx, c, id, file.Entry.Path, local); err != nil {
			return nil, err
		}
		out.LocalPath = local
		return out, nil
	}
	switch {
	case file.Content == nil:
	case utf8.Valid(file.Content) && !bytes.ContainsRune(file.Content, 0):
		text := string(file.Content)
		out.Content = &text
	default:
		out.ContentBase64 = base64.StdEncoding.EncodeToString(file.Content)
	}
	return out, nil
}

// save puts a file on the caller's machine.
func save(ctx context.Context, c *toolset.Call, id, file, local string) error {
	content, _, err := c.Farm.OpenFile(ctx, id, file)
	if err != nil {
		return err //nolint:wrapcheck // an error of the farm
	}
	defer func() { _ = content.Close() }() // its errors came with the bytes
	into, err := c.Local.Create(local)
	if err != nil {
		return farm.Invalidf("local_dest_path %q cannot be used: %v.", local, err)
	}
	_, err = io.Copy(into, content)
	if err = errors.Join(err, into.Close()); err != nil {
		return farm.Invalidf("local_dest_path %q cannot be used: %v.", local, err)
	}
	return nil
}

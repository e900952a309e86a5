package notebook

import (
	"bytes"
	"context"
	"encoding/base64"
	"strings"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/api/compat/toolset"
	"github.com/sandfarm/sandfarm/api/mcp"
)

// inlineBytes is the largest file that the answer of a download contains.
const inlineBytes = 1 << 20

// uploadTool is the tool upload_file. The original took a multipart form, which the protocol does not have.
func uploadTool(ctx context.Context, c *toolset.Call) (any, error) {
	content, _, err := mcp.OpenUpload(c.Arguments, c.Local, "local_file_path", toolset.Program(Name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }() // read errors come with the bytes
	target := c.Text("file_path")
	if target == "" || strings.HasSuffix(target, "/") {
		target += mcp.LocalName(c.Text("local_file_path"))
	}
	if target == "" || strings.HasSuffix(target, "/") {
		return nil, Missing("file_path")
	}
	return NewService(c).Write(ctx, c.Text("sandbox_id"), target, content)
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

// downloadTool is the tool download_file.
func downloadTool(ctx context.Context, c *toolset.Call) (any, error) {
	n, id, local := NewService(c), c.Text("sandbox_id"), c.Text("local_dest_path")
	if err := n.Readable(ctx, id, c.Text("file_path")); err != nil {
		return nil, err
	}
	if local != "" && c.Local == nil {
		return nil, mcp.LocalUnwritable("local_dest_path", "leave it out and use the url or the content", toolset.Program(Name))
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
		if _, err := c.SaveLocal(ctx, id, file.Entry.Path, "local_dest_path", local); err != nil {
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

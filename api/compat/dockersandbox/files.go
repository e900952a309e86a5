package dockersandbox

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"path"
	"strings"

	"github.com/sandfarm/sandfarm/api/compat/toolset"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// written is the answer of the tools that write one file.
type written struct {
	Success  bool   `json:"success"`
	FilePath string `json:"file_path"`
}

func writeFile(ctx context.Context, c *toolset.Call) (any, error) {
	p, err := find(ctx, c)
	if err != nil {
		return nil, err
	}
	dir, err := p.inside("dest_dir", c.Text("dest_dir"))
	if err != nil {
		return nil, err
	}
	text := c.Text("file_contents")
	name := c.Text("file_name")
	if c.Text("dest_dir") != "" || !strings.HasPrefix(name, p.base+"/") { // else it is a path that was told
		name = path.Join(dir) + "/" + strings.TrimLeft(name, "/")
	}
	return put(ctx, c, p, "file_name", name, strings.NewReader(text), int64(len(text)))
}

// put writes one file of the workspace.
func put(ctx context.Context, c *toolset.Call, p place, param, name string, content io.Reader, size int64) (any, error) {
	clean, err := p.inside(param, name)
	if err == nil && (strings.HasSuffix(name, "/") || clean == ".") {
		err = farm.Invalidf("%s names no file", param)
	}
	if err != nil {
		return nil, err
	}
	if _, err := c.Farm.WriteFile(ctx, p.id, clean, content, size); err != nil {
		return nil, err //nolint:wrapcheck // an error of the farm
	}
	return written{Success: true, FilePath: p.shown(clean)}, p.reach(ctx, c, clean)
}

func copyFile(ctx context.Context, c *toolset.Call) (any, error) {
	p, err := find(ctx, c)
	if err != nil {
		return nil, err
	}
	content, size, err := given(c)
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }() // it is read to its end, or its error is told
	name := c.Text("dest_path")
	if name == "" || strings.HasSuffix(name, "/") {
		name += strings.Trim(base(c.Text("local_src_file")), "/")
	}
	return put(ctx, c, p, "dest_path", name, content, size)
}

// base is the name of a file or directory on the caller's machine, whatever system that has.
func base(local string) string { return path.Base("/" + strings.ReplaceAll(local, "\\", "/")) }

// given is the content of a copy, and its size.
func given(c *toolset.Call) (io.ReadCloser, int64, error) {
	switch text, raw, err := contentOf(c); {
	case err != nil:
		return nil, 0, err
	case c.Has("content"):
		return io.NopCloser(strings.NewReader(text)), int64(len(text)), nil
	case raw != nil:
		return io.NopCloser(bytes.NewReader(raw)), int64(len(raw)), nil
	case c.Local == nil:
		return nil, 0, unreadable("local_src_file", "give its text as content, or its bytes as content_base64")
	}
	file, size, err := c.Local.Open(c.Text("local_src_file"))
	if err != nil {
		return nil, 0, unusable("local_src_file", c.Text("local_src_file"), err)
	}
	return file, size, nil
}

// contentOf gives the text, or the bytes, that came with a call; neither where there are none.
func contentOf(c *toolset.Call) (text string, raw []byte, err error) {
	if c.Has("content") && c.Has("content_base64") {
		return "", nil, farm.Invalidf("Give content or content_base64, not both.")
	}
	if !c.Has("content_base64") {
		return c.Text("content"), nil, nil
	}
	raw, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(c.Text("content_base64")), ""))
	if err != nil {
		return "", nil, farm.Invalidf("content_base64 is not base64.")
	}
	if raw == nil {
		raw = []byte{}
	}
	return "", raw, nil
}

// unreadable refuses a path of the caller's machine, in the same words whether anything is there or not.
func unreadable(param, instead string) error {
	return farm.Invalidf("%s is on your machine, which this server cannot read: %s. The stdio server, sandfarm mcp --toolset %s, reads it.", param, instead, Name)
}

// unusable tells of a file on the caller's own machine, who may know why it cannot be had.
func unusable(param, name string, err error) error {
	return farm.Invalidf("%s %q cannot be used: %v.", param, name, err)
}

// copied is the answer of copy_file_from_sandbox.
type copied struct {
	Success   bool   `json:"success"`
	LocalPath string `json:"local_path,omitempty"`
	FileSize  int64  `json:"file_size"`
	URL       string `json:"url,omitempty"`
}

func copyOut(ctx context.Context, c *toolset.Call) (any, error) {
	p, err := find(ctx, c)
	if err != nil {
		return nil, err
	}
	local := c.Text("local_dest_path")
	if local != "" && c.Local == nil {
		return nil, farm.Invalidf("local_dest_path is on your machine, where this server cannot write: leave local_dest_path out, and the answer has a url to download the file from. The stdio server, sandfarm mcp --toolset %s, writes it.", Name)
	}
	wanted := c.Text("container_src_path")
	file, err := p.source(wanted)
	if err != nil {
		return nil, err
	}
	var out copied
	if file != "" {
		out, err = take(ctx, c, p, file, local)
	}
	if code := farm.CodeOf(err); file != "" && code != farm.CodeNotFound && code != farm.CodeInvalid {
		return out, err
	}
	// It lies outside the workspace, or is a link: a copy can be read.
	dir, staged, absent := p.stage(ctx, c, wanted)
	defer func() { _ = c.Farm.RemoveFile(context.WithoutCancel(ctx), p.id, dir) }() // it is the sandbox's own otherwise
	switch {
	case absent == nil:
		return take(ctx, c, p, staged, local)
	case err != nil:
		return nil, err
	default:
		return nil, absent
	}
}

// take gives a file of the workspace to the caller.
func take(ctx context.Context, c *toolset.Call, p place, file, local string) (copied, error) {
	if c.Local == nil {
		read, err := c.Farm.ReadFile(ctx, p.id, file, 0)
		if err != nil {
			return copied{}, err //nolint:wrapcheck // an error of the farm
		}
		url, err := c.Farm.LinkFile(ctx, p.id, file)
		return copied{Success: true, FileSize: read.Entry.Size, URL: url}, err //nolint:wrapcheck // an error of the farm
	}
	if local == "" {
		local = path.Base(file)
	}
	size, err := save(ctx, c, p.id, file, local)
	return copied{Success: true, LocalPath: local, FileSize: size}, err
}

// save puts a file on the caller's machine.
func save(ctx context.Context, c *toolset.Call, id, file, local string) (int64, error) {
	content, _, err := c.Farm.OpenFile(ctx, id, file)
	if err != nil {
		return 0, err //nolint:wrapcheck // an error of the farm
	}
	defer func() { _ = content.Close() }() // its errors came with the bytes
	into, err := c.Local.Create(local)
	if err != nil {
		return 0, unusable("local_dest_path", local, err)
	}
	size, err := io.Copy(into, content)
	if err = errors.Join(err, into.Close()); err != nil {
		return 0, unusable("local_dest_path", local, err)
	}
	return size, nil
}

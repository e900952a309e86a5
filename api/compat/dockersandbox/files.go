package dockersandbox

import (
	"context"
	"io"
	"path"
	"strings"

	"github.com/sandfarm/sandfarm/api/compat/toolset"
	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// written is the answer of the tools that write one file.
type written struct {
	Success  bool   `json:"success"`
	FilePath string `json:"file_path"`
}

func writeFile(ctx context.Context, c *toolset.Call) (any, error) {
	p, err := findTarget(ctx, c)
	if err != nil {
		return nil, err
	}
	dir, err := p.inside("dest_dir", c.Text("dest_dir"))
	if err != nil {
		return nil, err
	}
	text := c.Text("file_contents")
	name := c.Text("file_name")
	if c.Text("dest_dir") != "" || !strings.HasPrefix(name, p.base+"/") { // otherwise it is a path from an earlier answer
		name = path.Join(dir) + "/" + strings.TrimLeft(name, "/")
	}
	return put(ctx, c, p, "file_name", name, strings.NewReader(text), int64(len(text)))
}

// put writes one file of the workspace.
func put(ctx context.Context, c *toolset.Call, p target, param, name string, content io.Reader, size int64) (any, error) {
	clean, err := p.inside(param, name)
	if err == nil && (strings.HasSuffix(name, "/") || clean == ".") {
		err = farm.Invalidf("%s names no file", param)
	}
	if err != nil {
		return nil, err
	}
	if _, err := c.Farm.WriteFile(ctx, p.id, clean, content, size); err != nil {
		return nil, err
	}
	return written{Success: true, FilePath: p.shown(clean)}, p.reach(ctx, c, clean)
}

func copyFile(ctx context.Context, c *toolset.Call) (any, error) {
	p, err := findTarget(ctx, c)
	if err != nil {
		return nil, err
	}
	content, size, err := mcp.OpenUpload(c.Arguments, c.Local, "local_src_file", toolset.Program(Name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }() // read errors come with the bytes
	name := c.Text("dest_path")
	if name == "" || strings.HasSuffix(name, "/") {
		name += mcp.LocalName(c.Text("local_src_file"))
	}
	return put(ctx, c, p, "dest_path", name, content, size)
}

// copied is the answer of copy_file_from_sandbox.
type copied struct {
	Success   bool   `json:"success"`
	LocalPath string `json:"local_path,omitempty"`
	FileSize  int64  `json:"file_size"`
	URL       string `json:"url,omitempty"`
}

func copyOut(ctx context.Context, c *toolset.Call) (any, error) {
	p, err := findTarget(ctx, c)
	if err != nil {
		return nil, err
	}
	local := c.Text("local_dest_path")
	if local != "" && c.Local == nil {
		return nil, mcp.LocalUnwritable("local_dest_path", "leave it out, and the answer has a url to download the file from", toolset.Program(Name))
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
	// It is outside the workspace or a link: read a copy of it.
	dir, staged, absent := p.stage(ctx, c, wanted)
	defer func() { _ = c.Farm.RemoveFile(context.WithoutCancel(ctx), p.id, dir) }() // if this fails, the copy stays until the sandbox closes
	switch {
	case absent == nil:
		return take(ctx, c, p, staged, local)
	case err != nil:
		return nil, err
	default:
		return nil, absent
	}
}

// take delivers a file of the workspace to the caller.
func take(ctx context.Context, c *toolset.Call, p target, file, local string) (copied, error) {
	if c.Local == nil {
		read, err := c.Farm.ReadFile(ctx, p.id, file, 0)
		if err != nil {
			return copied{}, err
		}
		url, err := c.Farm.LinkFile(ctx, p.id, file)
		return copied{Success: true, FileSize: read.Entry.Size, URL: url}, err
	}
	if local == "" {
		local = path.Base(file)
	}
	size, err := c.SaveLocal(ctx, p.id, file, "local_dest_path", local)
	return copied{Success: true, LocalPath: local, FileSize: size}, err
}

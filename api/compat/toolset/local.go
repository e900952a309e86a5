package toolset

import (
	"context"
	"errors"
	"io"

	"github.com/sandfarm/sandfarm/api/mcp"
)

// Program is the command that serves a toolset over stdio, where it can use files of the caller's machine.
func Program(name string) string { return "sandfarm mcp --toolset " + name }

// SaveLocal copies a file of a sandbox to the path local on the caller's machine and gives its size. Local must not be nil. Errors
// name param, the argument that held the path.
func (c *Call) SaveLocal(ctx context.Context, sandboxID, file, param, local string) (int64, error) {
	content, _, err := c.Farm.OpenFile(ctx, sandboxID, file)
	if err != nil {
		return 0, err
	}
	defer func() { _ = content.Close() }() // read errors came with the bytes
	into, err := c.Local.Create(local)
	if err != nil {
		return 0, mcp.LocalError(param, local, err)
	}
	size, err := io.Copy(into, content)
	if err = errors.Join(err, into.Close()); err != nil {
		return 0, mcp.LocalError(param, local, err)
	}
	return size, nil
}

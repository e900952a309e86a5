package toolset

import (
	"context"
	"io"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
)

// Farm has the farm's verbs for one caller. Errors carry the farm's codes and sentences.
type Farm interface {
	mcp.Farm
	// Sandbox reads a sandbox, also a closed one. Reading does not count as use.
	Sandbox(ctx context.Context, id string) (wire.Sandbox, error)
	// Labeled lists the open sandboxes that have all these labels, newest first.
	Labeled(ctx context.Context, labels map[string]string) ([]wire.Sandbox, error)
	// WriteTar unpacks an uncompressed tar into the workspace, below dir ("" is the workspace), completely or not at all.
	WriteTar(ctx context.Context, id, dir string, tar io.Reader, size int64) error
	// OpenFile streams a file of the workspace and returns its size. The caller closes it.
	OpenFile(ctx context.Context, id, path string) (io.ReadCloser, int64, error)
	// RemoveFile removes a file of the workspace, or a directory with everything in it.
	RemoveFile(ctx context.Context, id, path string) error
	// MoveFile renames a file or directory within the workspace and creates the parent directories of its new path.
	MoveFile(ctx context.Context, id, from, to string) error
}

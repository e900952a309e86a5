package toolset

import (
	"context"
	"io"

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/api/wire"
)

// Farm is what the tools work with: the farm's verbs for one caller. Errors carry the farm's codes and sentences.
type Farm interface {
	mcp.Farm
	// Sandbox reads a sandbox, also one that is over. Reading is not use.
	Sandbox(ctx context.Context, id string) (wire.Sandbox, error)
	// Labeled gives the sandboxes that are not over and have all these labels, newest first.
	Labeled(ctx context.Context, labels map[string]string) ([]wire.Sandbox, error)
	// WriteTar unpacks an uncompressed tar into the workspace, under dir ("" is the workspace), as a whole or not at all.
	WriteTar(ctx context.Context, id, dir string, tar io.Reader, size int64) error
	// OpenFile streams a file of the workspace, and gives its size. The caller closes it.
	OpenFile(ctx context.Context, id, path string) (io.ReadCloser, int64, error)
	// RemoveFile removes a file of the workspace, or a directory with all that is in it.
	RemoveFile(ctx context.Context, id, path string) error
	// MoveFile renames a file or directory within the workspace, and makes the directories above its new place.
	MoveFile(ctx context.Context, id, from, to string) error
}

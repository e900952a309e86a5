package notebook

import (
	"context"
	"strings"

	"github.com/sandfarm/sandfarm/api/compat/toolset"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// File is an entry of the list of files.
type File struct {
	Path string `json:"path"` // relative to the sandbox
	Size int64  `json:"size"`
}

// Files lists every file of a sandbox.
func (n *Service) Files(ctx context.Context, id string) ([]File, error) {
	if err := n.open(ctx, id); err != nil {
		return nil, err
	}
	found, err := n.farm.Files(ctx, id, "", true, farm.MaxListedFiles)
	if err != nil {
		return nil, n.recheck(ctx, id, err)
	}
	list := []File{}
	for _, e := range found {
		if e.Type == "file" {
			list = append(list, File{Path: e.Path, Size: e.Size})
		}
	}
	return list, nil
}

// Readable returns an error unless the sandbox exists and the path is inside it.
func (n *Service) Readable(ctx context.Context, id, path string) error {
	if err := n.open(ctx, id); err != nil {
		return err
	}
	_, err := inside(path)
	return err
}

// Unreadable converts an error of a read to the original's words.
func (n *Service) Unreadable(ctx context.Context, id string, err error) error {
	err = n.recheck(ctx, id, err)
	switch farm.CodeOf(err) {
	case farm.CodeNotFound, farm.CodeInvalid: // missing, a directory, or a link that leads out
		return noFile()
	default:
		return err
	}
}

// inside converts a caller's path to one of the workspace. It refuses a path that leads out.
func inside(path string) (string, error) {
	clean, err := farm.CleanFilePath(toolset.Lexical(path))
	if err == nil {
		return clean, nil
	}
	if strings.HasPrefix(path, "/") || strings.Contains(path, "..") {
		return "", outside()
	}
	return "", err
}

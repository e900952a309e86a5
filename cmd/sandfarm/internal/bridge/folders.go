package bridge

import (
	"path/filepath"

	"github.com/sandfarm/sandfarm/api/mcp"
)

var _ mcp.LocalFolders = (*Roots)(nil)

// Folder opens a directory below a root, or a root itself. Relative paths start at the first root. The caller must skip the hidden
// files in it.
func (r *Roots) Folder(path string) (*mcp.LocalFolder, error) {
	in, name, err := r.find(path)
	if err != nil {
		return nil, err
	}
	dir, err := in.open.OpenRoot(name)
	if err != nil {
		return nil, r.explain(err)
	}
	return &mcp.LocalFolder{Name: filepath.Base(filepath.Join(in.name, name)), Files: dir.FS(), Close: dir.Close}, nil
}

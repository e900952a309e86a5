package mcp

import "io/fs"

// LocalFolders are local files of which a directory can be had as a whole.
type LocalFolders interface {
	LocalFiles
	// Folder opens a directory. The caller closes it.
	Folder(path string) (*LocalFolder, error)
}

// LocalFolder is a directory on the machine where the caller runs. Nothing outside of it can be opened through Files.
type LocalFolder struct {
	Name  string // its last element, also where the path was "."
	Files fs.FS
	Close func() error
}

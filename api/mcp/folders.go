package mcp

import "io/fs"

// LocalFolders are local files that can also be read as whole directories.
type LocalFolders interface {
	LocalFiles
	// Folder opens a directory. The caller closes it.
	Folder(path string) (*LocalFolder, error)
}

// LocalFolder is a directory on the machine where the caller runs. Nothing outside of it can be opened through Files.
type LocalFolder struct {
	Name  string // its last element, also if the path was "."
	Files fs.FS
	Close func() error
}

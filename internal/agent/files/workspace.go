// Package files serves the files of a sandbox, in two ways that share everything below their requests: the resolution of paths (tree.go), the
// walk and its pages (list.go), the description of files and the codes of errors (entry.go), writing aside, copies and removals
// (write.go), and archives (tar.go). Any entry may be a link, a pipe or a device, and user code may replace it at any time.
//
// A Workspace is the way of jobs. The agent serves it, and Put writes the agent's own files. A Server is the way of the live path, in a process that
// the agent starts as it starts user code (ADR 13).
//
// What differs is meant:
//
//   - Who serves. The agent may do what user code may not, so it must not follow a path out of the workspace. The process may do
//     what user code may, so the kernel decides, also in /proc. It has no way to the agent: its requests come over a descriptor, and the agent reads
//     its answers as it would those of user code, which may kill or replace it.
//   - Paths. A Workspace has a tree as its root: relative paths, resolved element by element, by no link or ".." out of it. A link with an absolute
//     target leads out, too. os.Root cannot stand for it: under gVisor it follows links (see tree). A Server has the root anywhere: absolute paths as
//     the kernel resolves them. Archives of both are unpacked into a tree.
//   - Links at the end of a path. A Workspace replaces them, a Server writes to what they lead to.
//   - Where files are written aside. A Workspace has one staging directory in its top, and makes the directories above a file once its content
//     is complete: an interrupted upload leaves nothing. A Server writes beside the file, on its file system, and makes them before.
//   - Fences. Changes of the Workspace are jobs, in line with the others. Those of a Server happen at once, so a write can name the version that it
//     replaces; the process has one lock for it. Against user code holds only that there is no file.
//   - Modes. A Workspace gives 0644 unless one is named, a Server that of the file that is there. The workspace's entries and archives have no
//     bits beyond 0777, and its archives 0755 for directories and no links.
//   - Limits. A Workspace is listed in pages of 100,000 entries, as deep as it is; one is one job. A Server lists 10,000, at most
//     farm.MaxFSDepth deep, stays out of file systems that are the kernel's own, and sends contents and archives in pieces of agent.PieceBytes,
//     since its callers may be slow.
//   - Errors. Those of a Server begin with the kernel's name of them.
package files

import (
	"archive/tar"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Workspace is a directory of user code. Paths are relative to it, or absolute under its public name; no path and no symbolic
// link leads out of it. Create it with Open.
type Workspace struct {
	dir  string
	seed maphash.Seed

	mu     sync.RWMutex // while root is used to open something, and while it is closed
	root   tree
	closed bool
}

// Open opens the workspace in an existing directory. The caller closes it.
func Open(dir string) (*Workspace, error) {
	dir = filepath.Clean(dir)
	root, err := openTree(dir)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	_ = root.removeAll(stagingDir)
	return &Workspace{dir: dir, root: root, seed: maphash.MakeSeed()}, nil
}

// Close closes the workspace. The files stay.
func (w *Workspace) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.closed = true
		w.root.close()
	}
	return nil
}

// top returns the workspace's tree, for one call. The caller closes it.
func (w *Workspace) top() (tree, error) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.closed {
		return tree{}, fs.ErrClosed
	}
	return w.root.dup()
}

// at calls do with the workspace's tree and a path of a caller, and has its error explained.
func (w *Workspace) at(p string, do func(top tree, p string) error) error {
	p, err := cleanPath(p)
	if err != nil {
		return err
	}
	top, err := w.top()
	if err != nil {
		return err
	}
	defer top.close()
	return Problem(do(top, p), p)
}

// atFile is at for everything but the workspace itself.
func (w *Workspace) atFile(p string, do func(top tree, p string) error) error {
	if _, err := farm.CleanFilePath(p); err != nil {
		return err
	}
	return w.at(p, do)
}

// cleanPath is farm.CleanPath; staging directories are refused.
func cleanPath(p string) (string, error) {
	clean, err := farm.CleanPath(p)
	if err == nil && slices.Contains(elements(clean), stagingDir) {
		return "", farm.Invalidf("%s is a name that the sandbox reserves", stagingDir)
	}
	return clean, err
}

// Stat describes one path. It does not follow a symbolic link.
func (w *Workspace) Stat(p string) (e farm.FileEntry, err error) {
	err = w.at(p, func(top tree, p string) error {
		of, err := stat(top, p, false)
		if err == nil {
			e = of.workEntry(p)
		}
		return err
	})
	return e, err
}

// Open opens a regular file for reading. It never opens a device and never waits for the other end of a pipe. The caller closes
// the file.
func (w *Workspace) Open(p string) (f *os.File, e farm.FileEntry, err error) {
	err = w.atFile(p, func(top tree, p string) error {
		opened, of, err := top.file(p, unix.O_RDONLY, 0)
		switch {
		case errors.Is(err, unix.EISDIR):
			return farm.Invalidf("%s is not a regular file", p)
		case err != nil:
			return err
		}
		f, e = opened, of.workEntry(p)
		return nil
	})
	return f, e, err
}

// Mkdir creates a directory and its parents.
func (w *Workspace) Mkdir(p string) error {
	return w.at(p, func(top tree, p string) error { return mkdirAll(top, p) })
}

// Remove removes a file, or a directory with all its contents.
func (w *Workspace) Remove(p string) error {
	return w.atFile(p, func(top tree, p string) error { return remove(top, p) })
}

// Move renames a file or a directory and creates the parents of the new name.
func (w *Workspace) Move(from, to string) error {
	return w.atFile(from, func(top tree, from string) error {
		return w.atFile(to, func(_ tree, to string) error { return move(top, from, to, nil) })
	})
}

// Write writes a file atomically and creates its parents, once the content is complete. It replaces an existing file, and a link.
func (w *Workspace) Write(p string, mode fs.FileMode, r io.Reader) (e farm.FileEntry, err error) {
	err = w.atFile(p, func(top tree, p string) error {
		if of, err := stat(top, p, true); err == nil && of.isDir() {
			return unix.EISDIR
		}
		err := top.write(uint32(mode), r, func(aside tree, name string) error {
			if err := mkdirAll(top, path.Dir(p)); err != nil {
				return err
			}
			return rename(aside, name, top, p)
		})
		if err != nil {
			return err
		}
		of, err := stat(top, p, false)
		if err == nil {
			e = of.workEntry(p)
		}
		return err
	})
	return e, err
}

// PutTar unpacks a tar archive under a directory, entirely or not at all.
func (w *Workspace) PutTar(p string, r io.Reader) error {
	return w.at(p, func(top tree, p string) error { return unpack(top, p, r, nil) })
}

// PutFiles is PutTar for files that are written as by Write, and describes them.
func (w *Workspace) PutFiles(p string, r io.Reader) (entries []farm.FileEntry, err error) {
	err = w.at(p, func(top tree, p string) error {
		return unpack(top, p, r, func(p string) error {
			of, err := stat(top, p, false)
			if err == nil {
				entries = append(entries, of.workEntry(p))
			}
			return err
		})
	})
	return entries, err
}

// WriteTar writes the regular files and directories under a directory as a tar archive.
func (w *Workspace) WriteTar(p string, to io.Writer) error {
	return w.at(p, func(top tree, p string) error {
		if of, err := stat(top, p, true); err != nil || !of.isDir() {
			if err == nil {
				err = farm.Invalidf("%s is not a directory", p)
			}
			return err
		}
		k := packer{pages: pages{root: top, base: p}, out: to, plain: true, limit: math.MaxInt64, room: math.MaxInt64}
		if _, err := k.pack(); err != nil {
			return err
		}
		return tar.NewWriter(to).Close()
	})
}

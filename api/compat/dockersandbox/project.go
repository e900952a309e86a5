package dockersandbox

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/compat/toolset"
	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// leftOut describes what is not copied of a project.
const leftOut = ".git, __pycache__, node_modules, virtual environments and the caches of tools"

// nobodySends are names that are never copied.
func nobodySends(name string) bool {
	switch name {
	case ".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", "venv", ".tox", ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache",
		".ipynb_checkpoints", ".DS_Store":
		return true
	default:
		return strings.HasSuffix(name, ".pyc")
	}
}

// projected is the answer of copy_project.
type projected struct {
	Success    bool     `json:"success"`
	DestDir    string   `json:"dest_dir"`
	ProjectDir string   `json:"project_dir"` // path of the directory itself
	Files      int      `json:"files"`
	Skipped    []string `json:"skipped,omitempty"` // what was not copied, without nobodySends
}

func copyProject(ctx context.Context, c *toolset.Call) (any, error) {
	p, err := findTarget(ctx, c)
	if err != nil {
		return nil, err
	}
	dest, err := p.inside("dest_dir", c.Text("dest_dir"))
	if err != nil {
		return nil, err
	}
	name, walk, done, err := project(c)
	if err != nil {
		return nil, err
	}
	defer done()
	if name == "/" || name == "." || name == ".." {
		return nil, farm.Invalidf("local_src_dir names no directory: its last element is the name that the copy gets.")
	}
	w := &packer{root: name}
	if err := w.send(ctx, c, p.id, dest, walk); err != nil {
		return nil, err
	}
	if err := p.reach(ctx, c, path.Join(dest, name)); err != nil {
		return nil, err
	}
	return projected{Success: true, DestDir: p.shown(dest), ProjectDir: p.shown(path.Join(dest, name)), Files: w.files, Skipped: w.skipped()}, nil
}

// project returns the name of the directory to copy and a function that packs it.
func project(c *toolset.Call) (name string, walk func(*packer) error, done func(), err error) {
	nothing := func() {}
	local := strings.TrimRight(c.Text("local_src_dir"), "/\\")
	name = path.Base("/" + strings.ReplaceAll(local, "\\", "/"))
	switch {
	case c.Has("content") && c.Has("content_base64"):
		return "", nil, nothing, mcp.BothContents()
	case c.Has("content"):
		return name, func(w *packer) error { return w.texts(c.Object("content")) }, nothing, nil
	case c.Has("content_base64"):
		raw, err := mcp.DecodeBase64(c.Arguments, "content_base64")
		return name, func(w *packer) error { return w.archive(raw) }, nothing, err
	}
	folders, ok := c.Local.(mcp.LocalFolders)
	if !ok {
		return "", nil, nothing, mcp.LocalUnreadable("local_src_dir", "give its files as content, or the whole as a tar in content_base64", toolset.Program(Name))
	}
	folder, err := folders.Folder(c.Text("local_src_dir"))
	if err != nil {
		return "", nil, nothing, mcp.LocalError("local_src_dir", c.Text("local_src_dir"), err)
	}
	return folder.Name, func(w *packer) error { return w.folder(folder.Files) }, func() { _ = folder.Close() }, nil
}

// packer writes a project as a tar.
type packer struct {
	*tar.Writer
	root  string
	files int
	left  []string // skipped names
}

// send streams the tar into the sandbox.
func (w *packer) send(ctx context.Context, c *toolset.Call, id, dest string, walk func(*packer) error) error {
	from, into := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		defer func() {
			if v := recover(); v != nil {
				err := fmt.Errorf("pack project: panic: %v", v)
				_ = into.CloseWithError(err)
				packed <- err
			}
		}()
		w.Writer = tar.NewWriter(into)
		err := w.add(".", fs.ModeDir|0o755, 0, nil)
		if err == nil {
			err = walk(w)
		}
		if err == nil {
			err = w.Close()
		}
		_ = into.CloseWithError(err)
		packed <- err
	}()
	err := c.Farm.WriteTar(ctx, id, dest, from, -1)
	_ = from.CloseWithError(errSent)
	if why := <-packed; why != nil && !errors.Is(why, errSent) {
		return why // the farm only knows that the tar ended early
	}
	return err
}

// errSent stops packing when the farm has stopped reading.
var errSent = errors.New("pack project: the farm takes no more")

// add writes one member, unless its name is in nobodySends. Names are relative to the project.
func (w *packer) add(name string, mode fs.FileMode, size int64, content io.Reader) error {
	if slices.ContainsFunc(strings.Split(strings.TrimRight(name, "/"), "/"), nobodySends) {
		return nil
	}
	clean, err := farm.CleanPath(name)
	if err != nil || strings.HasPrefix(name, "/") {
		return farm.Invalidf("The project holds the name %q, which leads out of it or cannot be stored.", name)
	}
	header := &tar.Header{Name: path.Join(w.root, clean), Typeflag: tar.TypeReg, Size: size, Mode: 0o644, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	if mode.Perm()&0o111 != 0 {
		header.Mode = 0o755
	}
	if mode.IsDir() {
		header.Typeflag, header.Name, header.Mode = tar.TypeDir, header.Name+"/", 0o755
	} else if clean == "." {
		return farm.Invalidf("The project holds a file without a name.")
	}
	if err := w.WriteHeader(header); err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	if mode.IsDir() {
		return nil
	}
	w.files++
	if _, err := io.Copy(w, content); err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	return nil
}

// texts packs files from an object from path to text.
func (w *packer) texts(content map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(content)) {
		text, ok := content[name].(string)
		if !ok {
			return farm.Invalidf("content holds no text under %q: it is an object from relative path to text.", name)
		}
		mode := fs.FileMode(0o644)
		if strings.HasSuffix(name, "/") {
			mode = fs.ModeDir
		} else if strings.HasPrefix(text, "#!") {
			mode = 0o755 // a script: JSON cannot carry an executable bit
		}
		if err := w.add(name, mode, int64(len(text)), strings.NewReader(text)); err != nil {
			return err
		}
	}
	return nil
}

package compat

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

	"github.com/sandfarm/sandfarm/api/mcp"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// dockerWritten is the answer of the tools that write one file.
type dockerWritten struct {
	Success  bool   `json:"success"`
	FilePath string `json:"file_path"`
}

func dockerWriteFile(ctx context.Context, c *Call) (any, error) {
	p, err := findDockerTarget(ctx, c)
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
	return dockerPut(ctx, c, p, "file_name", name, strings.NewReader(text), int64(len(text)))
}

// dockerPut writes one file of the workspace.
func dockerPut(ctx context.Context, c *Call, p dockerTarget, param, name string, content io.Reader, size int64) (any, error) {
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
	return dockerWritten{Success: true, FilePath: p.shown(clean)}, p.reach(ctx, c, clean)
}

func dockerCopyFile(ctx context.Context, c *Call) (any, error) {
	p, err := findDockerTarget(ctx, c)
	if err != nil {
		return nil, err
	}
	content, size, err := mcp.OpenUpload(c.Arguments, c.Local, "local_src_file", program(dockerName))
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }() // read errors come with the bytes
	name := c.Text("dest_path")
	if name == "" || strings.HasSuffix(name, "/") {
		name += mcp.LocalName(c.Text("local_src_file"))
	}
	return dockerPut(ctx, c, p, "dest_path", name, content, size)
}

// dockerCopied is the answer of copy_file_from_sandbox.
type dockerCopied struct {
	Success   bool   `json:"success"`
	LocalPath string `json:"local_path,omitempty"`
	FileSize  int64  `json:"file_size"`
	URL       string `json:"url,omitempty"`
}

func dockerCopyOut(ctx context.Context, c *Call) (any, error) {
	p, err := findDockerTarget(ctx, c)
	if err != nil {
		return nil, err
	}
	local := c.Text("local_dest_path")
	if local != "" && c.Local == nil {
		return nil, mcp.LocalUnwritable("local_dest_path", "leave it out, and the answer has a url to download the file from", program(dockerName))
	}
	wanted := c.Text("container_src_path")
	file, err := p.source(wanted)
	if err != nil {
		return nil, err
	}
	var out dockerCopied
	if file != "" {
		out, err = dockerTake(ctx, c, p, file, local)
	}
	if code := farm.CodeOf(err); file != "" && code != farm.CodeNotFound && code != farm.CodeInvalid {
		return out, err
	}
	// It is outside the workspace or a link: read a copy of it.
	dir, staged, absent := p.stage(ctx, c, wanted)
	defer func() { _ = c.Farm.RemoveFile(context.WithoutCancel(ctx), p.id, dir) }() // if this fails, the copy stays until the sandbox closes
	switch {
	case absent == nil:
		return dockerTake(ctx, c, p, staged, local)
	case err != nil:
		return nil, err
	default:
		return nil, absent
	}
}

// dockerTake delivers a file of the workspace to the caller.
func dockerTake(ctx context.Context, c *Call, p dockerTarget, file, local string) (dockerCopied, error) {
	if c.Local == nil {
		read, err := c.Farm.ReadFile(ctx, p.id, file, 0)
		if err != nil {
			return dockerCopied{}, err
		}
		url, err := c.Farm.LinkFile(ctx, p.id, file)
		return dockerCopied{Success: true, FileSize: read.Entry.Size, URL: url}, err
	}
	if local == "" {
		local = path.Base(file)
	}
	size, err := c.saveLocal(ctx, p.id, file, "local_dest_path", local)
	return dockerCopied{Success: true, LocalPath: local, FileSize: size}, err
}

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

// dockerProjected is the answer of copy_project.
type dockerProjected struct {
	Success    bool     `json:"success"`
	DestDir    string   `json:"dest_dir"`
	ProjectDir string   `json:"project_dir"` // path of the directory itself
	Files      int      `json:"files"`
	Skipped    []string `json:"skipped,omitempty"` // what was not copied, without nobodySends
}

func dockerCopyProject(ctx context.Context, c *Call) (any, error) {
	p, err := findDockerTarget(ctx, c)
	if err != nil {
		return nil, err
	}
	dest, err := p.inside("dest_dir", c.Text("dest_dir"))
	if err != nil {
		return nil, err
	}
	name, walk, done, err := openProject(ctx, c)
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
	return dockerProjected{Success: true, DestDir: p.shown(dest), ProjectDir: p.shown(path.Join(dest, name)), Files: w.files, Skipped: w.skipped()}, nil
}

// openProject returns the name of the directory to copy and a function that packs it.
func openProject(ctx context.Context, c *Call) (name string, walk func(*packer) error, done func(), err error) {
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
		return name, func(w *packer) error { return w.archive(ctx, raw) }, nothing, err
	}
	folders, ok := c.Local.(mcp.LocalFolders)
	if !ok {
		return "", nil, nothing, mcp.LocalUnreadable("local_src_dir", "give its files as content, or the whole as a tar in content_base64", program(dockerName))
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
	left  []string // skipped names, at most maxSkipped
	more  int      // how many were skipped beyond those
}

// send streams the tar into the sandbox.
func (w *packer) send(ctx context.Context, c *Call, id, dest string, walk func(*packer) error) error {
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
	if neverSent(name) {
		return nil
	}
	clean, err := farm.CleanPath(name)
	if err != nil || strings.HasPrefix(name, "/") {
		return farm.Invalidf("The project holds the name %q, which leads out of it or cannot be stored.", farm.Shorten(name))
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

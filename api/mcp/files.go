package mcp

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func (s *Server) uploadFile() *tool {
	local := "Not read here, only by sandfarm mcp: give content."
	if s.Local != nil {
		local = "File on this machine, of any size, instead of content."
	}
	return &tool{
		name: "upload_file_to_sandbox", title: "Upload a file",
		about: "Write a file into /workspace: text as content, or bytes as content_base64, up to about 10 MiB. A file of that name is replaced, directories are made. Next: code and commands find it by its path.",
		params: []param{
			sandboxParam(),
			{name: "dest_path", kind: text, doc: "Its path in /workspace, such as data/in.csv; with / at the end a directory."},
			{name: "content", kind: text, doc: "Text of the file."},
			{name: "content_base64", kind: text, doc: "Bytes of the file, in base64."},
			{name: "local_file_path", kind: text, doc: local},
		},
		output: uploadSchema, hints: hints{destructive: true, idempotent: true}, pathParam: "dest_path", run: (*call).uploadFile,
	}
}

func (c *call) uploadFile() (*answer, error) {
	content, size, err := OpenUpload(c.arguments, c.Local, "local_file_path", "sandfarm mcp")
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }() // read errors come with the bytes
	dest, err := c.destination()
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	count := &counter{}
	entry, err := c.farm.WriteFile(c.ctx, c.text("sandbox_id"), dest, io.TeeReader(content, io.MultiWriter(sum, count)), size)
	if err != nil {
		return nil, err
	}
	hash := hex.EncodeToString(sum.Sum(nil))
	return &answer{
		text:       fmt.Sprintf("Wrote %s (%d bytes, sha256 %s) in sandbox %s. Code finds it there, relative to /workspace.", entry.Path, count.n, hash, c.text("sandbox_id")),
		structured: map[string]any{"sandbox_id": c.text("sandbox_id"), "path": entry.Path, "size": count.n, "sha256": hash},
	}, nil
}

type counter struct{ n int64 }

// Write counts.
func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// oldResults is the workspace's name in an older system. Every image has a link of this name.
const oldResults = "/app/results"

// destination is the path of an upload in the workspace.
func (c *call) destination() (string, error) {
	dest, name := c.text("dest_path"), LocalName(c.text("local_file_path"))
	if rest, ok := strings.CutPrefix(dest, oldResults); ok && (rest == "" || rest[0] == '/') { // the older system's name of the workspace
		if dest = strings.TrimLeft(rest, "/"); dest == "" && name != "" {
			return name, nil
		}
	}
	switch {
	case dest != "" && !strings.HasSuffix(dest, "/"):
		return dest, nil
	case name != "":
		return dest + name, nil
	case dest == "":
		return "", farm.Invalidf("dest_path is missing: give the file's path in the workspace, such as data/in.csv.")
	default:
		return "", farm.Invalidf("dest_path %q names a directory: add the name of the file.", farm.Shorten(dest))
	}
}

func listFiles() *tool {
	return &tool{
		name: "list_files", title: "List files",
		about: "List files of /workspace with size and time: what code has made, or where an upload went. Next: download_file for content and link.",
		params: []param{
			sandboxParam(),
			{name: "path", kind: text, doc: "Directory in /workspace, which is the default."},
			{name: "recursive", kind: flag, standard: false, doc: "The whole tree."},
		},
		output: filesSchema, hints: reads(), pathParam: "path", run: (*call).listFiles,
	}
}

func (c *call) listFiles() (*answer, error) {
	entries, err := c.farm.Files(c.ctx, c.text("sandbox_id"), c.text("path"), c.flag("recursive"), c.Limits.ListedFiles+1)
	if err != nil {
		return nil, err
	}
	more := len(entries) > c.Limits.ListedFiles
	entries = entries[:min(len(entries), c.Limits.ListedFiles)]
	list := make([]map[string]any, len(entries))
	var b strings.Builder
	for i, e := range entries {
		list[i] = map[string]any{"path": e.Path, "size": e.Size, "mode": e.Mode, "modified_at": stamp(e.ModifiedAt), "type": e.Type}
		if e.Type == "dir" {
			fmt.Fprintf(&b, "%s/\n", e.Path)
		} else {
			fmt.Fprintf(&b, "%s (%d bytes)\n", e.Path, e.Size)
		}
	}
	switch {
	case len(entries) == 0:
		b.WriteString("There are no files.")
	case more:
		fmt.Fprintf(&b, "These are the first %d. There are more: list a subdirectory with path.", len(entries))
	}
	return &answer{text: b.String(), structured: map[string]any{"sandbox_id": c.text("sandbox_id"), "files": list, "truncated": more}}, nil
}

func (s *Server) downloadFile() *tool {
	t := &tool{
		name: "download_file", title: "Download a file",
		about: "Get a file of /workspace: text up to 64 KiB and pictures up to 1 MiB in the answer, and a link that needs no credentials for about an hour. Use it to look into a file, or for the link of an artifact for the user.",
		params: []param{
			sandboxParam(),
			{name: "file_path", kind: text, required: true, doc: "Its path, as list_files or an artifact has it."},
		},
		output: downloadSchema, hints: reads(), pathParam: "file_path", run: (*call).downloadFile,
	}
	if s.Local != nil {
		t.params = append(t.params, param{name: "local_dest_path", kind: text, doc: "Where to save it on this machine, up to 64 MiB; with / at the end a directory."})
		t.hints = hints{readOnly: true}
	}
	return t
}

func (c *call) downloadFile() (*answer, error) {
	id, name, local := c.text("sandbox_id"), c.text("file_path"), c.text("local_dest_path")
	limit := max(c.Limits.InlineText, c.Limits.ImageBytes)
	if local != "" {
		limit = max(limit, c.Limits.LocalFileBytes)
	}
	f, err := c.farm.ReadFile(c.ctx, id, name, limit)
	if err != nil {
		return nil, err
	}
	url, err := c.farm.LinkFile(c.ctx, id, name)
	if err != nil {
		return nil, err
	}
	kind := contentType(f.Entry.Path, f.Content)
	out := &answer{structured: map[string]any{"sandbox_id": id, "path": f.Entry.Path, "size": f.Entry.Size, "content_type": kind, "url": url}}
	var b strings.Builder
	fmt.Fprintf(&b, "File %s (%s, %d bytes): %s\n", f.Entry.Path, kind, f.Entry.Size, url)
	if local != "" {
		put, err := c.save(local, f)
		if err != nil {
			return nil, err
		}
		out.structured["local_path"] = put
		fmt.Fprintf(&b, "It was saved on this machine as %s.\n", put)
	}
	size := int64(len(f.Content))
	switch {
	case f.Content == nil:
		b.WriteString("It is too large for this answer: use the link.\n")
	case isPicture(kind) && size <= c.Limits.ImageBytes:
		out.blocks = append(out.blocks, mcp.NewImageContent(base64.StdEncoding.EncodeToString(f.Content), kind))
	case plain(f.Content) && size <= c.Limits.InlineText:
		fmt.Fprintf(&b, "content:\n%s", f.Content)
	default:
		b.WriteString("Its content is not in this answer: use the link, or read it with execute_python_code.\n")
	}
	out.text = b.String()
	out.blocks = append(out.blocks, link(fileURI(id, f.Entry.Path), path.Base(f.Entry.Path), kind, f.Entry.Size))
	return out, nil
}

// save writes a file on the caller's machine.
func (c *call) save(dest string, f File) (_ string, err error) {
	if f.Content == nil {
		return "", farm.Errorf(farm.CodeTooLarge, "local_dest_path takes files of at most %d bytes; this one has %d: use the link of download_file without it.", c.Limits.LocalFileBytes, f.Entry.Size)
	}
	if strings.HasSuffix(dest, "/") {
		dest += path.Base(f.Entry.Path)
	}
	w, err := c.Local.Create(dest)
	if err != nil {
		return "", LocalError("local_dest_path", dest, err)
	}
	if _, err = w.Write(f.Content); err != nil {
		_ = w.Close() // the first error counts
		return "", LocalError("local_dest_path", dest, err)
	}
	if err := w.Close(); err != nil {
		return "", LocalError("local_dest_path", dest, err)
	}
	return dest, nil
}

// plain reports whether bytes are text: valid UTF-8 without NUL.
func plain(b []byte) bool { return utf8.Valid(b) && !bytes.ContainsRune(b, 0) }

// contentType gives a file's media type by its name, or by its content if the name has no known ending.
func contentType(name string, content []byte) string {
	if kind, _, err := mime.ParseMediaType(mime.TypeByExtension(strings.ToLower(path.Ext(name)))); err == nil {
		return kind
	}
	if content != nil && plain(content) {
		return "text/plain"
	}
	return "application/octet-stream"
}

// LocalFiles are the files on the machine where the caller runs.
type LocalFiles interface {
	Open(path string) (io.ReadCloser, int64, error) // with its size, -1 if that is unknown
	Create(path string) (io.WriteCloser, error)
}

// OpenUpload opens the content of an upload and gives its size, -1 if that is unknown. The content is the text in the argument
// content, the bytes in content_base64, or the file on the caller's machine that the argument param names. That file can only be
// read if local is not nil; otherwise the error names the program that can. The caller closes the content.
func OpenUpload(a Arguments, local LocalFiles, param, program string) (io.ReadCloser, int64, error) {
	hasText, hasBytes, hasLocal := a.has("content"), a.has("content_base64"), a.has(param)
	const instead = "give the file's text as content, or its bytes as content_base64"
	switch {
	case hasText && hasBytes:
		return nil, 0, BothContents()
	case hasText:
		s := a.text("content")
		return io.NopCloser(strings.NewReader(s)), int64(len(s)), nil
	case hasBytes:
		content, err := DecodeBase64(a, "content_base64")
		return io.NopCloser(bytes.NewReader(content)), int64(len(content)), err
	case hasLocal && local == nil:
		return nil, 0, LocalUnreadable(param, instead, program)
	case hasLocal:
		content, size, err := local.Open(a.text(param))
		if err != nil {
			return nil, 0, LocalError(param, a.text(param), err)
		}
		return content, size, nil
	default:
		return nil, 0, farm.Invalidf("content is missing: %s.", instead)
	}
}

// BothContents is the error for an upload with content and content_base64.
func BothContents() error { return farm.Invalidf("Give content or content_base64, not both.") }

// DecodeBase64 gives the bytes of an argument in base64, which may be broken into lines. They are never nil.
func DecodeBase64(a Arguments, name string) ([]byte, error) {
	content, err := fromBase64(a.text(name))
	if err != nil {
		return nil, farm.Invalidf("%s is not base64.", name)
	}
	return content, nil
}

// fromBase64 decodes base64 with white space in it. A list of the words of a text would take sixteen bytes for each.
func fromBase64(text string) ([]byte, error) {
	if content, err := base64.StdEncoding.DecodeString(text); err == nil { // it passes over line breaks
		return content, nil
	}
	return base64.StdEncoding.DecodeString(strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, text))
}

// LocalError is the error for a file on the caller's own machine. It tells the cause, since the file is the caller's.
func LocalError(param, name string, err error) error {
	return farm.Invalidf("%s %q cannot be used: %v.", param, farm.Shorten(name), err)
}

// LocalUnreadable is the error for a path on a machine that this server cannot read. It is the same whether or not the path
// exists. It tells what to give instead, and which program does read the file.
func LocalUnreadable(param, instead, program string) error {
	return farm.Invalidf("%s is on your machine, which this server cannot read: %s. The stdio server, %s, reads it.", param, instead, program)
}

// LocalUnwritable is the same for a path to write.
func LocalUnwritable(param, instead, program string) error {
	return farm.Invalidf("%s is on your machine, where this server cannot write: %s. The stdio server, %s, writes it.", param, instead, program)
}

// LocalName is the last element of a path on the caller's machine, with the separators of any system. It is empty if the path
// names no file.
func LocalName(path string) string {
	path = strings.TrimRight(strings.ReplaceAll(path, "\\", "/"), "/")
	name := path[strings.LastIndexByte(path, '/')+1:]
	if name == "." || name == ".." {
		return ""
	}
	return name
}

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

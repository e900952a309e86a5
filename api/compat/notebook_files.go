package compat

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"strings"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// notebookFile is an entry of the list of files.
type notebookFile struct {
	Path string `json:"path"` // relative to the sandbox
	Size int64  `json:"size"`
}

// Files lists every file of a sandbox.
func (n *Notebook) Files(ctx context.Context, id string) ([]notebookFile, error) {
	if err := n.open(ctx, id); err != nil {
		return nil, err
	}
	found, err := n.farm.Files(ctx, id, "", true, farm.MaxListedFiles)
	if err != nil {
		return nil, n.recheck(ctx, id, err)
	}
	list := []notebookFile{}
	for _, e := range found {
		if e.Type == "file" {
			list = append(list, notebookFile{Path: e.Path, Size: e.Size})
		}
	}
	return list, nil
}

// Readable returns an error unless the sandbox exists and the path is inside it.
func (n *Notebook) Readable(ctx context.Context, id, path string) error {
	if err := n.open(ctx, id); err != nil {
		return err
	}
	_, err := notebookPath(path)
	return err
}

// Unreadable converts an error of a read to the original's words.
func (n *Notebook) Unreadable(ctx context.Context, id string, err error) error {
	err = n.recheck(ctx, id, err)
	switch farm.CodeOf(err) {
	case farm.CodeNotFound, farm.CodeInvalid: // missing, a directory, or a link that leads out
		return noNotebookFile()
	default:
		return err
	}
}

// notebookPath converts a caller's path to one of the workspace. It refuses a path that leads out.
func notebookPath(path string) (string, error) {
	clean, err := farm.CleanFilePath(lexical(path))
	if err == nil {
		return clean, nil
	}
	if strings.HasPrefix(path, "/") || strings.Contains(path, "..") {
		return "", outsideNotebook()
	}
	return "", err
}

const (
	// heldBytes is how much of a file is buffered: a later field of the form may still name its path.
	heldBytes = 4 << 20
	// fieldBytes is the longest plain field, maxFields the most fields of a form.
	fieldBytes = farm.MaxPathBytes
	maxFields  = 32
	// uploadPrefix starts the temporary name of a file whose path is not known yet.
	uploadPrefix = ".upload-"
)

// notebookUploaded is the answer to an upload.
type notebookUploaded struct {
	FilePath string `json:"file_path"` // relative to the sandbox
}

// Form is a multipart body, part by part.
type Form interface {
	// NextRawPart returns the next part, whose header it bounds, or io.EOF.
	NextRawPart() (*multipart.Part, error)
}

// Upload stores the file of a form. Its path is file_path from the query or from the form, or the file's own name. A large file is
// streamed to the sandbox while it is received.
func (n *Notebook) Upload(ctx context.Context, id, target string, form Form) (notebookUploaded, error) {
	if err := n.open(ctx, id); err != nil {
		return notebookUploaded{}, err
	}
	u := &notebookUpload{Notebook: n, id: id, target: target}
	defer u.tidy(ctx)
	for fields := 0; ; fields++ {
		part, err := form.NextRawPart()
		switch {
		case errors.Is(err, io.EOF):
			return u.end(ctx)
		case err != nil:
			return notebookUploaded{}, brokenForm(err)
		case fields >= maxFields:
			return notebookUploaded{}, WrongField("file", "There are too many fields", "value_error")
		}
		if err := u.take(ctx, part); err != nil {
			return notebookUploaded{}, err
		}
	}
}

// Write stores a file in a sandbox.
func (n *Notebook) Write(ctx context.Context, id, target string, content io.Reader) (notebookUploaded, error) {
	if err := n.open(ctx, id); err != nil {
		return notebookUploaded{}, err
	}
	return n.write(ctx, id, target, content)
}

func (n *Notebook) write(ctx context.Context, id, target string, content io.Reader) (notebookUploaded, error) {
	clean, err := notebookPath(target)
	if err != nil {
		return notebookUploaded{}, err
	}
	if _, err := n.farm.WriteFile(ctx, id, clean, content, -1); err != nil {
		return notebookUploaded{}, n.recheck(ctx, id, err)
	}
	return notebookUploaded{FilePath: clean}, nil
}

// notebookUpload is one form while it is received.
type notebookUpload struct {
	*Notebook
	id, target string
	name       string // the file's own
	seen       bool   // the form has had the file
	held       []byte // the file, while its path may still change
	stored     string // path where the file is already
}

func (u *notebookUpload) take(ctx context.Context, part *multipart.Part) error {
	switch part.FormName() {
	case "file_path":
		text, err := io.ReadAll(io.LimitReader(part, fieldBytes+1))
		switch {
		case err != nil:
			return brokenForm(err)
		case len(text) > fieldBytes:
			return WrongField("file_path", "The path is too long", "string_too_long")
		case u.target == "":
			u.target = string(text)
		}
		return nil
	case "file":
		name, isFile := fileName(part)
		if !isFile || u.seen {
			return WrongField("file", "Expected one file", "value_error")
		}
		u.seen, u.name = true, name
		return u.file(ctx, part)
	default:
		return nil // the original ignores other fields
	}
}

// file stores the file, or buffers it if it is small and its path may still follow: the request is charged for that, since the rest of the form may be slow.
func (u *notebookUpload) file(ctx context.Context, content io.Reader) error {
	if u.target != "" {
		return u.store(ctx, u.place(), content)
	}
	head, err := budget.ReadAll(ctx, io.LimitReader(content, heldBytes+1), -1, heldBytes+1)
	if err != nil {
		return brokenForm(err)
	}
	if len(head) <= heldBytes {
		u.held = head
		return nil
	}
	return u.store(ctx, uploadPrefix+farm.NewID(farm.RequestPrefix), io.MultiReader(bytes.NewReader(head), content))
}

func (u *notebookUpload) store(ctx context.Context, target string, content io.Reader) error {
	put, err := u.write(ctx, u.id, target, content)
	u.stored = put.FilePath
	return err
}

// end moves the file to the path that the complete form gives.
func (u *notebookUpload) end(ctx context.Context) (notebookUploaded, error) {
	if !u.seen {
		return notebookUploaded{}, MissingField("file")
	}
	if u.stored == "" {
		return u.write(ctx, u.id, u.place(), bytes.NewReader(u.held))
	}
	clean, err := notebookPath(u.place())
	if err != nil {
		return notebookUploaded{}, err
	}
	if u.stored != clean {
		if err := u.farm.MoveFile(ctx, u.id, u.stored, clean); err != nil {
			return notebookUploaded{}, u.recheck(ctx, u.id, err)
		}
		u.stored = clean
	}
	return notebookUploaded{FilePath: clean}, nil
}

// place is the path of the file: its own name if the form names none or a directory.
func (u *notebookUpload) place() string {
	if u.target == "" || strings.HasSuffix(u.target, "/") {
		return u.target + u.name
	}
	return u.target
}

// tidy removes a file that did not reach its path.
func (u *notebookUpload) tidy(ctx context.Context) {
	if strings.HasPrefix(u.stored, uploadPrefix) {
		_ = u.farm.RemoveFile(context.WithoutCancel(ctx), u.id, u.stored) // if this fails, the file stays until the sandbox closes
	}
}

// fileName is the file's name on its sender's machine, without directories.
func fileName(part *multipart.Part) (string, bool) {
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	name, ok := params["filename"]
	if err != nil || !ok {
		return "", false
	}
	name = path.Base("/" + strings.ReplaceAll(name, "\\", "/"))
	return strings.TrimPrefix(name, "/"), true
}

// brokenForm is the error for a form that cannot be parsed. Errors of the farm are kept.
func brokenForm(err error) error {
	if farm.CodeOf(err) != farm.CodeInternal {
		return err
	}
	return fmt.Errorf("read form: %w", WrongField("file", "The form is broken or ends too early", "multipart_error"))
}

// NotebookError is a refusal in the original's words: a status and the detail of its body. All other errors are the farm's, with its codes.
type NotebookError struct {
	Status int
	Detail any // a string, or a list of Field
}

// Error gives the detail.
func (e *NotebookError) Error() string { return fmt.Sprint(e.Detail) }

// Unwrap returns the same error as one of the farm.
func (e *NotebookError) Unwrap() error {
	code := farm.CodeInvalid
	if e.Status == http.StatusNotFound {
		code = farm.CodeNotFound
	}
	return farm.Errorf(code, "%s", e.Error())
}

// NotebookField is one mistake in a request, as the original's framework reports it.
type NotebookField struct {
	Loc  []string `json:"loc"`
	Msg  string   `json:"msg"`
	Type string   `json:"type"`
}

// MissingField refuses a request that lacks a field of its body.
func MissingField(field string) error { return WrongField(field, "Field required", "missing") }

// WrongField refuses a request with a mistake in a field of its body.
func WrongField(field, message, kind string) error {
	return &NotebookError{Status: http.StatusUnprocessableEntity, Detail: []NotebookField{{Loc: []string{"body", field}, Msg: message, Type: kind}}}
}

// The original's sentences.
func noNotebook() error {
	return &NotebookError{Status: http.StatusNotFound, Detail: "Sandbox not found"}
}

func noNotebookFile() error {
	return &NotebookError{Status: http.StatusNotFound, Detail: "File not found"}
}

func outsideNotebook() error {
	return &NotebookError{Status: http.StatusForbidden, Detail: "File access denied"}
}

// open returns an error unless the sandbox accepts work. To users of the original, a closed sandbox does not exist.
func (n *Notebook) open(ctx context.Context, id string) error {
	box, err := n.farm.Sandbox(ctx, id)
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound:
		return noNotebook()
	case err != nil:
		return err
	case !farm.SandboxState(box.State).Accepts():
		return noNotebook()
	}
	return nil
}

// recheck reads the sandbox of a failed call again: it may have been closed meanwhile.
func (n *Notebook) recheck(ctx context.Context, id string, err error) error {
	if code := farm.CodeOf(err); code != farm.CodeNotFound && code != farm.CodeConflict {
		return err
	}
	if again := n.open(ctx, id); again != nil {
		if _, ours := errors.AsType[*NotebookError](again); ours {
			return again
		}
	}
	return err
}

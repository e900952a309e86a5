package notebook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"path"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// heldBytes is how much of a file is buffered: a later field of the form may still name its path.
	heldBytes = 4 << 20
	// fieldBytes is the longest plain field, maxFields the most fields of a form.
	fieldBytes = farm.MaxPathBytes
	maxFields  = 32
	// uploadPrefix starts the temporary name of a file whose path is not known yet.
	uploadPrefix = ".upload-"
)

// Uploaded is the answer to an upload.
type Uploaded struct {
	FilePath string `json:"file_path"` // relative to the sandbox
}

// Upload stores the file of a form. Its path is file_path from the query or from the form, or the file's own name. A large file is
// streamed to the sandbox while it is received.
func (n *Service) Upload(ctx context.Context, id, target string, form *multipart.Reader) (Uploaded, error) {
	if err := n.open(ctx, id); err != nil {
		return Uploaded{}, err
	}
	u := &upload{Service: n, id: id, target: target}
	defer u.tidy(ctx)
	for fields := 0; ; fields++ {
		part, err := form.NextRawPart()
		switch {
		case errors.Is(err, io.EOF):
			return u.end(ctx)
		case err != nil:
			return Uploaded{}, broken(err)
		case fields >= maxFields:
			return Uploaded{}, Wrong("file", "There are too many fields", "value_error")
		}
		if err := u.take(ctx, part); err != nil {
			return Uploaded{}, err
		}
	}
}

// Write stores a file in a sandbox.
func (n *Service) Write(ctx context.Context, id, target string, content io.Reader) (Uploaded, error) {
	if err := n.open(ctx, id); err != nil {
		return Uploaded{}, err
	}
	return n.write(ctx, id, target, content)
}

func (n *Service) write(ctx context.Context, id, target string, content io.Reader) (Uploaded, error) {
	clean, err := inside(target)
	if err != nil {
		return Uploaded{}, err
	}
	if _, err := n.farm.WriteFile(ctx, id, clean, content, -1); err != nil {
		return Uploaded{}, n.recheck(ctx, id, err)
	}
	return Uploaded{FilePath: clean}, nil
}

// upload is one form while it is received.
type upload struct {
	*Service
	id, target string
	name       string // the file's own
	seen       bool   // the form has had the file
	held       []byte // the file, while its path may still change
	stored     string // path where the file is already
}

func (u *upload) take(ctx context.Context, part *multipart.Part) error {
	switch part.FormName() {
	case "file_path":
		text, err := io.ReadAll(io.LimitReader(part, fieldBytes+1))
		switch {
		case err != nil:
			return broken(err)
		case len(text) > fieldBytes:
			return Wrong("file_path", "The path is too long", "string_too_long")
		case u.target == "":
			u.target = string(text)
		}
		return nil
	case "file":
		name, isFile := fileName(part)
		if !isFile || u.seen {
			return Wrong("file", "Expected one file", "value_error")
		}
		u.seen, u.name = true, name
		return u.file(ctx, part)
	default:
		return nil // the original ignores other fields
	}
}

// file stores the file, or buffers it if it is small and its path may still follow.
func (u *upload) file(ctx context.Context, content io.Reader) error {
	if u.target != "" {
		return u.store(ctx, u.place(), content)
	}
	head, err := io.ReadAll(io.LimitReader(content, heldBytes+1))
	if err != nil {
		return broken(err)
	}
	if len(head) <= heldBytes {
		u.held = head
		return nil
	}
	return u.store(ctx, uploadPrefix+farm.NewID(farm.RequestPrefix), io.MultiReader(bytes.NewReader(head), content))
}

func (u *upload) store(ctx context.Context, target string, content io.Reader) error {
	put, err := u.write(ctx, u.id, target, content)
	u.stored = put.FilePath
	return err
}

// end moves the file to the path that the complete form gives.
func (u *upload) end(ctx context.Context) (Uploaded, error) {
	if !u.seen {
		return Uploaded{}, Missing("file")
	}
	if u.stored == "" {
		return u.write(ctx, u.id, u.place(), bytes.NewReader(u.held))
	}
	clean, err := inside(u.place())
	if err != nil {
		return Uploaded{}, err
	}
	if u.stored != clean {
		if err := u.farm.MoveFile(ctx, u.id, u.stored, clean); err != nil {
			return Uploaded{}, u.recheck(ctx, u.id, err)
		}
		u.stored = clean
	}
	return Uploaded{FilePath: clean}, nil
}

// place is the path of the file: its own name if the form names none or a directory.
func (u *upload) place() string {
	if u.target == "" || strings.HasSuffix(u.target, "/") {
		return u.target + u.name
	}
	return u.target
}

// tidy removes a file that did not reach its path.
func (u *upload) tidy(ctx context.Context) {
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

// broken is the error for a form that cannot be parsed. Errors of the farm are kept.
func broken(err error) error {
	if farm.CodeOf(err) != farm.CodeInternal {
		return err
	}
	return fmt.Errorf("read form: %w", Wrong("file", "The form is broken or ends too early", "multipart_error"))
}

package notebook

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Error is a refusal in the original's words: a status and the detail of its body. All other errors are the farm's, with its codes.
type Error struct {
	Status int
	Detail any // a string, or a list of Field
}

// Error gives the detail.
func (e *Error) Error() string { return fmt.Sprint(e.Detail) }

// Unwrap returns the same error as one of the farm.
func (e *Error) Unwrap() error {
	code := farm.CodeInvalid
	if e.Status == http.StatusNotFound {
		code = farm.CodeNotFound
	}
	return farm.Errorf(code, "%s", e.Error())
}

// Field is one mistake in a request, as the original's framework reports it.
type Field struct {
	Loc  []string `json:"loc"`
	Msg  string   `json:"msg"`
	Type string   `json:"type"`
}

// Missing refuses a request that lacks a field of its body.
func Missing(field string) error { return Wrong(field, "Field required", "missing") }

// Wrong refuses a request with a mistake in a field of its body.
func Wrong(field, message, kind string) error {
	return &Error{Status: http.StatusUnprocessableEntity, Detail: []Field{{Loc: []string{"body", field}, Msg: message, Type: kind}}}
}

// The original's sentences.
func noSandbox() error { return &Error{Status: http.StatusNotFound, Detail: "Sandbox not found"} }
func noFile() error    { return &Error{Status: http.StatusNotFound, Detail: "File not found"} }
func outside() error   { return &Error{Status: http.StatusForbidden, Detail: "File access denied"} }

// open returns an error unless the sandbox accepts work. To users of the original, a closed sandbox does not exist.
func (n *Service) open(ctx context.Context, id string) error {
	box, err := n.farm.Sandbox(ctx, id)
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound:
		return noSandbox()
	case err != nil:
		return err
	case !farm.SandboxState(box.State).Accepts():
		return noSandbox()
	}
	return nil
}

// recheck reads the sandbox of a failed call again: it may have been closed meanwhile.
func (n *Service) recheck(ctx context.Context, id string, err error) error {
	if code := farm.CodeOf(err); code != farm.CodeNotFound && code != farm.CodeConflict {
		return err
	}
	if again := n.open(ctx, id); again != nil {
		if _, ours := errors.AsType[*Error](again); ours {
			return again
		}
	}
	return err
}

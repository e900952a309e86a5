package strict

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// MaxProblems is how many problems of a body are reported.
const MaxProblems = 20

// Error says what is wrong with the form of a body. It counts as farm.CodeInvalid.
type Error struct {
	// Fields are the problems, at least one and at most MaxProblems.
	Fields []farm.FieldError
	// Whole means that no part of the body could be read.
	Whole bool
}

// Wholef is an error of the body as a whole.
func Wholef(format string, args ...any) *Error {
	return &Error{Whole: true, Fields: []farm.FieldError{{Detail: fmt.Sprintf(format, args...)}}}
}

func fieldsError(fields []farm.FieldError) error {
	if len(fields) == 0 {
		return nil
	}
	return &Error{Fields: fields}
}

// Error returns the sentences of the problems.
func (e *Error) Error() string { return farm.FieldsError(farm.CodeInvalid, e.Fields).Message }

// Unwrap returns the domain's error with the same fields.
func (e *Error) Unwrap() error { return farm.FieldsError(farm.CodeInvalid, e.Fields) }

// Fields returns the problems of single fields that Decode found. Any other error is returned as is.
func Fields(err error) ([]farm.FieldError, error) {
	if e, ok := errors.AsType[*Error](err); ok && !e.Whole {
		return e.Fields, nil
	}
	return nil, err
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// Pointer adds keys to a JSON pointer, escaped by RFC 6901.
func Pointer(pointer string, keys ...string) string {
	for _, key := range keys {
		pointer += "/" + pointerEscapes.Replace(key)
	}
	return pointer
}

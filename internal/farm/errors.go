package farm

import (
	"errors"
	"fmt"
)

// Code says what kind of error a caller is told. The zero value is not a code; errors without one count as CodeInternal.
type Code string

// The codes of the public contract.
const (
	CodeInvalid      Code = "invalid"      // the request is wrong; sending it again will not help
	CodeUnauthorized Code = "unauthorized" // no key, or a wrong one
	CodeNotFound     Code = "not_found"    // no such thing, or it is another tenant's
	CodeConflict     Code = "conflict"     // the thing is in a state that does not allow this
	CodeTooLarge     Code = "too_large"    // over a size limit
	CodeExhausted    Code = "exhausted"    // over a rate or depth limit; try again later
	CodeUnavailable  Code = "unavailable"  // a part that is needed is down; try again later
	CodeInternal     Code = "internal"     // ours; the text is hidden from the caller
)

// Error is an error with a code and a sentence for the caller. Err, when set, is the cause: logged, never sent.
type Error struct {
	Code    Code
	Message string
	Err     error
}

// Error gives the sentence, and the cause behind it when there is one.
func (e *Error) Error() string {
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error whose message the caller sees.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Wrap gives a cause a code and a sentence of its own; the cause's text stays inside.
func Wrap(err error, code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Err: err}
}

// Invalidf is Errorf with CodeInvalid, the most common one at the edge.
func Invalidf(format string, args ...any) *Error { return Errorf(CodeInvalid, format, args...) }

// NotFoundf is Errorf with CodeNotFound.
func NotFoundf(format string, args ...any) *Error { return Errorf(CodeNotFound, format, args...) }

// Conflictf is Errorf with CodeConflict.
func Conflictf(format string, args ...any) *Error { return Errorf(CodeConflict, format, args...) }

// CodeOf gives the code of an error: "" for nil, CodeInternal where none is carried.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

// MessageOf gives the sentence that a caller may see: an error without a code says only that it is ours.
func MessageOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok && e.Code != CodeInternal {
		return e.Message
	}
	return "Something went wrong on our side. The log of the server says more under the request's id."
}

package farm

import (
	"errors"
	"fmt"
	"strings"
)

// Code is the kind of an error that a caller gets. The zero value is not a code; errors without one count as CodeInternal.
type Code string

// The codes of the public contract.
const (
	CodeInvalid      Code = "invalid"      // the request is wrong; sending it again will not help
	CodeUnauthorized Code = "unauthorized" // no key, or a wrong one
	CodeNotFound     Code = "not_found"    // it does not exist, or is another tenant's
	CodeConflict     Code = "conflict"     // the object's state does not allow this
	CodeTooLarge     Code = "too_large"    // over a size limit
	CodeExhausted    Code = "exhausted"    // over a rate or backlog limit; try again later
	CodeUnavailable  Code = "unavailable"  // a required component is down; try again later
	CodeInternal     Code = "internal"     // a bug or fault of the farm; the text is hidden from the caller
)

// Error is an error with a code and a sentence for the caller. Err, if set, is the cause: logged, never sent. Fields are the invalid fields of
// the request's body, if the error is about those. Quota is the quota that is used up, if the error is about one.
type Error struct {
	Code    Code
	Message string
	Err     error
	Fields  []FieldError
	Quota   *QuotaUse
}

// FieldError says what is wrong with one field of a request's body.
type FieldError struct {
	Pointer string // to the field, by RFC 6901; "": the body as a whole
	Detail  string // a sentence for the caller
}

// Error returns the sentence, followed by the cause if there is one.
func (e *Error) Error() string {
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error whose message the caller sees.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Wrap makes an Error of a cause, with a code and a sentence for the caller, who does not see the cause.
func Wrap(err error, code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Err: err}
}

// Invalidf is Errorf with CodeInvalid.
func Invalidf(format string, args ...any) *Error { return Errorf(CodeInvalid, format, args...) }

// NotFoundf is Errorf with CodeNotFound.
func NotFoundf(format string, args ...any) *Error { return Errorf(CodeNotFound, format, args...) }

// Conflictf is Errorf with CodeConflict.
func Conflictf(format string, args ...any) *Error { return Errorf(CodeConflict, format, args...) }

// maxDetails is how many fields the sentence of a FieldsError tells about.
const maxDetails = 5

// FieldsError makes one Error of the problems of several fields. Its message tells about the first ones.
func FieldsError(code Code, fields []FieldError) *Error {
	var message strings.Builder
	for i, f := range fields {
		if i == maxDetails {
			fmt.Fprintf(&message, " (and %d more)", len(fields)-i)
			break
		}
		switch {
		case i == 0:
		case strings.HasSuffix(message.String(), "."):
			message.WriteString(" ")
		default:
			message.WriteString("; ")
		}
		message.WriteString(f.Detail)
	}
	return &Error{Code: code, Message: message.String(), Fields: fields}
}

// CodeOf returns the code of an error: "" for nil, CodeInternal if it has none.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

// MessageOf returns the sentence for the caller. For an error without a code it only says that the fault is on our side.
func MessageOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok && e.Code != CodeInternal {
		return e.Message
	}
	return "Something went wrong on our side. The log of the server says more under the request's id."
}

// Package wire has the JSON types of the public REST API: the bodies of requests and answers. The server and the Go client
// share them, and the OpenAPI document is generated from them: the tag doc describes a field, enum and default its values.
// The package imports only the standard library and has no behaviour apart from encoding. Arrays are never null; times are
// RFC 3339 in UTC; sizes are bytes unless the name says otherwise.
package wire

import (
	"encoding/json"
	"net/http"
)

// List is one page, newest first. NextCursor is empty (null in JSON) on the last page.
type List[T any] struct {
	Items      []T    `json:"items" doc:"the entries of this page"`
	NextCursor Cursor `json:"next_cursor" doc:"send it as cursor to get the next page; null: this is the last"`
}

// Cursor is a place in a list. The empty cursor is null in JSON.
type Cursor string

// MarshalJSON writes null for the empty cursor.
func (c Cursor) MarshalJSON() ([]byte, error) {
	if c == "" {
		return []byte("null"), nil
	}
	return json.Marshal(string(c))
}

// Items is a list without pages.
type Items[T any] struct {
	Items []T `json:"items" doc:"the entries"`
}

// BatchRequest is the body of POST /v1/jobs/batch. Each entry is {kind, sandbox_id, …the body of the kind's route}.
type BatchRequest struct {
	Jobs []json.RawMessage `json:"jobs" doc:"entries {kind, sandbox_id, …the body of the route}" required:"true"`
}

// BatchResult is the answer to a batch: one outcome for each entry, in order.
type BatchResult struct {
	Jobs []BatchOutcome `json:"jobs" doc:"one outcome for each entry, in order"`
}

// BatchOutcome is the outcome of one entry of a batch: Job (with Sandbox for a create) or Error.
type BatchOutcome struct {
	Job     *Job     `json:"job,omitempty" doc:"the accepted job"`
	Sandbox *Sandbox `json:"sandbox,omitempty" doc:"the new sandbox of a create"`
	Error   *Problem `json:"error,omitempty" doc:"why the entry was refused"`
}

// Problem is an error by RFC 9457; its media type is application/problem+json.
type Problem struct {
	Type      string `json:"type" doc:"always about:blank"`
	Title     string `json:"title" doc:"the kind of problem"`
	Status    int    `json:"status" doc:"status code of the answer"`
	Detail    string `json:"detail" doc:"what is wrong and what to do"`
	Code      string `json:"code" doc:"kind of the error" enum:"invalid,unauthorized,not_found,conflict,too_large,exhausted,unavailable,internal"`
	RequestID string `json:"request_id" doc:"id of the request, found in the server's log"`

	Quota  *Quota       `json:"quota,omitempty" doc:"the quota that is used up; absent where the problem is another one"`
	Errors []FieldError `json:"errors,omitempty" doc:"the fields of the body that are wrong, at most 20; absent where the problem is not in the body"`
}

// StatusOf is the usual HTTP status of a Code; 500 for internal, and for one that is not known.
func StatusOf(code string) int {
	switch code {
	case "invalid":
		return http.StatusUnprocessableEntity
	case "unauthorized":
		return http.StatusUnauthorized
	case "not_found":
		return http.StatusNotFound
	case "conflict":
		return http.StatusConflict
	case "too_large":
		return http.StatusRequestEntityTooLarge
	case "exhausted":
		return http.StatusTooManyRequests
	case "unavailable":
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

// FieldError says what is wrong with one field of a request's body.
type FieldError struct {
	Pointer string `json:"pointer" doc:"JSON pointer (RFC 6901) to the field; empty: the body as a whole"`
	Detail  string `json:"detail" doc:"what is wrong and what to do"`
}

// MarshalJSON writes data or the link, one of them always: a value of length zero has data, since it has no link.
func (r Rich) MarshalJSON() ([]byte, error) {
	type plain Rich
	if r.Data != "" || r.URL != "" || r.ArtifactID != "" {
		return encode(plain(r))
	}
	return encode(struct {
		plain
		Data string `json:"data"`
	}{plain: plain(r)})
}

// MarshalJSON writes data or the link, one of them always.
func (d DisplayData) MarshalJSON() ([]byte, error) {
	type plain DisplayData
	if d.Data != "" || d.URL != "" || d.ArtifactID != "" {
		return encode(plain(d))
	}
	return encode(struct {
		plain
		Data string `json:"data"`
	}{plain: plain(d)})
}

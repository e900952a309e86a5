package wire

import "net/http"

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

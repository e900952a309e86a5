package wire

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

// FieldError says what is wrong with one field of a request's body.
type FieldError struct {
	Pointer string `json:"pointer" doc:"JSON pointer (RFC 6901) to the field; empty: the body as a whole"`
	Detail  string `json:"detail" doc:"what is wrong and what to do"`
}

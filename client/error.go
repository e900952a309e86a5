package client

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

// Error is an error response of a farm. Compare Code, not the texts.
type Error struct {
	Status     int           // HTTP status; 0 for the failure of a job (see Failure)
	Code       string        // one of invalid, unauthorized, not_found, conflict, too_large, exhausted, unavailable, internal
	Title      string        // what kind of error, in a few words
	Detail     string        // what is wrong, in a sentence
	RequestID  string        // to find the request in the log of the farm
	RetryAfter time.Duration // pause before a retry; 0 if the farm did not say

	Quota  *wire.Quota       // the quota that is used up; nil where the error is another one
	Fields []wire.FieldError // the fields of the request's body that are wrong; nil where the error is not about the body
}

// Error gives the detail, or the next best text.
func (e *Error) Error() string {
	text := cmp.Or(e.Detail, e.Title, http.StatusText(e.Status), "no reason given")
	text = strings.TrimSuffix(text, ".") + " (" + cmp.Or(e.Code, "no code")
	if e.Status != 0 {
		text += fmt.Sprintf(", HTTP %d", e.Status)
	}
	return text + ")"
}

// CodeOf gives the code of an error of the farm, and "" for other errors.
func CodeOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// maxProblemBytes limits how much of an error body is read: it may be any page of a proxy.
const maxProblemBytes = 64 << 10

// errorOf reads the problem of a response. The caller closes the body.
func errorOf(r *http.Response) *Error {
	e := &Error{Status: r.StatusCode, RequestID: r.Header.Get("X-Request-Id"), RetryAfter: retryAfter(r.Header.Get("Retry-After"))}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxProblemBytes))
	if err != nil {
		body = nil
	}
	var problem struct {
		Title     string `json:"title"`
		Detail    string `json:"detail"`
		Code      string `json:"code"`
		RequestID string `json:"request_id"`

		Quota  *wire.Quota       `json:"quota"`
		Errors []wire.FieldError `json:"errors"`
	}
	if json.Unmarshal(body, &problem) == nil {
		e.Title, e.Detail, e.Code, e.Fields = problem.Title, problem.Detail, problem.Code, problem.Errors
		e.Quota = problem.Quota
		e.RequestID = cmp.Or(problem.RequestID, e.RequestID)
	}
	e.Title = cmp.Or(e.Title, http.StatusText(r.StatusCode))
	e.Code = cmp.Or(e.Code, codeOfStatus(r.StatusCode))
	return e
}

// codeOfStatus is the code of a response without one, such as that of a proxy.
func codeOfStatus(status int) string {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return "unauthorized"
	case http.StatusNotFound, http.StatusGone:
		return "not_found"
	case http.StatusConflict:
		return "conflict"
	case http.StatusRequestEntityTooLarge:
		return "too_large"
	case http.StatusTooManyRequests:
		return "exhausted"
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return "unavailable"
	}
	if status >= 400 && status < 500 {
		return "invalid"
	}
	return "internal"
}

// retryAfter parses both forms of the header; 0 if there is none.
func retryAfter(value string) time.Duration {
	if seconds, err := strconv.Atoi(value); err == nil && seconds > 0 {
		return time.Duration(min(seconds, 24*3600)) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

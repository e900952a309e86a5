package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/status"
	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Seconds after which a caller may try again.
const (
	retryExhausted   = "2"
	retryUnavailable = "5"
)

// statusGone is what a request counts as whose caller has left before the answer.
const statusGone = 499

// refusal is an error with a status of its own, other than its code's usual one.
type refusal struct {
	status int
	err    *farm.Error
}

// Error gives the sentence.
func (r *refusal) Error() string { return r.err.Error() }

// Unwrap gives the domain's error.
func (r *refusal) Unwrap() error { return r.err }

func refusef(status int, code farm.Code, format string, args ...any) error {
	return &refusal{status: status, err: farm.Errorf(code, format, args...)}
}

// badf is an error of the request's form: a query or header that cannot be read.
func badf(format string, args ...any) error {
	return refusef(http.StatusBadRequest, farm.CodeInvalid, format, args...)
}

// statusOf maps an error to a status. What cannot be read is 400, what can be read and makes no sense is 422.
func statusOf(err error) int {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.status
	}
	if _, ok := errors.AsType[*strict.Error](err); ok {
		return http.StatusBadRequest
	}
	return status.Of(err)
}

func problemOf(err error, requestID string) wire.Problem {
	answer, code := statusOf(err), farm.CodeOf(err)
	if answer == http.StatusInternalServerError {
		code = farm.CodeInternal
	}
	return wire.Problem{
		Type: "about:blank", Title: http.StatusText(answer), Status: answer, Detail: farm.MessageOf(err),
		Code: string(code), RequestID: requestID,
	}
}

// fail answers with a problem. Errors that are ours are logged with their cause; it is never sent.
func (s *Server) fail(c *gin.Context, err error) {
	s.failAs(c, err, func(p wire.Problem) { writeJSON(c, p.Status, "application/problem+json", p) })
}

// failAs answers with an error in the shape that write gives it.
func (s *Server) failAs(c *gin.Context, err error, write func(wire.Problem)) {
	ctx := c.Request.Context()
	if _, ours := errors.AsType[*refusal](err); ctx.Err() != nil && !ours {
		c.Status(statusGone) // nobody reads it; the log and the metrics do
		c.Abort()
		return
	}
	p := problemOf(err, requestID(c))
	if p.Status >= http.StatusInternalServerError {
		level := slog.LevelError
		if p.Code == string(farm.CodeUnavailable) {
			level = slog.LevelWarn
		}
		s.log.Log(ctx, level, "request failed", slog.String("request_id", p.RequestID), slog.String("route", c.FullPath()), slog.Any("error", err))
	}
	if c.Writer.Written() {
		c.Abort() // the answer has begun: it can only be broken off
		panic(http.ErrAbortHandler)
	}
	h := c.Writer.Header()
	for _, name := range []string{"Content-Length", "Content-Disposition", "Last-Modified", "Accept-Ranges", "Location"} {
		h.Del(name)
	}
	switch p.Status {
	case http.StatusTooManyRequests:
		h.Set("Retry-After", retryExhausted)
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", retryUnavailable)
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="sandfarm"`)
	}
	write(p)
	c.Abort()
}

// reply answers with JSON.
func reply(c *gin.Context, status int, v any) error {
	writeJSON(c, status, "application/json; charset=utf-8", v)
	return nil
}

func writeJSON(c *gin.Context, status int, contentType string, v any) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err)) // our own types always encode; recover answers 500
	}
	h := c.Writer.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(text.Len()))
	c.Status(status)
	_ = newPatient(c).send(text.Bytes()) // a caller that takes nothing has gone
}

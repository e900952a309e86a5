package rest

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	retryExhausted = "2" // seconds
	// RetryUnavailable is the Retry-After of a 503, in seconds.
	RetryUnavailable = "5"
)

// statusClosed is logged and counted for a request whose caller left before the answer.
const statusClosed = 499

// Refusal is an error whose status differs from the usual one of its code.
type Refusal struct {
	status int
	err    *farm.Error
}

// Error returns the sentence for the caller.
func (r *Refusal) Error() string { return r.err.Error() }

// Unwrap returns the domain's error.
func (r *Refusal) Unwrap() error { return r.err }

// Refusef makes a Refusal.
func Refusef(status int, code farm.Code, format string, args ...any) error {
	return &Refusal{status: status, err: farm.Errorf(code, format, args...)}
}

// BadRequestf refuses the form of a request, such as a query or header that cannot be parsed: 400.
func BadRequestf(format string, args ...any) error {
	return Refusef(http.StatusBadRequest, farm.CodeInvalid, format, args...)
}

// StatusOf maps an error to a status, by its code. What cannot be parsed is 400; what can be parsed and is not allowed is 422.
func StatusOf(err error) int {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r.status
	}
	if _, ok := errors.AsType[*strict.Error](err); ok {
		return http.StatusBadRequest
	}
	return wire.StatusOf(string(farm.CodeOf(err)))
}

// ProblemOf is an error as callers see it. The cause of an internal error is not included.
func ProblemOf(err error, requestID string) wire.Problem {
	answer, code := StatusOf(err), farm.CodeOf(err)
	if answer == http.StatusInternalServerError {
		code = farm.CodeInternal
	}
	p := wire.Problem{
		Type: "about:blank", Title: http.StatusText(answer), Status: answer, Detail: farm.MessageOf(err),
		Code: string(code), RequestID: requestID,
	}
	if e, ok := errors.AsType[*farm.Error](err); ok {
		if e.Quota != nil {
			p.Quota = &wire.Quota{Name: string(e.Quota.Name), Limit: &e.Quota.Limit, Used: e.Quota.Used}
		}
		for _, f := range e.Fields {
			p.Errors = append(p.Errors, wire.FieldError(f))
		}
	}
	return p
}

// ended reports whether a request was ended because its key is no longer valid.
func ended(ctx context.Context) bool { return errors.Is(context.Cause(ctx), access.ErrEnded) }

func errEnded() error { return &Refusal{status: http.StatusUnauthorized, err: access.ErrEnded} }

// retryAfter is the Retry-After of a 429: when the quota has room again if that is known. "": no retry can succeed.
func retryAfter(err error) string {
	e, ok := errors.AsType[*farm.Error](err)
	switch {
	case !ok || e.Quota == nil:
		return retryExhausted
	case e.Quota.Never:
		return ""
	case e.Quota.RetryAfter > 0:
		return strconv.Itoa(int(math.Ceil(e.Quota.RetryAfter.Seconds())))
	default:
		return retryExhausted
	}
}

// Problem is ProblemOf for an answer to this request. Errors of the farm itself are logged with their cause, which is never sent. A 502 is an
// error of code in a sandbox.
func Problem(c *gin.Context, log *slog.Logger, err error) wire.Problem {
	p := ProblemOf(err, RequestID(c))
	if p.Status >= http.StatusInternalServerError && p.Status != http.StatusBadGateway {
		level := slog.LevelError
		if p.Code == string(farm.CodeUnavailable) {
			level = slog.LevelWarn
		}
		log.Log(c.Request.Context(), level, "request failed", slog.String("request_id", p.RequestID), slog.String("route", c.FullPath()), slog.Any("error", err))
	}
	return p
}

// Fail answers with a problem, see Problem.
func Fail(c *gin.Context, log *slog.Logger, err error) {
	FailAs(c, log, err, func(p wire.Problem) { WriteJSON(c, p.Status, "application/problem+json", p) })
}

// FailAs is Fail in the shape that write gives the problem.
func FailAs(c *gin.Context, log *slog.Logger, err error, write func(wire.Problem)) {
	ctx := c.Request.Context()
	if ended(ctx) {
		err = errEnded()
	}
	if _, ok := errors.AsType[*Refusal](err); ctx.Err() != nil && !ok {
		c.Status(statusClosed) // for the log and the metrics only
		c.Abort()
		return
	}
	p := Problem(c, log, err)
	if c.Writer.Written() {
		c.Abort() // part of the answer is sent: the connection can only be cut
		panic(http.ErrAbortHandler)
	}
	h := c.Writer.Header()
	for _, name := range []string{"Content-Length", "Content-Disposition", "Last-Modified", "Accept-Ranges", "Location"} {
		h.Del(name)
	}
	switch p.Status {
	case http.StatusTooManyRequests:
		if pause := retryAfter(err); pause != "" {
			h.Set("Retry-After", pause)
		}
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", RetryUnavailable)
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="sandfarm"`)
	}
	write(p)
	c.Abort()
}

package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

// Limits of a request.
const (
	maxAttempts     = 4                // a request and its retries
	maxRetryAfter   = 10 * time.Second // a farm that asks for a longer pause is not retried
	answerTimeout   = 30 * time.Second // for one JSON answer, beyond the wait that was requested
	maxAnswerBytes  = 256 << 20        // a job with all inline results is far smaller
	maxWaitSeconds  = 60               // the most that the farm allows
	longPollSeconds = 30               // below the idle timeouts of common proxies
)

// call is a request to the farm.
type call struct {
	method string
	path   []string // elements of the path, not escaped
	query  url.Values
	header http.Header
	body   any       // sent as JSON
	stream io.Reader // sent as it is; such a request is never retried
	wait   int       // seconds that the farm may delay the answer; negative: its default for the route
	key    string    // Idempotency-Key of a POST; empty: a random one
	once   bool      // not idempotent: sent without such a key, and retried only if the farm was too busy to begin
}

// send makes the request, with retries, and returns a response below 400. The caller closes its body.
func (c *Client) send(ctx context.Context, in call) (*http.Response, error) {
	payload, err := encode(in.body)
	if err != nil {
		return nil, err
	}
	key := in.key
	if in.method == http.MethodPost && key == "" && !in.once {
		key = newKey()
	}
	retryable := in.stream == nil && (in.method == http.MethodGet || in.method == http.MethodHead || key != "")
	for attempt := 1; ; attempt++ {
		r, err := c.once(ctx, in, payload, key)
		if err == nil {
			return r, nil
		}
		if !(retryable || in.stream == nil && tooMany(err)) || attempt == maxAttempts || ctx.Err() != nil || !temporary(err) {
			return nil, fmt.Errorf("%s %s: %w", in.method, c.at(in).Path, err)
		}
		pause := max(c.pause(attempt), retryAfterOf(err))
		c.notice(err, pause)
		if err := sleep(ctx, pause); err != nil {
			return nil, fmt.Errorf("%s %s: %w", in.method, c.at(in).Path, err)
		}
	}
}

func (c *Client) once(ctx context.Context, in call, payload []byte, key string) (*http.Response, error) {
	body := in.stream
	if payload != nil {
		body = bytes.NewReader(payload)
	}
	r, err := http.NewRequestWithContext(ctx, in.method, c.at(in).String(), body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", c.userAgent)
	if payload != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	for name, values := range in.header {
		r.Header[name] = values
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, unwrapURL(err)
	}
	if answer.StatusCode >= http.StatusBadRequest {
		defer answer.Body.Close()
		return nil, errorOf(answer)
	}
	return answer, nil
}

// at is the URL of a call.
func (c *Client) at(in call) *url.URL {
	to := *c.base
	raw, plain := to.EscapedPath(), to.Path
	for _, element := range in.path {
		raw += "/" + url.PathEscape(element)
		plain += "/" + element
	}
	to.Path, to.RawPath = plain, raw
	query := url.Values{}
	for name, values := range in.query {
		query[name] = values
	}
	if in.wait > 0 {
		query.Set("wait", strconv.Itoa(in.wait))
	}
	to.RawQuery = query.Encode()
	return &to
}

// json makes the request and decodes its JSON answer into out; a nil out drops it. It has a time limit unless the call uploads
// a stream.
func (c *Client) json(ctx context.Context, in call, out any) error {
	if in.stream == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, bound(in), errSlow)
		defer cancel()
	}
	r, err := c.send(ctx, in)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	return decode(in, r, out)
}

// bound is the time limit of a call with all its retries.
func bound(in call) time.Duration {
	held := time.Duration(in.wait) * time.Second
	if in.wait < 0 {
		held = maxWaitSeconds * time.Second
	}
	return maxAttempts * (held + answerTimeout)
}

func decode(in call, r *http.Response, out any) error {
	content, err := io.ReadAll(io.LimitReader(r.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return fmt.Errorf("read the answer of %s: %w", in.method, err)
	case len(content) > maxAnswerBytes:
		return fmt.Errorf("read the answer of %s: it is longer than %d bytes", in.method, maxAnswerBytes)
	case out == nil || len(content) == 0:
		return nil
	}
	if err := json.Unmarshal(content, out); err != nil {
		return fmt.Errorf("read the answer of %s: %w (check the address: is this a Sandfarm?)", in.method, err)
	}
	return nil
}

var errSlow = errors.New("the farm did not answer in time")

func encode(body any) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	payload, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	return payload, nil
}

// unwrapURL removes the URL that net/http adds to errors: send adds its own, and a link may contain a signature.
func unwrapURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// temporary reports whether a retry may succeed: the connection broke, a proxy did not reach the API, or the farm asked to come back soon. A quota that
// gives no time is too small for the request.
func temporary(err error) bool {
	if e, ok := errors.AsType[*Error](err); ok {
		switch e.Status {
		case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return e.RetryAfter <= maxRetryAfter && (e.Quota == nil || e.RetryAfter > 0)
		default:
			return false
		}
	}
	return !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// tooMany reports whether the farm refused a request because there were too many: it did nothing, so any request can be retried.
func tooMany(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == http.StatusTooManyRequests
}

func retryAfterOf(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.RetryAfter
	}
	return 0
}

// Who waits for a job goes on for this long while the farm does not answer, and for so many tries if each of them takes long: an API that is updated or
// restarted is back by then.
const (
	outageTime  = time.Minute
	outageTries = 8
)

// outage are the failures in a row of one that waits for a job.
type outage struct {
	tries int
	since time.Time
}

// outlast pauses after a failure, before the next try. The error is err where no try may succeed or the outage was too long, or that of ctx.
func (c *Client) outlast(ctx context.Context, o *outage, err error) error {
	if o.tries++; o.tries == 1 {
		o.since = time.Now()
	}
	_, answered := errors.AsType[*Error](err)
	if ctx.Err() != nil || answered && !temporary(err) || o.tries >= outageTries && time.Since(o.since) >= outageTime {
		return err
	}
	pause := max(c.pause(o.tries), retryAfterOf(err))
	c.notice(err, pause)
	return sleep(ctx, pause)
}

// backoff grows from a tenth of a second to two seconds, with jitter so that many clients do not retry at once.
func backoff(attempt int) time.Duration {
	full := min(100*time.Millisecond<<min(attempt-1, 10), 2*time.Second)
	n, err := rand.Int(rand.Reader, big.NewInt(int64(full/2)))
	if err != nil {
		return full
	}
	return full/2 + time.Duration(n.Int64())
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func newKey() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Error is an error response of a farm. Compare Code, not the texts.
type Error struct {
	Status     int           // HTTP status; 0 for the failure of a job (see Failure)
	Code       string        // one of invalid, unauthorized, not_found, conflict, too_large, exhausted, unavailable, internal
	Title      string        // what kind of error, in a few words
	Detail     string        // what is wrong, in a sentence
	RequestID  string        // to find the request in the log of the farm
	RetryAfter time.Duration // pause before a retry; 0 if the farm did not say; with Quota: no retry can succeed

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

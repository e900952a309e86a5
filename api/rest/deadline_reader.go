package rest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// DiscardBytes bounds how much of a refused body is read.
const DiscardBytes = 256 << 10

// unreadTimeout is how long the server waits for a body that no handler reads: that of a request without a key, for example.
const unreadTimeout = 5 * time.Second

// awaited is a body with a deadline until it is first read. The server reads what handlers leave of a body before it answers, and would
// wait for ever for one that never comes.
type awaited struct {
	io.ReadCloser
	control *http.ResponseController
	read    bool
}

// await gives the body of a request a deadline until it is first read.
func await(c *gin.Context, timeout time.Duration) {
	if c.Request.ContentLength == 0 {
		return
	}
	control := http.NewResponseController(c.Writer)
	_ = control.SetReadDeadline(time.Now().Add(timeout)) // a test recorder has no deadlines
	c.Request.Body = &awaited{ReadCloser: c.Request.Body, control: control}
}

// Read implements io.Reader.
func (a *awaited) Read(p []byte) (int, error) {
	if !a.read {
		a.read = true
		_ = a.control.SetReadDeadline(time.Time{})
	}
	return a.ReadCloser.Read(p)
}

// Body is the body of a request. A body that stops arriving for the stall timeout ends with 408; one whose key is revoked or
// expires, with 401.
func Body(c *gin.Context) io.Reader {
	body := io.Reader(c.Request.Body)
	if first, ok := body.(*awaited); ok {
		body = first.ReadCloser // each read has a deadline of its own
	}
	d := &deadlineReader{r: body, ctx: c.Request.Context(), control: http.NewResponseController(c.Writer), timeout: stallTimeout(c), end: c.GetTime(endKey)}
	context.AfterFunc(d.ctx, func() {
		if ended(d.ctx) {
			_ = d.control.SetReadDeadline(time.Now()) // ends a read in progress
		}
	})
	return d
}

// endKey is where Within keeps the end of a body.
const endKey = "body_end"

// Within bounds the time for the whole body of a request, which comes from somebody without a key: one that arrives byte by byte would hold its
// connection for hours.
func Within(c *gin.Context, d time.Duration) { c.Set(endKey, time.Now().Add(d)) }

// deadlineReader sets a deadline for each read. It clears the deadline at the end of the body: from then on the server
// reads the connection to notice that the caller disconnects, however long the answer takes. Before the end the deadline
// stays, because the server reads the rest of a body before the next request.
type deadlineReader struct {
	r       io.Reader
	ctx     context.Context // of the request
	control *http.ResponseController
	timeout time.Duration
	end     time.Time // of the whole body; zero: none
}

// Read reads within the deadline.
func (d *deadlineReader) Read(p []byte) (int, error) {
	by := time.Now().Add(d.timeout)
	if !d.end.IsZero() && d.end.Before(by) {
		by = d.end
	}
	_ = d.control.SetReadDeadline(by) // a test recorder has no deadlines
	if ended(d.ctx) {                 // after the deadline was set: Body sets it to now after the end
		return 0, errEnded()
	}
	n, err := d.r.Read(p)
	if errors.Is(err, io.EOF) {
		_ = d.control.SetReadDeadline(time.Time{})
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && ended(d.ctx) {
		return n, errEnded()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, Refusef(http.StatusRequestTimeout, farm.CodeInvalid, "the body stopped arriving")
	}
	return n, err
}

// Discard reads the rest of a refused body, up to a bound: a caller that is still sending would not see the answer.
func Discard(r io.Reader) { _, _ = io.CopyN(io.Discard, r, DiscardBytes) }

// DiscardShort discards the body of a request where its length is known and within the bound of Discard.
func DiscardShort(c *gin.Context) {
	if n := c.Request.ContentLength; n >= 0 && n <= DiscardBytes {
		Discard(Body(c))
	}
}

package rest

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"os"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
)

// DiscardBytes bounds how much of a refused body is read.
const DiscardBytes = 256 << 10

// Body is the body of a request. A body that stops arriving for the stall timeout ends with 408; one whose key is revoked or
// expires, with 401.
func Body(c *gin.Context) io.Reader { return bodyOf(c, nil) }

// HeldBody is Body for one whose bytes stay in memory until more of it has come. A byte does not buy it another stall timeout, but the time in which
// 16 KiB a second would bring it.
func HeldBody(c *gin.Context) io.Reader { return heldBody(c, math.MaxInt64) }

// WholeBody is HeldBody for one that stays in memory until all of it has come: it must be complete within five minutes.
func WholeBody(c *gin.Context) io.Reader { return heldBody(c, wholeTime) }

func heldBody(c *gin.Context, total time.Duration) io.Reader {
	grace := stallTimeout(c)
	if d := c.GetDuration(graceKey); d > 0 {
		grace = d
	}
	return bodyOf(c, httpserver.NewPace(grace, total))
}

func bodyOf(c *gin.Context, pace *httpserver.Pace) io.Reader {
	d := &deadlineReader{r: httpserver.Body(c.Request), ctx: c.Request.Context(), control: http.NewResponseController(c.Writer), timeout: stallTimeout(c), pace: pace}
	context.AfterFunc(d.ctx, func() {
		if ended(d.ctx) {
			_ = d.control.SetReadDeadline(time.Now()) // ends a read in progress
		}
	})
	return d
}

// graceKey is where Within keeps the grace of a body.
const graceKey = "body_grace"

// Within bounds the time in which the first bytes of a HeldBody may be late, for one that comes from somebody without a key.
func Within(c *gin.Context, d time.Duration) { c.Set(graceKey, d) }

// wholeTime bounds how long a body is held that is read whole. At 16 KiB a second, 16 MiB would take 17 minutes, and four times as much memory.
const wholeTime = 5 * time.Minute

// Paced reads a message of a request's connection as WholeBody reads a body, with this stall timeout. Beyond it late is called, which ends a read in progress.
func Paced(ctx context.Context, r io.Reader, stall time.Duration, late func()) io.Reader {
	return &pacedReader{ctx, r, httpserver.NewPace(stall, wholeTime), late}
}

type pacedReader struct {
	ctx  context.Context // of the request
	r    io.Reader
	pace *httpserver.Pace
	late func()
}

// maxPaced is how much of a message is read under one timer. The library fills what it gets, and each of its reads of the connection pays for the one before.
const maxPaced = 64 << 10

// Read reads with a timer.
func (r *pacedReader) Read(p []byte) (int, error) {
	p = p[:min(len(p), maxPaced)]
	httpserver.Pay(r.ctx)
	began, timer := time.Now(), time.AfterFunc(r.pace.Allows(), r.late)
	n, err := r.r.Read(p)
	timer.Stop()
	r.pace.Took(n, time.Since(began))
	return n, err
}

// deadlineReader sets a deadline for each read. It clears the deadline at the end of the body: from then on the server
// reads the connection to notice that the caller disconnects, however long the answer takes. Before the end the deadline
// stays, because the server reads the rest of a body before the next request.
type deadlineReader struct {
	r       io.Reader
	ctx     context.Context // of the request
	control *http.ResponseController
	timeout time.Duration
	pace    *httpserver.Pace // nil: none
}

// Read reads within the deadline.
func (d *deadlineReader) Read(p []byte) (int, error) {
	httpserver.Pay(d.ctx)
	began, timeout := time.Now(), d.timeout
	if d.pace != nil {
		timeout = min(timeout, d.pace.Allows())
	}
	_ = d.control.SetReadDeadline(began.Add(timeout)) // a test recorder has no deadlines
	if ended(d.ctx) {                                 // after the deadline was set: Body sets it to now after the end
		_ = d.control.SetReadDeadline(began) // Body may have done so before: the server must not wait for the rest of the body
		return 0, errEnded()
	}
	n, err := d.r.Read(p)
	if d.pace != nil {
		d.pace.Took(n, time.Since(began))
	}
	switch {
	case errors.Is(err, io.EOF):
		_ = d.control.SetReadDeadline(time.Time{})
	case errors.Is(err, os.ErrDeadlineExceeded) && ended(d.ctx):
		return n, errEnded()
	case errors.Is(err, os.ErrDeadlineExceeded) && d.pace != nil:
		return n, Refusef(http.StatusRequestTimeout, farm.CodeInvalid, "the body stopped arriving, or came too slowly: %d KiB must come in a second, and all of it in %s unless it has files", httpserver.PaceBytes>>10, wholeTime)
	case errors.Is(err, os.ErrDeadlineExceeded):
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

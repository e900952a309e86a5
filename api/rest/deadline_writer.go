package rest

import (
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
)

// writeChunk is how much is written under one deadline, so that a slow caller can receive a long answer.
const writeChunk = 64 << 10

// DeadlineWriter writes an answer and fails if the caller accepts no bytes for the stall timeout. Between its calls the
// connection has no deadline, because it serves further requests.
type DeadlineWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

// NewDeadlineWriter makes the writer for the answer to a request.
func NewDeadlineWriter(c *gin.Context) *DeadlineWriter {
	return &DeadlineWriter{w: c.Writer, control: http.NewResponseController(c.Writer), timeout: stallTimeout(c)}
}

// Write writes chunk by chunk, each within the deadline.
func (d *DeadlineWriter) Write(b []byte) (int, error) {
	defer d.clear()
	written := 0
	for {
		d.set()
		n, err := d.w.Write(b[written:min(len(b), written+writeChunk)])
		if written += n; err != nil {
			return written, fmt.Errorf("write answer: %w", err)
		}
		if written >= len(b) {
			return written, nil
		}
	}
}

// Flush sends what is buffered, within the deadline.
func (d *DeadlineWriter) Flush() error {
	defer d.clear()
	d.set()
	if err := d.control.Flush(); err != nil {
		return fmt.Errorf("flush answer: %w", err)
	}
	return nil
}

// Send writes and flushes.
func (d *DeadlineWriter) Send(b []byte) error {
	if _, err := d.Write(b); err != nil {
		return err
	}
	return d.Flush()
}

// set and clear do nothing if the connection has no deadlines, such as a test recorder.
func (d *DeadlineWriter) set()   { _ = d.control.SetWriteDeadline(time.Now().Add(d.timeout)) }
func (d *DeadlineWriter) clear() { _ = d.control.SetWriteDeadline(time.Time{}) }

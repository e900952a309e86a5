package api

import (
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
)

// writePiece is how much is written under one deadline, so that a slow caller may take a long answer in his own time.
const writePiece = 64 << 10

// patient is a writer that gives up on a caller who takes nothing for the stall timeout. Between its calls there is no
// deadline on the connection, which goes on to other requests.
type patient struct {
	w       http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
}

func newPatient(c *gin.Context) *patient {
	return &patient{w: c.Writer, control: http.NewResponseController(c.Writer), stall: c.GetDuration(stallKey)}
}

// Write writes piece by piece, each within the deadline.
func (p *patient) Write(b []byte) (int, error) {
	defer p.lift()
	written := 0
	for {
		p.limit()
		n, err := p.w.Write(b[written:min(len(b), written+writePiece)])
		if written += n; err != nil {
			return written, fmt.Errorf("write answer: %w", err)
		}
		if written >= len(b) {
			return written, nil
		}
	}
}

// flush sends what is buffered, within the deadline.
func (p *patient) flush() error {
	defer p.lift()
	p.limit()
	if err := p.control.Flush(); err != nil {
		return fmt.Errorf("flush answer: %w", err)
	}
	return nil
}

// send writes and flushes.
func (p *patient) send(b []byte) error {
	if _, err := p.Write(b); err != nil {
		return err
	}
	return p.flush()
}

// limit and lift change nothing where the connection takes no deadline, as in tests without one.
func (p *patient) limit() { _ = p.control.SetWriteDeadline(time.Now().Add(p.stall)) }
func (p *patient) lift()  { _ = p.control.SetWriteDeadline(time.Time{}) }

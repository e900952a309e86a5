package server

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// deadlineGrace is how long after its deadline the agent ends the sandbox itself. A worker normally closes it within about five
// seconds; this covers the case without a worker, within the documented ten seconds.
const deadlineGrace = 6 * time.Second

// maxDeadline is the longest deadline that an agent accepts: longer than any sandbox may live.
const maxDeadline = 10 * 365 * 24 * time.Hour

// deadline ends the sandbox. It uses the monotonic clock, which user code cannot change.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer // nil: no deadline
	end   func()
}

// set sets the time until the deadline and replaces the previous deadline.
func (d *deadline) set(in time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.end == nil {
		return
	}
	if d.timer != nil {
		d.timer.Stop()
	}
	d.timer = time.AfterFunc(min(max(in, 0), maxDeadline)+deadlineGrace, d.end)
}

// stop cancels the deadline.
func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
	d.end = nil
}

func (s *Server) putDeadline(_ http.ResponseWriter, r *http.Request) (any, error) {
	ms, err := strconv.ParseInt(r.URL.Query().Get("in_ms"), 10, 64)
	if err != nil || ms > maxDeadline.Milliseconds() {
		return nil, farm.Invalidf("in_ms is not a number of milliseconds of at most %d", maxDeadline.Milliseconds())
	}
	s.deadline.set(time.Duration(max(ms, 0)) * time.Millisecond)
	return nil, nil
}

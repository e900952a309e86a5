package server

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// deadlineGrace is how long after its deadline a sandbox ends by itself. A worker closes it in good order within some five
// seconds; this is for when there is none, and within the ten seconds that are promised.
const deadlineGrace = 6 * time.Second

// maxDeadline is the longest that an agent believes: more than any sandbox may live.
const maxDeadline = 10 * 365 * 24 * time.Hour

// deadline ends the sandbox. It goes by the monotonic clock, so what user code can do to the time does not matter.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer // nil: there is none
	end   func()
}

// set says how far off the deadline is; the one before it does not count any more.
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

// stop forgets the deadline.
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

package server

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// deadlineGrace is how long after its deadline the agent ends the sandbox itself. A worker normally closes it within about five
// seconds; this covers the case without a worker, within the documented ten seconds.
const deadlineGrace = 6 * time.Second

// maxDeadline is the longest deadline that an agent accepts: longer than any sandbox may live.
const maxDeadline = 10 * 365 * 24 * time.Hour

// awakeStep is how often the time is counted that the agent runs.
const awakeStep = 10 * time.Second

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

// suspend replaces the deadline by one that does not come while the sandbox is hibernated, although the monotonic clock goes on then: it counts
// steps in which the agent runs. A resumed agent has had at most one more of them.
func (d *deadline) suspend(awake time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.end == nil {
		return
	}
	if d.timer != nil {
		d.timer.Stop()
	}
	left := min(awake, maxDeadline)
	var own *time.Timer
	own = time.AfterFunc(awakeStep, func() {
		d.mu.Lock()
		end := d.end
		left -= awakeStep
		over := left <= 0
		if d.timer != own { // replaced meanwhile
			over = false
		} else if !over {
			own.Reset(awakeStep)
		}
		d.mu.Unlock()
		if over && end != nil {
			end()
		}
	})
	d.timer = own
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

// putDeadline sets the deadline: in in_ms, or after awake_ms in which the agent runs.
func (s *Server) putDeadline(_ http.ResponseWriter, r *http.Request) (any, error) {
	name, set := "in_ms", s.deadline.set
	if r.URL.Query().Has("awake_ms") {
		name, set = "awake_ms", s.deadline.suspend
	}
	ms, err := strconv.ParseInt(r.URL.Query().Get(name), 10, 64)
	if err != nil || ms > maxDeadline.Milliseconds() {
		return nil, farm.Invalidf("%s is not a number of milliseconds of at most %d", name, maxDeadline.Milliseconds())
	}
	set(time.Duration(max(ms, 0)) * time.Millisecond)
	return nil, nil
}

// useSpan is the shortest time over which use of the CPU is averaged. A request before that returns the previous average.
const useSpan = time.Second

// meter turns the CPU time of the sandbox into cores in use.
type meter struct {
	mu    sync.Mutex
	at    time.Time // of the last reading; at first, of the start
	cpu   time.Duration
	cores float64
}

// read is the use on average since the last reading that is at least useSpan old, or since the start.
func (m *meter) read(now time.Time, cpu time.Duration) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if span := now.Sub(m.at); span >= useSpan {
		m.cores = max(0, float64(cpu-m.cpu)/float64(span))
		m.at, m.cpu = now, cpu
	}
	return m.cores
}

func (s *Server) getUse(http.ResponseWriter, *http.Request) (any, error) {
	var out farm.SandboxUse
	out.CPU = process.CPUTime()
	out.Cores = s.use.read(time.Now(), out.CPU)
	out.MemoryBytes, _ = process.Memory()
	out.CacheBytes = min(max(0, out.MemoryBytes-process.UnreclaimableMemory()), out.MemoryBytes)
	var disk unix.Statfs_t
	if unix.Statfs(s.cfg.Workspace, &disk) == nil {
		out.DiskBytes = int64(disk.Blocks-disk.Bfree) * disk.Bsize //nolint:gosec // bytes of a disk
	}
	return out, nil
}

// sessions are the open sessions with workers, the newest last. The zero value has none.
type sessions struct {
	mu      sync.Mutex
	open    []*yamux.Session
	changed chan struct{} // closed and replaced when one is added; nil: no waiters
}

// add adds a session. The returned function removes it.
func (l *sessions) add(session *yamux.Session) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, session)
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open = slices.DeleteFunc(l.open, func(s *yamux.Session) bool { return s == session })
	}
}

// Stream opens a stream on the newest session that accepts one. It waits for a session until ctx is done.
func (l *sessions) Stream(ctx context.Context) (*yamux.Stream, error) {
	for {
		l.mu.Lock()
		list := slices.Clone(l.open)
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		for _, session := range slices.Backward(list) {
			if stream, err := session.OpenStream(); err == nil {
				return stream, nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

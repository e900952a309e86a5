package relay

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/transport"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// port connects the caller to a port of a sandbox, until both directions have ended.
func (s *Server) port(ctx context.Context, w http.ResponseWriter, box *farm.Sandbox, path string) error {
	if !s.enter() {
		return errElsewhere
	}
	defer s.ports.Done()
	number, err := farm.ParsePort(strings.TrimPrefix(path, agent.PortsPath+"/"))
	if err != nil {
		return err
	}
	server, err := s.deps.DialPort(ctx, box, number)
	if err != nil {
		return err
	}
	caller, err := AcceptPort(w)
	if err != nil {
		server.Abort()
		return err
	}
	defer func() { _ = caller.Close() }()
	stop := context.AfterFunc(s.base, func() { //nolint:contextcheck // the worker stops, not the request
		caller.Reset()
		server.Abort()
	})
	defer stop()
	transport.JoinPort(server, usedCaller{caller, func() { s.use.noted(box) }}) //nolint:contextcheck // use is noted also of a request that has ended
	return nil
}

// enter counts a connection that Stop waits for; false: it has begun to.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.base.Err() != nil {
		return false
	}
	s.ports.Add(1)
	return true
}

// usedCaller calls note for everything that passes.
type usedCaller struct {
	PortCaller
	note func()
}

// Read implements io.Reader.
func (c usedCaller) Read(p []byte) (int, error) {
	n, err := c.PortCaller.Read(p)
	if n > 0 {
		c.note()
	}
	return n, err
}

// Write implements io.Writer.
func (c usedCaller) Write(p []byte) (int, error) {
	c.note()
	return c.PortCaller.Write(p)
}

const (
	// noteEvery is the longest time between two notes that a sandbox is in use, while it is.
	noteEvery = 10 * time.Second
	// noteTimeout bounds one note.
	noteTimeout = 5 * time.Second
	// notePart is the part of a sandbox's idle limit after which a note comes at the latest.
	notePart = 4
)

// usage notes that sandboxes are in use, each at most every noteEvery: bytes pass often, and records are in Redis.
type usage struct {
	note func(ctx context.Context, box *farm.Sandbox) error
	log  *slog.Logger
	base context.Context // the life of the timers

	mu      sync.Mutex
	open    map[string]*use // by sandbox
	writing sync.WaitGroup
	ended   bool
}

// use is what is known of one sandbox. It is forgotten when nothing was noted for a while.
type use struct {
	dirty bool // something passed since the last note
}

// noted says that bytes of a sandbox passed. It does not wait.
func (u *usage) noted(box *farm.Sandbox) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return
	}
	if known := u.open[box.ID]; known != nil {
		known.dirty = true
		return
	}
	if u.open == nil {
		u.open = map[string]*use{}
	}
	u.open[box.ID] = &use{}
	u.writing.Go(func() { u.keep(box) })
}

// keep notes the use of a sandbox now, and again while something passes.
func (u *usage) keep(box *farm.Sandbox) {
	every := noteEvery
	if idle := time.Duration(box.Spec.IdleSeconds) * time.Second; idle > 0 {
		every = min(every, idle/notePart)
	}
	for {
		ctx, done := context.WithTimeout(u.base, noteTimeout)
		err := u.note(ctx, box)
		done()
		if err != nil && u.base.Err() == nil {
			u.log.DebugContext(u.base, "the use of a sandbox was not noted", "sandbox_id", box.ID, "error", err)
		}
		timer := time.NewTimer(every)
		select {
		case <-timer.C:
		case <-u.base.Done():
			timer.Stop()
		}
		u.mu.Lock()
		if known := u.open[box.ID]; known.dirty && u.base.Err() == nil {
			known.dirty = false
			u.mu.Unlock()
			continue
		}
		delete(u.open, box.ID)
		u.mu.Unlock()
		return
	}
}

// stop ends all notes. base has ended.
func (u *usage) stop() {
	u.mu.Lock()
	u.ended = true
	u.mu.Unlock()
	u.writing.Wait()
}

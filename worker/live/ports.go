package live

import (
	"context"
	"net/http"
	"strings"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/transport"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/live"
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
	caller, err := live.AcceptPort(w)
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
	live.PortCaller
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

package node

import (
	"context"
	"errors"
	"sync"

	"github.com/sandfarm/sandfarm/internal/agent/transport"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// DialPort connects to a port of a sandbox's loopback: straight where the engine runs on this host, else through the agent. ctx bounds the dial. Not
// found: nothing listens there.
func (n *Node) DialPort(ctx context.Context, s *farm.Sandbox, number uint16) (transport.PortServer, error) {
	c, err := n.connection(ctx, s)
	if err != nil {
		return nil, err
	}
	space, err := c.space.enter(func() (*engine.Space, error) { return n.engine.Space(ctx, n.Container(s)) })
	switch {
	case errors.Is(err, engine.ErrNotLocal):
		return c.client.Live().DialPort(ctx, int(number))
	case err != nil:
		return nil, err
	case n.wayOf(s) != nothing && number == farm.EgressPort:
		return nil, farm.ErrOwnPort(number)
	}
	return transport.DialPort(ctx, number, space.DialTCP)
}

// space is the network namespace of a sandbox, opened when it is needed first. The zero value is ready to use.
type space struct {
	mu   sync.Mutex
	open *engine.Space
	gone bool // it is not opened any more
}

// enter returns the namespace. engine.ErrNotLocal: it cannot be opened from here, or not any more.
func (s *space) enter(open func() (*engine.Space, error)) (_ *engine.Space, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil && s.gone {
		return nil, engine.ErrNotLocal
	}
	if s.open == nil {
		s.open, err = open()
		s.gone = errors.Is(err, engine.ErrNotLocal)
	}
	return s.open, err
}

// close closes the namespace, for good.
func (s *space) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	if s.open != nil {
		_ = s.open.Close()
		s.open = nil
	}
}

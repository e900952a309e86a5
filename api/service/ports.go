package service

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
)

// portBytes is what a connection to a port is charged: the buffers of its TLS and of who reads and writes it.
const portBytes = 96 << 10

// Port is a port of a sandbox that can be reached now.
type Port struct {
	// Key names the port of this generation of the sandbox.
	Key    string
	Number int

	tenant string
	agent  relay.Agent
	memory *budget.Budget
}

// Port finds a port of a sandbox. Whether anything listens there is known when it is dialled.
func (s *Service) Port(ctx context.Context, tenant, id, number string) (*Port, error) {
	box, a, err := s.reach(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	n, err := farm.ParsePort(number)
	if err != nil {
		return nil, err
	}
	return &Port{Key: fmt.Sprintf("%s.%d.%d", box.ID, box.Generation, n), Number: int(n), tenant: tenant, agent: a, memory: s.Memory}, nil
}

// Ports lists the ports on which programs of a sandbox listen.
func (s *Service) Ports(ctx context.Context, tenant, id string) (wire.Ports, error) {
	a, err := s.agent(ctx, tenant, id)
	if err != nil {
		return wire.Ports{}, err
	}
	list, err := a.Ports(ctx)
	out := wire.Ports{Items: make([]wire.Port, len(list))}
	for i, p := range list {
		out.Items[i] = wire.Port{Port: p.Number, Address: p.Address, Command: p.Command}
		if p.PID > 0 {
			out.Items[i].PID = &p.PID
		}
	}
	return out, err
}

// CheckLink checks a request for a link to a port of a sandbox, and returns how long it is to work. Nothing has to listen there yet.
func (s *Service) CheckLink(ctx context.Context, c Call, id string, r wire.PortLinkRequest) (time.Duration, error) {
	p := c.problems()
	if r.Port < 1 || r.Port > 65535 {
		p.addf("/port", "port is %d; it is a number from 1 to 65535", r.Port)
	}
	seconds := farm.LinkSeconds
	if r.ExpiresSeconds != nil {
		seconds = *r.ExpiresSeconds
	}
	if seconds < 1 || seconds > farm.MaxLinkSeconds {
		p.addf("/expires_seconds", "expires_seconds is %d; a link works for 1 to %d seconds", seconds, farm.MaxLinkSeconds)
	}
	if err := p.err(); err != nil {
		return 0, err
	}
	box, err := s.sandbox(ctx, c.Tenant, id)
	switch {
	case err != nil:
	case box.State.Final():
		err = farm.Conflictf("Sandbox %s is %s.", box.ID, box.State)
	case r.Port == farm.EgressPort && box.Spec.Network != farm.NetworkNone:
		err = farm.ErrOwnPort(farm.EgressPort)
	}
	return time.Duration(seconds) * time.Second, err
}

// Dial connects to the port. ctx bounds the dial, not the connection. Not found: nothing listens there.
func (p *Port) Dial(ctx context.Context) (net.Conn, error) {
	hold := p.memory.Lasting(p.tenant)
	if !hold.Grow(portBytes) {
		return nil, farm.Errorf(farm.CodeExhausted, "The farm has no memory for another connection to a port now. Try again later.")
	}
	conn, err := p.agent.DialPort(ctx, p.Number)
	if err != nil {
		hold.Release()
		return nil, err
	}
	return &heldConn{PortConn: conn, hold: hold}, nil
}

// heldConn gives its memory back when it is closed.
type heldConn struct {
	*relay.PortConn
	hold *budget.Hold
	once sync.Once
}

// Close implements net.Conn.
func (c *heldConn) Close() error {
	c.once.Do(c.hold.Release)
	return c.PortConn.Close()
}

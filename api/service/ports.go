package service

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/live"
)

// portBytes is what a connection to a port is charged: its window, and its buffers in the connection to the worker.
const portBytes = 192 << 10

// Port is a port of a sandbox that can be reached now.
type Port struct {
	// Key names the port of this generation of the sandbox.
	Key    string
	Number int

	tenant string
	agent  live.Agent
	memory *budget.Budget
}

// portNumber reads the number of a port: digits without a sign or a leading zero.
func portNumber(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != text {
		return 0, farm.Invalidf("%q is not a port: it is a number from 1 to 65535", farm.Shorten(text))
	}
	return int(n), nil //nolint:gosec // it has 16 bits
}

// Port finds a port of a sandbox. Whether anything listens there is known when it is dialled.
func (s *Service) Port(ctx context.Context, tenant, id, number string) (*Port, error) {
	box, a, err := s.reach(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	n, err := portNumber(number)
	if err != nil {
		return nil, err
	}
	return &Port{Key: fmt.Sprintf("%s.%d.%d", box.ID, box.Generation, n), Number: n, tenant: tenant, agent: a, memory: s.Memory}, nil
}

// Dial connects to the port. ctx bounds the dial, not the connection. Not found: nothing listens there.
func (p *Port) Dial(ctx context.Context) (net.Conn, error) {
	hold, ok := p.memory.TryAcquire(p.tenant, portBytes)
	if !ok {
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
	*live.PortConn
	hold *budget.Hold
	once sync.Once
}

// Close implements net.Conn.
func (c *heldConn) Close() error {
	c.once.Do(c.hold.Release)
	return c.PortConn.Close()
}

package server

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/transport"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// portStreams counts the connections to ports. The zero value has none.
type portStreams struct{ open atomic.Int64 }

// enter counts one more connection; the returned function ends it.
func (p *portStreams) enter() (leave func(), err error) {
	if p.open.Add(1) > agent.MaxPortStreams {
		p.open.Add(-1)
		return nil, farm.Errorf(farm.CodeExhausted, "The sandbox has %d connections to its ports, the most that it may have. Close those that you do not need.", agent.MaxPortStreams)
	}
	return func() { p.open.Add(-1) }, nil
}

// putPort connects the request and its answer, as package transport has them, to a port of the loopback.
func (s *Server) putPort(w http.ResponseWriter, r *http.Request) (any, error) {
	out := http.NewResponseController(w)
	if err := out.EnableFullDuplex(); err != nil { // first: without it, even a refusal would wait for the body
		return nil, err
	}
	number, err := s.checkPort(r.PathValue("port"))
	if err != nil {
		return nil, err
	}
	leave, err := s.ports.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	conn, err := transport.DialPort(r.Context(), number, dialTCP)
	if err != nil {
		return nil, err
	}
	w.Header().Set("Content-Type", agent.StreamType)
	w.Header().Set("Transfer-Encoding", "identity") // without chunks, whose lengths would be writes of their own: the frames tell the end
	w.WriteHeader(http.StatusOK)
	if err := out.Flush(); err != nil {
		conn.Abort()
		return nil, err
	}
	stop := context.AfterFunc(s.life, func() { _ = conn.Close() }) //nolint:contextcheck // the agent ends, not the request
	defer stop()
	transport.JoinPort(conn, transport.NewDuplex(transport.Streams{From: r.Body, To: w, Flush: out.Flush}))
	return nil, nil
}

// checkPort reads the number of a port. The agent's own are refused.
func (s *Server) checkPort(text string) (uint16, error) {
	n, err := farm.ParsePort(text)
	if err == nil && s.ownPort(n) {
		err = farm.ErrOwnPort(n)
	}
	return n, err
}

// ownPort reports whether a port is the agent's.
func (s *Server) ownPort(port uint16) bool {
	_, own, err := net.SplitHostPort(s.EgressAddr())
	return err == nil && own == strconv.Itoa(int(port))
}

func dialTCP(ctx context.Context, address string) (*net.TCPConn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil //nolint:errcheck // a tcp connection is one
}

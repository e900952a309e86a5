package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/duplex"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// portTimeout bounds a connection to a port of the own loopback, whose server may have a full backlog.
	portTimeout = 5 * time.Second
	// portBytes is the buffer of one direction of a connection to a port.
	portBytes = 32 << 10
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

// putPort connects the request and its answer, as package duplex has them, to a port of the loopback.
func (s *Server) putPort(w http.ResponseWriter, r *http.Request) (any, error) {
	out := http.NewResponseController(w)
	if err := out.EnableFullDuplex(); err != nil { // first: without it, even a refusal would wait for the body
		return nil, err
	}
	port, err := s.checkPort(r.PathValue("port"))
	if err != nil {
		return nil, err
	}
	leave, err := s.ports.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	conn, err := dialPort(r.Context(), port)
	if err != nil {
		return nil, err
	}
	w.Header().Set("Content-Type", agent.StreamType)
	w.WriteHeader(http.StatusOK)
	if err := out.Flush(); err != nil {
		abort(conn)
		return nil, err
	}
	stop := context.AfterFunc(s.life, func() { _ = conn.Close() }) //nolint:contextcheck // the agent ends, not the request
	defer stop()
	join(conn, duplex.New(duplex.Streams{From: r.Body, To: w, Flush: out.Flush}))
	return nil, nil
}

// checkPort reads the number of a port. The agent's own are refused: what listens there serves programs of the sandbox only.
func (s *Server) checkPort(text string) (string, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != text {
		return "", farm.Invalidf("%q is not a port: it is a number from 1 to 65535", farm.Shorten(text))
	}
	if s.ownPort(uint16(n)) { //nolint:gosec // ParseUint has checked it
		return "", farm.Invalidf("Port %d of the sandbox is the farm's own and cannot be reached from outside.", n)
	}
	return text, nil
}

// ownPort reports whether a port is the agent's.
func (s *Server) ownPort(port uint16) bool {
	_, own, err := net.SplitHostPort(s.EgressAddr())
	return err == nil && own == strconv.Itoa(int(port))
}

// dialPort connects to a port of the loopback: that of IPv4, or that of IPv6 if nothing listens there.
func dialPort(ctx context.Context, port string) (*net.TCPConn, error) {
	ctx, done := context.WithTimeout(ctx, portTimeout)
	defer done()
	var first error
	for _, host := range []string{"127.0.0.1", "::1"} {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, port))
		if err == nil {
			return conn.(*net.TCPConn), nil //nolint:errcheck,forcetypeassert // a tcp connection is one
		}
		if first == nil {
			first = err
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			break
		}
	}
	if errors.Is(first, syscall.ECONNREFUSED) {
		return nil, farm.Wrap(first, farm.CodeNotFound, "Nothing listens on port %s of the sandbox. Start a server there, on 127.0.0.1 or on all addresses, and try again.", port)
	}
	return nil, farm.Wrap(first, farm.CodeUnavailable, "The server on port %s of the sandbox accepts no connection.", port)
}

// join carries bytes between a connection and a stream, each direction until it ends. It returns when both have ended and the other end of the
// stream is gone.
func join(conn *net.TCPConn, stream *duplex.Conn) {
	var in sync.WaitGroup
	in.Go(func() {
		from, err := carry(conn, stream)
		switch {
		case from && errors.Is(err, io.EOF):
			_ = conn.CloseWrite()
		case from: // the caller broke off
			abort(conn)
		}
		<-stream.Over() // what the server has closed is dropped until then
		_ = conn.Close()
	})
	if from, err := carry(stream, conn); from && errors.Is(err, io.EOF) {
		_ = stream.CloseWrite()
	} else {
		stream.Reset()
	}
	in.Wait()
}

// abort closes a connection so that its other end sees that it was broken off.
func abort(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}

// carry copies until one side ends. from says that it was the side that is read.
func carry(to io.Writer, source io.Reader) (from bool, err error) {
	buf := make([]byte, portBytes)
	for {
		n, err := source.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return false, err
			}
		}
		if err != nil {
			return true, err
		}
	}
}

package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
)

const (
	// maxRequest bounds what one connection may send to the worker without Config.Proxy: a request header, never a body. It is less than what
	// the worker buffers before it closes the session.
	maxRequest = 32 << 10
	// workerWait is how long a connection waits for a worker.
	workerWait = 10 * time.Second
	// idleTimeout closes idle connections.
	idleTimeout = 5 * time.Minute
	// lingerTimeout is how long a client may take to read its answer and close.
	lingerTimeout = 2 * time.Second
	// acceptPause is the delay after a failed accept, which means that descriptors or memory ran out.
	acceptPause = 50 * time.Millisecond
	// bufferBytes is the size of the buffer of what a connection receives. What it sends has requestBytes, or proxyBytes with Config.Proxy.
	bufferBytes  = 64 << 10
	requestBytes = 4 << 10
	proxyBytes   = 16 << 10
)

// noWorker is the answer when no worker is connected.
const noWorker = "Nothing outside of this sandbox can be reached: no worker is connected to it. Try again later.\n"

// EgressWorkers opens streams to the workers of this sandbox.
type EgressWorkers interface {
	// Stream opens a stream to a worker, and waits for one until ctx is done.
	Stream(ctx context.Context) (*yamux.Stream, error)
}

// EgressConfig says where an Egress listens and what it carries.
type EgressConfig struct {
	Addr    string // TCP address to listen on
	Workers EgressWorkers
	Proxy   bool // the worker is a proxy too: connections send any amount, and there may be agent.MaxProxyStreams of them
	// Before is called before a program gets a piece of what was sent to it, of at most 64 KiB. nil: nothing is.
	Before func()
}

// Egress is the way out of a sandbox without a network: it listens on the sandbox's loopback and forwards each connection over a stream to a worker,
// which answers it as a package index and, if the sandbox has hosts that it may reach, as a proxy. The agent decides nothing: what may be reached
// is the worker's decision.
type Egress struct {
	life     context.Context // the life of the agent
	workers  EgressWorkers
	listener net.Listener
	proxy    bool
	before   func()
	slots    chan struct{} // more connections wait in the listener's backlog
	wait     time.Duration // for a worker
	buffers  sync.Pool
	wg       sync.WaitGroup
}

// ListenEgress listens until life is done. The caller must then call Close.
func ListenEgress(life context.Context, c EgressConfig) (*Egress, error) {
	return listen(life, c, workerWait)
}

func listen(life context.Context, c EgressConfig, wait time.Duration) (*Egress, error) {
	config := net.ListenConfig{Control: alone}
	listener, err := config.Listen(life, "tcp", c.Addr)
	if err != nil {
		return nil, fmt.Errorf("listen for connections to the outside: %w", err)
	}
	return serve(life, listener, c, wait), nil
}

func serve(life context.Context, listener net.Listener, c EgressConfig, wait time.Duration) *Egress {
	limit := agent.MaxIndexStreams
	if c.Proxy {
		limit = agent.MaxProxyStreams
	}
	g := &Egress{life: life, workers: c.Workers, listener: listener, proxy: c.Proxy, before: c.Before, slots: make(chan struct{}, limit), wait: wait}
	g.buffers.New = func() any { b := make([]byte, bufferBytes); return &b }
	g.wg.Go(g.accept)
	return g
}

// alone keeps the port of a listener from servers of user code. Under gVisor a listener with SO_REUSEADDR, which Go sets, shares its port with
// one that listens at all addresses.
func alone(_, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
	})
	return errors.Join(err, os.NewSyscallError("setsockopt", failed))
}

// Addr is where programs of the sandbox reach it.
func (g *Egress) Addr() string { return g.listener.Addr().String() }

// Close ends every connection and waits for them. Its life must have ended.
func (g *Egress) Close() {
	_ = g.listener.Close()
	g.wg.Wait()
}

func (g *Egress) accept() {
	for {
		select {
		case g.slots <- struct{}{}:
		case <-g.life.Done():
			return
		}
		conn, err := g.listener.Accept()
		if g.life.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return
		}
		if err != nil {
			<-g.slots
			select {
			case <-g.life.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		g.wg.Go(func() {
			defer func() { <-g.slots }()
			g.carry(conn)
		})
	}
}

// carry connects one client to a worker until both directions have ended.
func (g *Egress) carry(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(g.life, g.wait)
	stream, err := g.workers.Stream(ctx)
	cancel()
	if err != nil {
		refuse(conn)
		return
	}
	stop := context.AfterFunc(g.life, func() {
		_ = conn.Close()
		_ = stream.SetReadDeadline(time.Unix(1, 0))
		_ = stream.Close()
	})
	defer stop()
	idle := time.AfterFunc(idleTimeout, func() { _ = conn.Close() })
	defer idle.Stop()
	sent := sentBytes{to: stream}
	var up sync.WaitGroup
	up.Go(func() {
		if g.proxy {
			copyUntilEnd(&sent, conn, make([]byte, proxyBytes), idle)
		} else {
			copyUntilEnd(&sent, io.LimitReader(conn, maxRequest), make([]byte, requestBytes), idle) // at the limit the stream and its request end
		}
		_ = stream.Close()
	})
	buf := g.buffers.Get().(*[]byte) //nolint:errcheck // the pool holds nothing else
	defer g.buffers.Put(buf)
	if copyUntilEnd(pieces{conn, g.before}, stream, *buf, idle) {
		sent.over.Store(true)
		closeWrite(conn)
		_ = conn.SetReadDeadline(time.Now().Add(lingerTimeout))
	} else { // the client has disconnected
		_ = conn.Close()
		_ = stream.Close()
		drain(stream, *buf)
	}
	up.Wait()
}

// pieces writes to a client, and calls before each piece.
type pieces struct {
	to     io.Writer
	before func()
}

func (p pieces) Write(b []byte) (int, error) {
	if p.before != nil {
		p.before()
	}
	return p.to.Write(b)
}

// sentBytes writes to a stream until the worker has ended it; what the client still sends is then discarded.
type sentBytes struct {
	to   io.Writer
	over atomic.Bool
}

func (s *sentBytes) Write(p []byte) (int, error) {
	if s.over.Load() {
		return len(p), nil
	}
	return s.to.Write(p)
}

// copyUntilEnd copies until from ends. It returns false if a write to to fails. Each read resets idle.
func copyUntilEnd(to io.Writer, from io.Reader, buf []byte, idle *time.Timer) bool {
	for {
		n, err := from.Read(buf)
		if n > 0 {
			idle.Reset(idleTimeout)
			if _, err := to.Write(buf[:n]); err != nil {
				return false
			}
		}
		if err != nil {
			return true
		}
	}
}

// drain discards remaining data on a stream until the worker has closed it too: only then is it released on both sides.
func drain(stream *yamux.Stream, buf []byte) {
	for {
		if _, err := stream.Read(buf); err != nil {
			return
		}
	}
}

// refuse answers a client if no worker is connected.
func refuse(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(lingerTimeout))
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		len(noWorker), noWorker)
	closeWrite(conn)
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, maxRequest)) // closing with unread data would reset the connection and lose the answer
}

// closeWrite ends one direction of a connection.
func closeWrite(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
}

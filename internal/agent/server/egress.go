package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

const (
	// maxEgress is how many connections are carried at once; more wait in the backlog of the listener.
	maxEgress = 32
	// maxEgressUp is what one connection may send to the worker: the head of a request, never a body. It stays under what the worker
	// holds unread before it gives the session up.
	maxEgressUp = 32 << 10
	// egressWait is how long a connection waits for a worker.
	egressWait = 10 * time.Second
	// egressIdle ends connections on which nothing moves.
	egressIdle = 5 * time.Minute
	// egressLinger is what a client has to take an answer and to close.
	egressLinger = 2 * time.Second
)

// noWorker answers when there is no worker to ask.
const noWorker = "The package index cannot be reached: no worker is connected to this sandbox. Try again later.\n"

// egress is the way to the package indexes: it listens in the sandbox and carries each connection over a stream of a worker's session.
type egress struct {
	s        *Server
	listener net.Listener
	slots    chan struct{}
	wait     time.Duration // for a worker
	wg       sync.WaitGroup
}

// openEgress listens; wait is how long a connection waits for a worker.
func (s *Server) openEgress(addr string, wait time.Duration) (*egress, error) {
	var config net.ListenConfig
	listener, err := config.Listen(s.life, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for installers: %w", err)
	}
	g := &egress{s: s, listener: listener, slots: make(chan struct{}, maxEgress), wait: wait}
	g.wg.Go(g.accept)
	return g, nil
}

// IndexAddr is where installers reach the package indexes; empty when Config.Index is.
func (s *Server) IndexAddr() string {
	if s.index == nil {
		return ""
	}
	return s.index.listener.Addr().String()
}

// close ends the listening and every connection. The server's life has ended already.
func (g *egress) close() {
	_ = g.listener.Close()
	g.wg.Wait()
}

func (g *egress) accept() {
	for {
		select {
		case g.slots <- struct{}{}:
		case <-g.s.life.Done():
			return
		}
		conn, err := g.listener.Accept()
		if g.s.life.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return
		}
		if err != nil {
			<-g.slots
			pause(g.s.life, acceptPause)
			continue
		}
		g.wg.Go(func() {
			defer func() { <-g.slots }()
			g.carry(conn)
		})
	}
}

// carry connects one client with the worker until both directions have ended.
func (g *egress) carry(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(g.s.life, g.wait)
	stream, err := g.s.sessions.stream(ctx)
	cancel()
	if err != nil {
		refuse(conn)
		return
	}
	stop := context.AfterFunc(g.s.life, func() {
		_ = conn.Close()
		_ = stream.SetReadDeadline(time.Unix(1, 0))
		_ = stream.Close()
	})
	defer stop()
	idle := time.AfterFunc(egressIdle, func() { _ = conn.Close() })
	defer idle.Stop()
	var up sync.WaitGroup
	up.Go(func() {
		moving(stream, io.LimitReader(conn, maxEgressUp), make([]byte, 4<<10), idle) // at the limit the stream ends, and so does the request
		_ = stream.Close()
	})
	buf := g.s.buffers.Get().(*[]byte) //nolint:errcheck,forcetypeassert // the pool holds nothing else
	defer g.s.buffers.Put(buf)
	if moving(conn, stream, *buf, idle) {
		closeWrite(conn)
		_ = conn.SetReadDeadline(time.Now().Add(egressLinger))
	} else { // the client is gone
		_ = conn.Close()
		_ = stream.Close()
		drain(stream, *buf)
	}
	up.Wait()
}

// moving copies until the end of from; false means that to takes no more.
func moving(to io.Writer, from io.Reader, buf []byte, idle *time.Timer) bool {
	for {
		n, err := from.Read(buf)
		if n > 0 {
			idle.Reset(egressIdle)
			if _, err := to.Write(buf[:n]); err != nil {
				return false
			}
		}
		if err != nil {
			return true
		}
	}
}

// drain takes what still comes on a stream until the worker has ended it too: only then does it count no more on either side.
func drain(stream *yamux.Stream, buf []byte) {
	for {
		if _, err := stream.Read(buf); err != nil {
			return
		}
	}
}

// refuse answers a client without a worker.
func refuse(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(egressLinger))
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		len(noWorker), noWorker)
	closeWrite(conn)
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, maxEgressUp)) // closing over what is unread would take the answer back
}

// closeWrite ends one direction of a connection.
func closeWrite(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
}

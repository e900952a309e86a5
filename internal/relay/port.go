package relay

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/agent/transport"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// PortProtocol is what a request for a connection to a port asks the worker to change to. Its path is that of the agent's route. From then on the
// connection has the bytes of the port and nothing else: TLS tells an end (CloseWrite) from a break.
const PortProtocol = "sandfarm-port"

// portTimeout bounds a dial by one worker: the handshake, and a server with a full backlog.
const portTimeout = 15 * time.Second

const (
	// answerBytes is the buffer from which a worker's answer is read.
	answerBytes = 4 << 10
	// maxAnswer bounds the answer: its header and what it says of an error.
	maxAnswer = 128 << 10
)

// PortConn is the API's end of a connection to a port of a sandbox. It is a net.Conn with CloseWrite, and supports deadlines.
type PortConn struct {
	*tls.Conn
	below *Below
	begun *bufio.Reader // what came with the worker's answer; nil: it is read
}

// Read implements net.Conn. io.EOF: the server has ended its direction; any other error: the connection broke off.
func (c *PortConn) Read(p []byte) (int, error) {
	if c.begun != nil {
		if n := c.begun.Buffered(); n > 0 {
			return c.begun.Read(p[:min(n, len(p))])
		}
		c.begun = nil
	}
	n, err := c.Conn.Read(p)
	return n, c.below.checked(err)
}

// Below is a connection below TLS. It knows whether it ended by itself, which package tls takes for the end that TLS tells.
type Below struct {
	net.Conn
	over atomic.Bool
}

// Read implements net.Conn.
func (b *Below) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if errors.Is(err, io.EOF) {
		b.over.Store(true)
	}
	return n, err
}

// checked returns the error of a read from TLS, but io.EOF only if TLS has told the end.
func (b *Below) checked(err error) error {
	if errors.Is(err, io.EOF) && b.over.Load() {
		return io.ErrUnexpectedEOF
	}
	return err
}

// DialPort connects to a port of the sandbox's loopback through a worker of its node. ctx bounds the dial, not the connection, which the caller
// closes. Not found: nothing listens there. Unavailable: the sandbox is not reached now.
func (a Agent) DialPort(ctx context.Context, number int) (conn *PortConn, err error) {
	err = a.way.each(ctx, func(w farm.Worker) (again bool, err error) {
		conn, again, err = a.way.dialPort(ctx, w, number)
		return again, err
	})
	return conn, err
}

// dialPort connects through one worker. again says that another one may have it.
func (s *sandboxPath) dialPort(ctx context.Context, w farm.Worker, number int) (_ *PortConn, again bool, err error) {
	ctx, done := context.WithTimeout(ctx, portTimeout)
	defer done()
	raw, err := s.path.connect(ctx, host(w.ID), "http/1.1")
	if err != nil {
		return nil, true, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.NetConn().Close() })
	defer func() {
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			_ = raw.NetConn().Close()
		}
	}()
	req := &http.Request{
		Method: http.MethodPut, Host: host(w.ID), URL: &url.URL{Path: s.target.path(agent.PortsPath + "/" + strconv.Itoa(number))},
		Header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {PortProtocol}, "User-Agent": {""}},
	}
	if err := req.Write(raw); err != nil {
		return nil, true, err
	}
	r := bufio.NewReaderSize(io.LimitReader(raw, maxAnswer), answerBytes)
	res, err := http.ReadResponse(r, req) //nolint:bodyclose // it is the connection
	switch {
	case err != nil:
		return nil, true, err
	case res.Header.Get(HeaderElsewhere) != "":
		return nil, true, errElsewhere
	case res.StatusCode != http.StatusSwitchingProtocols:
		return nil, false, client.ReadError(res)
	}
	return &PortConn{Conn: raw, below: raw.NetConn().(*Below), begun: r}, false, nil //nolint:errcheck // connect makes no other
}

// PortCaller is the worker's end of a connection to a port.
type PortCaller struct {
	*tls.Conn
	below *Below
}

var _ transport.PortCaller = PortCaller{}

// AcceptPort takes over the connection of a request for PortProtocol and says that the port is reached. The server's connections are Below.
func AcceptPort(w http.ResponseWriter) (PortCaller, error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return PortCaller{}, fmt.Errorf("take the connection over: %w", err)
	}
	c := PortCaller{}
	if secure, ok := conn.(*tls.Conn); ok {
		c.Conn = secure
		c.below, _ = secure.NetConn().(*Below)
	}
	if c.below == nil || rw.Reader.Buffered() > 0 { // a caller sends nothing before the answer
		_ = conn.Close()
		return PortCaller{}, errors.New("take the connection over: it is not that of a caller")
	}
	if _, err := io.WriteString(c.Conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+PortProtocol+"\r\n\r\n"); err != nil {
		c.Reset()
		return PortCaller{}, fmt.Errorf("answer: %w", err)
	}
	return c, nil
}

// Read implements transport.PortCaller.
func (c PortCaller) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, c.below.checked(err)
}

// Reset implements transport.PortCaller: without TLS's own end, the other end reads an error.
func (c PortCaller) Reset() { _ = c.below.Close() }

// Gone implements transport.PortCaller: after TLS's end comes that of TCP when the caller's end is closed.
func (c PortCaller) Gone() {
	if _, err := io.Copy(io.Discard, c.Conn); err == nil {
		_, _ = io.Copy(io.Discard, c.below)
	}
}

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

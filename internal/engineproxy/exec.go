package engineproxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
)

const (
	startTimeout = 30 * time.Second // the start of a process: usually 80 ms, seconds during a burst
	streamBuffer = 64 << 10
	errorMax     = 64 << 10 // bytes of the engine's answer to an exec that it refuses
)

// createExec makes a stream into a sandbox.
func (p *Proxy) createExec(c *call) error {
	body, err := p.body(c)
	if err != nil {
		return err
	}
	checked, err := p.cfg.Checker.Exec(body)
	if err != nil {
		return err
	}
	if !p.cfg.Exec(checked.User, checked.Command) {
		return refuse("a farm does not run this command as this user")
	}
	id, err := p.own(c, engine.RoleSandbox, engine.RoleBuild)
	if err != nil {
		return err
	}
	resp, err := p.send(c, http.MethodPost, "/containers/"+id+"/exec", nil, bytes.NewReader(checked.Body), "application/json")
	if err != nil {
		return err
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, errorMax))
	_ = resp.Body.Close()
	if err != nil {
		return fmt.Errorf("read the engine's answer: %w", err)
	}
	var made struct {
		ID string `json:"Id"`
	}
	if json.Unmarshal(answer, &made) == nil && fullID.MatchString(made.ID) {
		p.execs.put(made.ID, "")
	}
	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(resp.StatusCode)
	_, _ = c.w.Write(answer) // the caller may be gone
	return nil
}

// startExec starts an exec that was created here, once, and connects the caller with it.
func (p *Proxy) startExec(c *call) (err error) {
	body, err := p.body(c)
	if err != nil {
		return err
	}
	if body, err = p.cfg.Checker.ExecStart(body); err != nil {
		return err
	}
	if !strings.EqualFold(c.r.Header.Get("Upgrade"), "tcp") {
		return refuse("it does not ask for a stream")
	}
	id := c.args[0]
	if _, ok := p.execs.take(id); !ok {
		return refuse("this exec was not created through this proxy, or it was started before")
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), startTimeout)
	defer cancel()
	up, err := p.cfg.Dial(ctx)
	if err != nil {
		return fmt.Errorf("call engine: %w", err)
	}
	defer func() { _ = up.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = up.SetDeadline(time.Unix(1, 0)) })
	r, err := c.request(http.MethodPost, "/exec/"+id+"/start", nil, bytes.NewReader(body), "application/json")
	if err != nil {
		return err
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "tcp")
	if err := r.Write(up); err != nil {
		return fmt.Errorf("call engine: %w", err)
	}
	from := bufio.NewReaderSize(up, streamBuffer)
	resp, err := http.ReadResponse(from, r) //nolint:bodyclose // the body is the connection, which is closed above
	if err != nil {
		return fmt.Errorf("await stream: %w", err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body = io.NopCloser(io.LimitReader(resp.Body, errorMax))
		return c.pass(resp)
	}
	if !stop() {
		return fmt.Errorf("await stream: %w", context.Cause(ctx))
	}
	return p.connect(c, up, from)
}

// connect passes bytes between the caller and the engine until the engine ends the stream.
func (p *Proxy) connect(c *call, up net.Conn, from *bufio.Reader) error {
	down, buffered, err := http.NewResponseController(c.w).Hijack()
	if err != nil {
		return fmt.Errorf("take over connection: %w", err)
	}
	defer func() { _ = down.Close() }()
	if !p.streams.add(down) {
		return nil
	}
	defer p.streams.remove(down)
	_ = down.SetDeadline(time.Time{}) // a connection that is gone fails below
	if _, err := io.WriteString(down, "HTTP/1.1 101 Switching Protocols\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"); err != nil {
		return nil // the caller is gone
	}
	var group sync.WaitGroup
	group.Go(func() {
		early, _ := buffered.Reader.Peek(buffered.Reader.Buffered()) // never fails: they are there
		if _, err := up.Write(early); err == nil {
			_, _ = io.CopyBuffer(up, down, make([]byte, streamBuffer)) // either side may end it
		}
		if half, ok := up.(interface{ CloseWrite() error }); ok { // the program reads the end of its input
			_ = half.CloseWrite()
		}
	})
	_, _ = io.Copy(down, from) // either side may end it
	_ = up.Close()
	_ = down.Close()
	group.Wait()
	return nil
}

// streams are the connections that were taken over.
type streams struct {
	mu     sync.Mutex
	open   map[net.Conn]bool
	closed bool
}

func (s *streams) add(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.open[conn] = true
	}
	return !s.closed
}

func (s *streams) remove(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, conn)
}

// close closes all, now and in the future.
func (s *streams) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for conn := range s.open {
		_ = conn.Close()
	}
}

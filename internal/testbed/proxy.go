//go:build unix

package testbed

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Proxy is a way to a Redis that a test can cut, hold, or stop at a call.
type Proxy struct {
	listener net.Listener
	dial     func() (net.Conn, error)
	scripts  *Scripts

	mu      sync.Mutex
	refused bool
	gate    chan struct{} // closed unless the way is held
	open    map[net.Conn]bool
	stops   []*Stop
	wg      sync.WaitGroup
}

// NewProxy starts a proxy to a server. It stops when the test ends.
func NewProxy(t testing.TB, s *Redis) *Proxy {
	t.Helper()
	return NewProxyTo(t, "unix", s.Socket, nil)
}

// NewProxyTo starts a proxy to the Redis at an address. It stops when the test ends. scripts has the names of scripts for Stop; nil: none.
func NewProxyTo(t testing.TB, network, address string, scripts *Scripts) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{
		listener: listener, scripts: scripts, open: map[net.Conn]bool{}, gate: make(chan struct{}),
		dial: func() (net.Conn, error) { return net.Dial(network, address) },
	}
	close(p.gate)
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		p.Hold(false)
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Address is where the proxy listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Dial returns a client through the proxy, which the caller closes.
func (p *Proxy) Dial() redis.UniversalClient {
	return redis.NewClient(&redis.Options{Addr: p.Address()})
}

// Cut closes every open connection.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.open {
		_ = conn.Close()
	}
}

// Refuse closes new connections at once, or lets them through again.
func (p *Proxy) Refuse(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = yes
}

// Hold keeps back everything in both directions, as a network that loses every packet, or lets it through again.
func (p *Proxy) Hold(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.gate:
		if yes {
			p.gate = make(chan struct{})
		}
	default:
		if !yes {
			close(p.gate)
		}
	}
}

// At adds a stop. Each stop acts once; of two that fit the same call, the first acts.
func (p *Proxy) At(stop Stop) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stops = append(p.stops, &stop)
}

// Clear removes the stops that have not acted, and returns how many there were.
func (p *Proxy) Clear() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.stops)
	p.stops = nil
	return n
}

// pass waits while the way is held.
func (p *Proxy) pass() {
	p.mu.Lock()
	gate := p.gate
	p.mu.Unlock()
	<-gate
}

// stopAt takes the stop for a call; nil: there is none.
func (p *Proxy) stopAt(words []string) *Stop {
	call := p.scripts.call(words)
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, stop := range p.stops {
		if stop.matches(call, words) {
			p.stops = slices.Delete(p.stops, i, i+1)
			return stop
		}
	}
	return nil
}

func (p *Proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := p.dial()
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		if p.refused {
			_, _ = in.Close(), out.Close()
		} else {
			c := &connection{p: p, in: in, out: out, after: map[int]*Stop{}}
			p.open[in], p.open[out] = true, true
			p.wg.Go(func() { c.carry(c.commands) })
			p.wg.Go(func() { c.carry(c.replies) })
		}
		p.mu.Unlock()
	}
}

// connection is one connection of a client, with its own to Redis.
type connection struct {
	p       *Proxy
	in, out net.Conn

	mu    sync.Mutex
	sent  int           // commands
	after map[int]*Stop // stops before the answer of the command of this number
}

// carry carries one direction. When it ends, so does the other, and stops whose answer did not come wait for another call.
func (c *connection) carry(direction func() error) {
	_ = direction()
	_, _ = c.in.Close(), c.out.Close()
	c.mu.Lock()
	unanswered := slices.Collect(maps.Values(c.after))
	clear(c.after)
	c.mu.Unlock()
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	c.p.stops = append(c.p.stops, unanswered...)
	delete(c.p.open, c.in)
	delete(c.p.open, c.out)
}

// commands carries commands to Redis.
func (c *connection) commands() error {
	for r := bufio.NewReader(c.in); ; {
		raw, words, err := readCommand(r)
		if err != nil {
			return err
		}
		stop := c.p.stopAt(words)
		if stop != nil && !stop.After && !stop.Do(stop.words) {
			return io.EOF
		}
		c.p.pass()
		c.mu.Lock()
		c.sent++
		if stop != nil && stop.After {
			c.after[c.sent] = stop
		}
		c.mu.Unlock()
		if _, err := c.out.Write(raw); err != nil {
			return err
		}
	}
}

// replies carries the answers back.
func (c *connection) replies() error {
	answered := 0
	for r := bufio.NewReader(c.out); ; {
		raw, pushed, err := readReply(r, nil)
		if err != nil {
			return err
		}
		if !pushed {
			answered++
			c.mu.Lock()
			stop := c.after[answered]
			delete(c.after, answered)
			c.mu.Unlock()
			if stop != nil && !stop.Do(stop.words) {
				return io.EOF
			}
		}
		c.p.pass()
		if _, err := c.in.Write(raw); err != nil {
			return err
		}
	}
}

// readCommand reads one command of a client, an array of bulk strings, and returns its bytes and its words.
func readCommand(r *bufio.Reader) (raw []byte, words []string, err error) {
	kind, n, raw, err := readHeader(r, nil)
	if err != nil {
		return nil, nil, err
	}
	if kind != '*' {
		return nil, nil, fmt.Errorf("a command begins with %q, not with *", kind)
	}
	for range n {
		kind, size, next, err := readHeader(r, raw)
		if err != nil {
			return nil, nil, err
		}
		if kind != '$' || size < 0 {
			return nil, nil, fmt.Errorf("a word of a command begins with %q, not with $", kind)
		}
		if raw, err = readBody(r, next, size); err != nil {
			return nil, nil, err
		}
		words = append(words, string(raw[len(raw)-size-2:len(raw)-2]))
	}
	return raw, words, nil
}

// readReply reads one reply of a server, of version 2 or 3 of the protocol, and returns its bytes. pushed says that no command asked for it.
func readReply(r *bufio.Reader, raw []byte) (all []byte, pushed bool, err error) {
	kind, n, raw, err := readHeader(r, raw)
	if err != nil {
		return nil, false, err
	}
	switch kind {
	case '$', '=', '!':
		if n >= 0 {
			raw, err = readBody(r, raw, n)
		}
		return raw, false, err
	case '%', '|':
		n *= 2
	case '*', '~', '>':
	default:
		return raw, false, nil
	}
	for range n {
		if raw, _, err = readReply(r, raw); err != nil {
			return nil, false, err
		}
	}
	if kind == '|' { // an attribute comes before the reply that it describes
		return readReply(r, raw)
	}
	return raw, kind == '>', nil
}

// readHeader reads a line such as "*3\r\n" and appends it to raw. n is 0 where the line has no number.
func readHeader(r *bufio.Reader, raw []byte) (kind byte, n int, all []byte, err error) {
	line, err := r.ReadSlice('\n')
	for err == bufio.ErrBufferFull { //nolint:errorlint // the very value
		raw = append(raw, line...)
		line, err = r.ReadSlice('\n')
	}
	if err != nil {
		return 0, 0, nil, err
	}
	if len(line) < 3 {
		return 0, 0, nil, fmt.Errorf("the line %q is too short", line)
	}
	kind = line[0]
	n, _ = strconv.Atoi(string(line[1 : len(line)-2])) // a text, where it is no number
	return kind, n, append(raw, line...), nil
}

// readBody reads size bytes and the end of the line, and appends them to raw.
func readBody(r *bufio.Reader, raw []byte, size int) ([]byte, error) {
	at := len(raw)
	raw = append(raw, make([]byte, size+2)...)
	_, err := io.ReadFull(r, raw[at:])
	return raw, err
}

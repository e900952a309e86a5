package redistest

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Proxy forwards connections to a Server and can cut them.
type Proxy struct {
	listener net.Listener
	to       string
	mu       sync.Mutex
	refused  bool
	open     map[net.Conn]bool
	wg       sync.WaitGroup
}

// NewProxy starts a proxy to a server. It stops when the test ends.
func NewProxy(t testing.TB, s *Server) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: listener, to: s.Socket, open: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Dial returns a client through the proxy, which the caller closes.
func (p *Proxy) Dial() redis.UniversalClient {
	return redis.NewClient(&redis.Options{Addr: p.listener.Addr().String()})
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

func (p *Proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("unix", p.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		if p.refused {
			_, _ = in.Close(), out.Close()
		} else {
			p.open[in], p.open[out] = true, true
			p.wg.Go(func() { p.carry(in, out) })
			p.wg.Go(func() { p.carry(out, in) })
		}
		p.mu.Unlock()
	}
}

// carry copies one direction of a connection. When it ends, so does the other.
func (p *Proxy) carry(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_, _ = to.Close(), from.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, to)
	delete(p.open, from)
}

package redistest

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Proxy stands between clients and a Server, and can be cut.
type Proxy struct {
	listener net.Listener
	to       string
	mu       sync.Mutex
	refused  bool
	open     map[net.Conn]bool
	wg       sync.WaitGroup
}

// NewProxy gives a way to a server until the test ends.
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

// Dial gives a client that goes through the proxy and that the caller closes.
func (p *Proxy) Dial() redis.UniversalClient {
	return redis.NewClient(&redis.Options{Addr: p.listener.Addr().String()})
}

// Cut breaks every connection that there is.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.open {
		_ = conn.Close()
	}
}

// Refuse has new connections closed at once, or let through again.
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

// carry copies one direction of a connection; the end of one ends the other.
func (p *Proxy) carry(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_, _ = to.Close(), from.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, to)
	delete(p.open, from)
}

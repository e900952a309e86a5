package egressproxy

import (
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is one connection or plain request, from the moment it is allowed until it is reported.
type link struct {
	proxy   *Proxy
	target  target
	secrets []Secret // of its host
	certify func(host string) (*tls.Certificate, error)
	started time.Time
	idle    *time.Timer

	sent, received atomic.Int64

	mu        sync.Mutex
	verdict   Verdict
	reason    string
	over      bool
	abort     func()    // ends dialling; nil: it has not begun
	host      *hostConn // nil: none yet
	interrupt func()    // unblocks what reads from the client and writes to it, when the link is ended before both sides are done
}

// newLink makes a link. The lock of its proxy is held.
func newLink(p *Proxy, to target, at time.Time) *link {
	l := &link{proxy: p, target: to, started: at, verdict: Allowed}
	l.idle = time.AfterFunc(p.limits.Idle, func() { l.end(Denied, ReasonIdle) })
	return l
}

// end ends the link at once. The first verdict counts. It does not wait and takes no lock of the proxy.
func (l *link) end(verdict Verdict, reason string) {
	if interrupt := l.settle(verdict, reason); interrupt != nil {
		interrupt()
	}
}

// settle makes the verdict final, closes the connection to the host and returns how to unblock the client's side; nil: nothing to do.
func (l *link) settle(verdict Verdict, reason string) (interrupt func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return nil
	}
	l.over, l.verdict, l.reason = true, verdict, reason
	if l.abort != nil {
		l.abort()
	}
	if l.host != nil {
		_ = l.host.Close()
	}
	return l.interrupt
}

// onAbort says how to end dialling; it is ended at once if the link has ended.
func (l *link) onAbort(f func()) {
	l.mu.Lock()
	l.abort = f
	over := l.over
	l.mu.Unlock()
	if over {
		f()
	}
}

// onInterrupt says how to unblock the client's side; it is unblocked at once if the link has ended.
func (l *link) onInterrupt(f func()) {
	l.mu.Lock()
	l.interrupt = f
	over := l.over
	l.mu.Unlock()
	if over {
		f()
	}
}

// outcome is the reason of the link's end, "" if it has not ended, and whether the host was reached.
func (l *link) outcome() (reason string, connected bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reason, l.host != nil
}

// finish ends the link if it has not ended, reports it and releases its place.
func (l *link) finish() {
	_ = l.settle(Allowed, "") // nothing is blocked any more
	l.idle.Stop()
	p := l.proxy
	p.report(Connection{
		At: l.started, Host: l.target.host, Port: l.target.port, Method: l.target.method, Verdict: l.verdict, Reason: l.reason,
		Secrets: l.used(),
		Sent:    l.sent.Load(), Received: l.received.Load(), Duration: time.Since(l.started),
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
	p.ended.Broadcast()
}

// used are the names of the secrets that were sent to the host.
func (l *link) used() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.host == nil {
		return nil
	}
	return secretNames(l.secrets)
}

// hostConn is the connection to the host. It counts bytes, ends its link when none are left, and keeps the link from being idle. It does
// not embed the TCP connection itself, whose ReadFrom and WriteTo would pass the counting by.
type hostConn struct {
	net.Conn
	link  *link
	leave func() // gives its large buffer back
}

// Close implements net.Conn.
func (c *hostConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// attach makes a connection that of the link, which closes it at its end.
func (l *link) attach(conn net.Conn) *hostConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.host = &hostConn{Conn: conn, link: l, leave: func() {}}
	if tcp, ok := conn.(*net.TCPConn); ok {
		l.host.leave = l.proxy.buffers.Bound(l.proxy.tenant, tcp)
	}
	if l.over {
		_ = l.host.Close()
	}
	return l.host
}

// CloseWrite ends the direction to the host.
func (c *hostConn) CloseWrite() error {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		return tcp.CloseWrite()
	}
	return nil
}

// Read returns what the sandbox may still receive.
func (c *hostConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n == 0 {
		return 0, err
	}
	granted := c.link.proxy.take(n)
	c.link.received.Add(int64(granted))
	c.link.idle.Reset(c.link.proxy.limits.Idle)
	if granted < n {
		c.link.end(Denied, ReasonBytes)
		return granted, net.ErrClosed
	}
	return n, err
}

// Write sends what the sandbox may still send.
func (c *hostConn) Write(b []byte) (int, error) {
	granted := c.link.proxy.take(len(b))
	c.link.sent.Add(int64(granted)) // before: the answer may end the link before Write returns
	n, err := c.Conn.Write(b[:granted])
	c.link.sent.Add(int64(n - granted))
	c.link.proxy.used.Add(int64(n - granted))
	c.link.idle.Reset(c.link.proxy.limits.Idle)
	if err == nil && granted < len(b) {
		c.link.end(Denied, ReasonBytes)
		return n, net.ErrClosed
	}
	return n, err
}

package httpserver_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// What a client sends and nobody reads stays in the kernel, and no budget counts it: connections begin with little, which grows once for a long body of a
// known caller, of half of the connections that others leave, and few have large buffers.
func TestTheKernelKeepsLittleOfClients(t *testing.T) {
	t.Parallel()
	large := max(httpserver.LargeBuffers(), 2)
	var mu sync.Mutex
	var last net.Conn
	sizes := make(chan int)
	c := config(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			httpserver.Known(r.Context(), r.URL.Path, nil)
		}
		mu.Lock()
		conn := last
		mu.Unlock()
		sizes <- testbed.ReceiveBuffer(t, conn.(syscall.Conn))
		_, _ = io.Copy(io.Discard, r.Body) // which comes when the client has left
	})
	c.Accepted = func(conn net.Conn) net.Conn {
		mu.Lock()
		defer mu.Unlock()
		last = conn
		return conn
	}
	s := httpserver.New(c)
	testbed.Must(t, s.Start(t.Context()))
	t.Cleanup(s.Stop)
	send := func(c caller, size int, path string) int {
		_, err := fmt.Fprintf(c.conn, "PUT %s HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n", path, size)
		testbed.Must(t, err)
		return <-sizes
	}
	const first, bounded, long = 2 * 64 << 10, 2 * 192 << 10, 64<<10 + 1
	testbed.Diff(t, "the buffer of a connection with a short body", first, send(dial(t, s), long-1, "/a"))
	var bound []caller
	for n := range 32 + 1 {
		want := 0
		switch {
		case n >= 32:
			want = first
		case n >= large/2:
			want = bounded
		}
		c := dial(t, s)
		testbed.Diff(t, fmt.Sprintf("the buffer of connection %d", n+1), want, send(c, long, "/a"))
		if want == bounded {
			bound = append(bound, c)
		}
	}
	_ = bound[0].conn.Close()
	again := func() bool {
		c := dial(t, s)
		defer func() { _ = c.conn.Close() }()
		return send(c, long, "/a") == bounded
	}
	for detectsHang := time.Now().Add(time.Minute); !again(); time.Sleep(time.Millisecond) {
		testbed.Require(t, time.Now().Before(detectsHang), "the place of a connection that has ended is not given on")
	}
	testbed.Diff(t, "the buffer of another caller", 0, send(dial(t, s), long, "/b"))
	testbed.Diff(t, "the buffer of a connection without a known caller", first, send(dial(t, s), long, "/"))
}

// A connection with TLS, whose caller is never made known, has what others get for a long body.
func TestTheKernelKeepsMoreWithTLS(t *testing.T) {
	t.Parallel()
	sizes := make(chan int, 1)
	c := config(nil)
	c.HTTP.TLSConfig = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("none") }}
	c.Accepted = func(conn net.Conn) net.Conn {
		sizes <- testbed.ReceiveBuffer(t, conn.(syscall.Conn))
		return conn
	}
	s := httpserver.New(c)
	testbed.Must(t, s.Start(t.Context()))
	t.Cleanup(s.Stop)
	dial(t, s)
	testbed.Diff(t, "the buffer of a connection with TLS", 2*192<<10, <-sizes)
}

// What was sent and is not read stays in the kernel, and no budget counts it: few connections have a large buffer for it, of a tenant half of those that
// others leave.
func TestFewConnectionsHaveLargeBuffers(t *testing.T) {
	t.Parallel()
	const bounded = 2 * 192 << 10
	large := max(httpserver.LargeBuffers(), 2)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	bound := func(b *httpserver.Buffers, tenant string) (leave func(), is bool) {
		dialed, err := net.Dial("tcp", listener.Addr().String())
		testbed.Must(t, err)
		conn := dialed.(*net.TCPConn)
		t.Cleanup(func() { _ = conn.Close() })
		leave = b.Bound(tenant, conn)
		return leave, testbed.ReceiveBuffer(t, conn) == bounded
	}
	buffers := httpserver.NewBuffers()
	var first func()
	for n := range large/2 + 1 { // of two or three places one
		leave, is := bound(buffers, "acme")
		if n == 0 {
			first = leave
		}
		testbed.Check(t, is == (n >= large/2), "connection %d is bounded: %v", n+1, is)
	}
	other, is := bound(buffers, "other")
	testbed.Check(t, !is, "no connection of another tenant has a large buffer")
	other()
	first()
	first()
	_, is = bound(buffers, "acme")
	testbed.Check(t, !is, "the buffer of a connection that has ended is not given on")
	_, is = bound(buffers, "acme")
	testbed.Check(t, is, "a buffer is given on twice")
	_, is = bound(nil, "acme")
	testbed.Check(t, !is, "without Buffers a connection is bounded")
}

package zmtp_test

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/zmtp"
)

// client is a peer, written byte by byte.
type client struct {
	t    *testing.T
	conn net.Conn
}

var greeting = append(append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1, 'N', 'U', 'L', 'L'}, make([]byte, 16)...), make([]byte, 32)...)

// ready is the READY command of a DEALER with the identity "me".
var ready = append([]byte{4, 43}, "\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x02me"...)

func serve(t *testing.T, kind zmtp.Kind, receive func(*zmtp.Peer, [][]byte)) (*zmtp.Socket, string) {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := zmtp.Serve(l, kind, receive)
	t.Cleanup(s.Close)
	return s, l.Addr().String()
}

func dial(t *testing.T, at string) *client {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return &client{t, conn}
}

func (c *client) send(data ...[]byte) {
	c.t.Helper()
	if _, err := c.conn.Write(bytes.Join(data, nil)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) read(n int) []byte {
	c.t.Helper()
	out := make([]byte, n)
	if _, err := io.ReadFull(c.conn, out); err != nil {
		c.t.Fatal(err)
	}
	return out
}

// join does the handshake.
func (c *client) join() *client {
	c.t.Helper()
	c.send(greeting, ready)
	if g := c.read(64); g[0] != 0xff || g[9] != 0x7f || g[10] != 3 || string(g[12:16]) != "NULL" {
		c.t.Fatalf("greeting %q", g)
	}
	head := c.read(2)
	if body := c.read(int(head[1])); head[0] != 4 || !bytes.HasPrefix(body, []byte("\x05READY\x0bSocket-Type")) {
		c.t.Fatalf("command %q", body)
	}
	return c
}

// closed waits for the server to end the connection.
func (c *client) closed() {
	c.t.Helper()
	if _, err := io.Copy(io.Discard, c.conn); err != nil {
		if e, ok := err.(net.Error); ok && e.Timeout() { //nolint:errorlint // it is not wrapped
			c.t.Errorf("the connection goes on")
		}
	}
}

func TestRouterAnswersItsPeer(t *testing.T) {
	t.Parallel()
	long := bytes.Repeat([]byte("x"), 300)
	s, at := serve(t, zmtp.Router, func(p *zmtp.Peer, frames [][]byte) {
		_ = p.Send(append([][]byte{[]byte(p.Identity())}, frames...))
	})
	c := dial(t, at).join()
	c.send([]byte{1, 1, 'a'}, []byte{2, 0, 0, 0, 0, 0, 0, 1, 44}, long)
	want := append([]byte("\x01\x02me\x01\x01a\x02\x00\x00\x00\x00\x00\x00\x01\x2c"), long...)
	if diff := cmp.Diff(string(want), string(c.read(len(want)))); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	if s.Find("me") == nil || s.Find("you") != nil {
		t.Error("peers are not found by their identity")
	}
	c.send([]byte{4, 10}, []byte("\x04PING\x00\x09ctx"))
	if got := c.read(10); string(got) != "\x04\x08\x04PONGctx" {
		t.Errorf("answer to a ping: %q", got)
	}
}

func TestPublishReachesSubscribers(t *testing.T) {
	t.Parallel()
	s, at := serve(t, zmtp.Pub, nil)
	c := dial(t, at).join()
	c.send([]byte("\x00\x03\x01ab"), []byte("\x00\x02\x01x"), []byte("\x00\x02\x00x"), []byte("\x04\x0c\x09SUBSCRIBEzz"))
	c.send([]byte{4, 7}, []byte("\x04PING\x00\x00")) // its answer comes when the subscriptions are known
	c.read(7)
	for _, topic := range []string{"other", "abc", "x", "zzz", "a"} {
		s.Publish([][]byte{[]byte(topic), []byte("said")})
	}
	const want = "\x01\x03abc\x00\x04said\x01\x03zzz\x00\x04said"
	if diff := cmp.Diff(want, string(c.read(len(want)))); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
}

func TestSubscriptionsAreBounded(t *testing.T) {
	t.Parallel()
	_, at := serve(t, zmtp.Pub, nil)
	c := dial(t, at).join()
	c.send(bytes.Repeat([]byte("\x00\x02\x01x"), zmtp.MaxSubscriptions), []byte("\x04\x07\x04PING\x00\x00"))
	c.read(7)
	c.send([]byte("\x00\x02\x01x"))
	c.closed()
}

func TestPeersAreBounded(t *testing.T) {
	t.Parallel()
	_, at := serve(t, zmtp.Rep, func(p *zmtp.Peer, frames [][]byte) { _ = p.Send(frames) })
	var last *client
	for range zmtp.MaxPeers {
		last = dial(t, at).join()
	}
	dial(t, at).closed()
	last.send([]byte("\x00\x01x"))
	if got := last.read(3); string(got) != "\x00\x01x" {
		t.Errorf("the last peer gets %q", got)
	}
}

// A peer that speaks something else is disconnected, and others are served.
func TestMalformedPeers(t *testing.T) {
	t.Parallel()
	_, at := serve(t, zmtp.Rep, func(p *zmtp.Peer, frames [][]byte) { _ = p.Send(frames) })
	old := bytes.Clone(greeting)
	old[10] = 2
	curve := bytes.Clone(greeting)
	copy(curve[12:], "CURVE")
	for name, data := range map[string][]byte{
		"HTTP":          bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 8),
		"Version2":      append(old, ready...),
		"Mechanism":     append(curve, ready...),
		"NoReady":       append(bytes.Clone(greeting), 0, 1, 'x'),
		"OtherCommand":  append(bytes.Clone(greeting), "\x04\x06\x05ERROR"...),
		"CutProperties": append(bytes.Clone(greeting), "\x04\x08\x05READY\x0bS"...),
		"HugeFrame":     append(append(bytes.Clone(greeting), ready...), 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := dial(t, at)
			c.send(data)
			c.closed()
			other := dial(t, at).join()
			other.send([]byte("\x00\x01x"))
			other.read(3)
		})
	}
}

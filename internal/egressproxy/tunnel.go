package egressproxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// established is the answer to a CONNECT that is allowed.
const established = "HTTP/1.1 200 Connection established\r\n\r\n"

// tunnel carries a CONNECT until both directions have ended.
func (l *link) tunnel(ctx context.Context, w http.ResponseWriter) {
	host, err := l.dial(ctx)
	if err != nil {
		l.end(verdictOf(err))
		reason, _ := l.outcome()
		refuse(w, l.target, reason)
		return
	}
	client, from, ok := l.hijack(w)
	if !ok {
		return
	}
	defer func() { _ = client.Close() }()
	raw, reason := readHello(ctx, from, l.target.host)
	if reason != "" {
		if len(raw) > 0 && raw[0] == recordHandshake {
			_, _ = client.Write(alert)
		}
		l.end(Denied, reason)
		return
	}
	_ = client.SetDeadline(time.Time{})
	if _, err := host.Write(raw); err != nil {
		l.end(Failed, ReasonBroken)
		return
	}
	l.join(ctx, client, from, host)
}

// hijack takes the client's connection over and tells the client that the tunnel is established. The client has limits.Hello to greet. from is
// what it sends. If ok is false the link has ended, and the connection is closed or has its answer.
func (l *link) hijack(w http.ResponseWriter) (client net.Conn, from io.Reader, ok bool) {
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		l.end(Failed, ReasonBroken)
		http.Error(w, "This connection cannot carry a tunnel.", http.StatusInternalServerError)
		return nil, nil, false
	}
	l.onInterrupt(func() { _ = client.Close() })
	_ = client.SetDeadline(time.Now().Add(l.proxy.limits.Hello))
	if _, err := io.WriteString(client, established); err != nil {
		_ = client.Close()
		l.end(Failed, ReasonBroken)
		return nil, nil, false
	}
	ahead, _ := buffered.Peek(buffered.Reader.Buffered())
	return client, io.MultiReader(bytes.NewReader(bytes.Clone(ahead)), client), true
}

// join copies in both directions until both have ended, or one fails. A client may go away as it likes; only what the host breaks off has
// failed.
func (l *link) join(ctx context.Context, client net.Conn, from io.Reader, host *hostConn) {
	var up sync.WaitGroup
	var left atomic.Bool // the client has ended its direction
	first := &decision{made: make(chan struct{})}
	up.Go(func() {
		unsent := l.untilDecided(ctx, from, host, first)
		var unread error
		if unsent == nil {
			unread, unsent = l.proxy.copy(host, from)
		}
		switch {
		case unsent != nil && !errors.Is(unsent, io.EOF):
			l.end(Failed, ReasonBroken)
		case unread != nil:
			l.end(Allowed, "")
		default:
			left.Store(true)
			_ = host.CloseWrite()
		}
	})
	read, unread := first.decide(host)
	_, unsent := client.Write(read)
	if unread == nil && unsent == nil {
		unread, unsent = l.proxy.copy(client, host)
	}
	if errors.Is(unread, io.EOF) || errors.Is(unread, io.ErrUnexpectedEOF) {
		unread = nil
	}
	half, ok := client.(interface{ CloseWrite() error })
	switch {
	case unread != nil && !left.Load():
		l.end(Failed, ReasonBroken)
	case unread != nil || unsent != nil || !ok || half.CloseWrite() != nil:
		l.end(Allowed, "")
	}
	up.Wait()
}

const (
	// restBytes is the buffer of a direction in which little is sent.
	restBytes = 4 << 10
	// busyBytes is the buffer of a direction that filled the small one. The budget is charged for it.
	busyBytes = 128 << 10
)

// busy are the large buffers that are not in use.
var busy = sync.Pool{New: func() any { b := make([]byte, busyBytes); return &b }}

// copy copies until from ends, and says what kept it from reading or writing. A direction that rests has a small buffer, so that many idle tunnels take little memory.
func (p *Proxy) copy(to io.Writer, from io.Reader) (unread, unsent error) {
	rest := make([]byte, restBytes)
	buf := rest
	var large *[]byte
	release := func() {}
	defer func() { release() }()
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return nil, err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil, nil
		case err != nil:
			return err, nil
		case large != nil && n < restBytes:
			release()
			buf, large, release = rest, nil, func() {}
		case large == nil && n == restBytes:
			hold := p.budget.Lasting(p.tenant) // the other end may read slowly
			if !hold.Grow(busyBytes) {
				continue
			}
			large, _ = busy.Get().(*[]byte)
			used := large
			buf, release = *large, func() { busy.Put(used); hold.Release() }
		}
	}
}

const (
	// maxHelloBytes bounds a ClientHello with the headers of its records. Those with keys for post-quantum exchanges and a ticket have some 3 KiB.
	maxHelloBytes = 32 << 10
	// extensionECH is the TLS extension encrypted_client_hello. Some clients send it with random content, which cannot be distinguished.
	extensionECH = 0xfe0d
	// recordHandshake is the type of TLS records with handshake messages.
	recordHandshake = 22
)

// errHello ends the handshake when the ClientHello is there.
var errHello = errors.New("the ClientHello is complete")

// readHello reads a ClientHello, however it is split, and nothing after it. reason says why it does not fit a tunnel to host.
// crypto/tls parses it, which refuses extensions and names that occur twice: no server may read another name.
func readHello(ctx context.Context, from io.Reader, host string) (raw []byte, reason string) {
	var read bytes.Buffer
	var name string
	var extensions []uint16
	conn := &helloConn{from: io.TeeReader(&recordReader{from: io.LimitReader(from, maxHelloBytes)}, &read)}
	err := tls.Server(conn, &tls.Config{
		MinVersion: tls.VersionTLS12, // of no effect: the handshake ends before versions are compared
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name, extensions = hello.ServerName, slices.Clone(hello.Extensions)
			return nil, errHello
		},
	}).HandshakeContext(ctx)
	raw = read.Bytes()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return raw, ReasonHello
	case !errors.Is(err, errHello) || !oneMessage(raw):
		return raw, ReasonNoTLS
	case slices.Contains(extensions, extensionECH):
		return raw, ReasonECH
	case name == "":
		return raw, ReasonNoSNI
	}
	if normal, ok := farm.NormalHost(name); !ok || normal != host {
		return raw, ReasonSNI
	}
	return raw, ""
}

// recordReader reads no further than to the end of the record that was asked for.
type recordReader struct {
	from io.Reader
	head []byte // what is there of the header of this record
	left int    // what is missing of its content
}

// Read reads from one record.
func (r *recordReader) Read(b []byte) (int, error) {
	if len(r.head) == recordHeader && r.left == 0 {
		r.head = r.head[:0]
	}
	if missing := recordHeader - len(r.head); missing > 0 {
		n, err := r.from.Read(b[:min(len(b), missing)])
		if r.head = append(r.head, b[:n]...); len(r.head) == recordHeader {
			r.left = int(binary.BigEndian.Uint16(r.head[3:]))
		}
		return n, err
	}
	n, err := r.from.Read(b[:min(len(b), r.left)])
	r.left -= n
	return n, err
}

// oneMessage reports whether records have one handshake message and nothing else. A second ClientHello could follow the first.
func oneMessage(records []byte) bool {
	var message []byte
	for len(records) >= recordHeader && records[0] == recordHandshake {
		end := recordHeader + int(binary.BigEndian.Uint16(records[3:]))
		if end > len(records) {
			return false
		}
		message = append(message, records[recordHeader:end]...)
		records = records[end:]
	}
	const header = 4
	return len(records) == 0 && len(message) >= header && len(message)-header == int(message[1])<<16|int(message[2])<<8|int(message[3])
}

// alert is the TLS alert access_denied.
var alert = []byte{21, 3, 3, 0, 2, 2, 49}

// helloConn lets crypto/tls read a ClientHello and discards its answers.
type helloConn struct {
	net.Conn // nil: nothing else is called
	from     io.Reader
}

// Read reads from the client.
func (c *helloConn) Read(b []byte) (int, error) { return c.from.Read(b) }

// Close does nothing: the tunnel closes the connection.
func (c *helloConn) Close() error { return nil }

// Write discards.
func (c *helloConn) Write(b []byte) (int, error) { return len(b), nil }

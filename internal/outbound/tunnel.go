package outbound

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
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
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		l.end(Failed, ReasonBroken)
		http.Error(w, "This connection cannot carry a tunnel.", http.StatusInternalServerError)
		return
	}
	defer func() { _ = client.Close() }()
	l.onInterrupt(func() { _ = client.Close() })
	ahead, _ := buffered.Peek(buffered.Reader.Buffered())
	from := io.MultiReader(bytes.NewReader(bytes.Clone(ahead)), client)

	hello := time.Now().Add(l.proxy.limits.Hello)
	_ = client.SetDeadline(hello)
	if _, err := io.WriteString(client, established); err != nil {
		l.end(Failed, ReasonBroken)
		return
	}
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
			hold, ok := p.budget.TryAcquire(p.tenant, busyBytes)
			if !ok {
				continue
			}
			large, _ = busy.Get().(*[]byte)
			used := large
			buf, release = *large, func() { busy.Put(used); hold.Release() }
		}
	}
}

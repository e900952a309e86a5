package httpserver

import (
	"errors"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"time"
)

// counted is an open connection of a limited listener. While it serves HTTP without TLS, a client must take each chunk of an answer within
// stall, unless the handler has set a deadline of its own.
type counted struct {
	*net.TCPConn
	header  Header
	in      *limited
	release func()

	mu   sync.Mutex
	own  bool // the handler has set a deadline for writes
	body bool // a body has not come whole: whoever reads waits for it
	long bool // it has more than firstBytes, or may have
	came int  // bytes of its chunk
	took time.Duration
	pace func(n int)   // waits until bytes that were read or written are allowed; nil: they are
	owed int           // bytes that pace has not been called for
	free chan struct{} // closed by unpace

	served  bool   // a request was answered
	fetched bool   // bytes came since then
	early   bool   // some came before, or may have
	keep    func() // see begins; nil when the caller is known

	// Guarded by in.mu.
	known bool   // who has sent the request
	leave func() // see raise
	heap  *waiting
	place int // in heap, from 1; 0: it does not wait for its client
	waits int // how often it has waited
	since time.Time
	reads bool
}

// stillWaits reports whether a body is still to come, if it waits for one: the server reads on behind the end of a body. in.mu is held.
func (c *counted) stillWaits() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.reads || c.body
}

// sendsLong reports whether a body is to come for which a larger buffer is worth its place.
func (c *counted) sendsLong() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.long
}

// awaitBody says how many bytes of a body are to come: 0 for none, less if it is not known.
func (c *counted) awaitBody(size int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.body, c.came, c.took = size != 0, 0, 0
	c.long = size < 0 || size > firstBytes
}

// forgetCaller makes the caller of a request unknown whose body is still to come.
func (c *counted) forgetCaller() {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = c.known && !c.body
}

func (c *counted) setPace(pace func(n int)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pace, c.owed = pace, 0
}

// unpace ends the waits of pay, and lets all that still comes pass.
func (c *counted) unpace() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pace, c.owed = nil, 0
	select {
	case <-c.free:
	default:
		close(c.free)
	}
}

// owe notes n bytes that were read or written, for pay.
func (c *counted) owe(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pace != nil {
		c.owed += n
	}
}

// pay waits until the bytes that were read or written are allowed.
func (c *counted) pay() {
	c.mu.Lock()
	pace, n := c.pace, c.owed
	c.owed = 0
	c.mu.Unlock()
	if n > 0 {
		pace(n)
	}
}

// begins notes that a request is answered, and reports whether its client has sent it before it had the answer to the one before. keep is called once the caller
// is known.
func (c *counted) begins(keep func()) (pipelined bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pipelined = c.served && (c.early || !c.fetched)
	c.served, c.early, c.keep = true, false, keep
	return pipelined
}

func (c *counted) keepOpen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keep != nil {
		c.keep()
		c.keep = nil
	}
}

// ends notes that a request was answered. What has come meanwhile is the next one, or may hide it: http.Server reads on for what is left of a body.
func (c *counted) ends() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.early = c.keep != nil && (c.body || unread(c.TCPConn))
	c.fetched, c.keep = false, nil
}

// fetch notes that n bytes came for a buffer. While a request is answered, http.Server waits for one byte, to see its client leave.
func (c *counted) fetch(buffer, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fetched = c.fetched || n > 0 && buffer > 1
}

// Read implements net.Conn.
func (c *counted) Read(b []byte) (n int, err error) {
	c.pay()
	defer func() {
		c.owe(n)
		c.fetch(len(b), n)
	}()
	c.mu.Lock()
	body, took := c.body, c.took
	c.mu.Unlock()
	if !body {
		return c.header.Read(b, c.TCPConn.Read)
	}
	began, done := time.Now(), c.in.await(c, true, took)
	n, err = c.header.Read(b, c.TCPConn.Read)
	done()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took += time.Since(began)
	if c.came += n; c.came >= chunk {
		c.came, c.took = 0, 0
	}
	return n, err
}

// Write implements net.Conn.
func (c *counted) Write(b []byte) (n int, err error) {
	for {
		done := c.limit()
		wrote, err := c.TCPConn.Write(b[n:min(len(b), n+chunk)])
		done()
		c.owe(wrote)
		c.pay()
		if n += wrote; err != nil || n == len(b) {
			return n, err
		}
	}
}

// ReadFrom implements io.ReaderFrom: the kernel sends files by itself.
func (c *counted) ReadFrom(r io.Reader) (n int64, err error) {
	from, bounded := r.(*io.LimitedReader)
	if !bounded {
		from = &io.LimitedReader{R: r, N: math.MaxInt64}
	}
	if _, file := from.R.(*os.File); !file || !c.header.Serving() { // what is no file may be slow, and the client's time runs in Write only
		return io.Copy(struct{ io.Writer }{c}, r)
	}
	for from.N > 0 {
		part := &io.LimitedReader{R: from.R, N: min(from.N, chunk)}
		done := c.limit()
		sent, err := c.TCPConn.ReadFrom(part)
		done()
		c.owe(int(sent))
		c.pay()
		from.N -= sent
		if n += sent; err != nil || part.N > 0 {
			return n, err
		}
	}
	return n, nil
}

// WriteTo implements io.WriterTo, by Read: that of TCPConn would move bytes that nobody pays.
func (c *counted) WriteTo(w io.Writer) (n int64, err error) {
	return io.Copy(w, struct{ io.Reader }{c})
}

// limit sets the deadline for a chunk, unless there is another one, and notes that the connection waits for its client. The returned function takes
// both back.
func (c *counted) limit() (done func()) {
	if !c.header.Serving() {
		return func() {}
	}
	c.bound(time.Now().Add(c.in.stall))
	taken := c.in.await(c, false, 0)
	return func() {
		taken()
		c.bound(time.Time{})
	}
}

// bound sets the server's deadline for writes, unless the handler has its own.
func (c *counted) bound(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.own {
		_ = c.TCPConn.SetWriteDeadline(t)
	}
}

// SetWriteDeadline implements net.Conn.
func (c *counted) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own = !t.IsZero()
	return c.TCPConn.SetWriteDeadline(t)
}

// SetDeadline implements net.Conn.
func (c *counted) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.release()
	c.in.mu.Lock()
	leave := c.leave
	c.leave = func() {} // for a request that comes at the same time
	c.in.mu.Unlock()
	if leave != nil {
		leave()
	}
	return c.TCPConn.Close()
}

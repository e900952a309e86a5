package httpserver

import (
	"container/heap"
	"container/list"
	"crypto/tls"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
)

const (
	// fileShare is the part of the files that a process may open which one listener's connections may use: a half. The rest is for what
	// their requests open, and for the other parts of the process.
	fileShare = 2
	// memoryShare is the part of GOMEMLIMIT that connections without a request may use: a quarter.
	memoryShare = 4
	// connectionBytes is what a connection without a request costs: 32 KiB for its buffers and its stack, and what the collector has not freed yet (twice
	// as much with the largest header that is not complete, see Header), and what the kernel keeps of it.
	connectionBytes = 32<<10 + 2*firstBytes
	// limit is the largest limit that a server chooses by itself: 2.5 GiB of connectionBytes.
	limit = 16 << 10
)

// defaultConnections is how many connections a server has where its Config does not say it.
func defaultConnections() int {
	n := min(limit, debug.SetMemoryLimit(-1)/memoryShare/connectionBytes)
	return int(max(1, min(n, Files()/fileShare)))
}

const (
	// chunk is what a client must send of a body, or take of an answer, in one go: a slow client can send and receive long ones.
	chunk = 64 << 10
	// crowd and crowdShare are how many connections, and which part of all, may wait for callers that are not known, as many as are idle in any case, before the
	// oldest goes whatever its time: of the others, which are served, a server may have as many as it likes.
	crowd, crowdShare = 16, 16
	// patience is how long a client may take for a chunk, or for its header, before a new caller may get its place.
	patience = time.Second
	// unsentBytes is how much of an answer the kernel keeps that is not on its way, for each connection: without a bound up to 4 MiB.
	unsentBytes = 64 << 10
)

// limited is a listener that has a number of connections open at a time. When all are open, the next caller gets the place of one that has sent no request
// for longer than patience; or else of the one that has been idle since its last request for longest; or else of the one whose client is waited for longest,
// if that is more than patience: of those whose callers are not known (see Known), if one of these goes soon and the others are at most half of all. If there is none,
// it waits for one. Where more than are idle, and more than a sixteenth of all, have sent no request, or wait for callers that are not known, the oldest of these goes at once:
// else thousands of them would let in as many new ones a second as there are places.
type limited struct {
	net.Listener
	max   int
	stall time.Duration
	first int // what the kernel keeps of a connection at first

	mu      sync.Mutex
	raised  *budget.Places // connections with more than firstBytes
	large   *Buffers
	changed *sync.Cond // open, idle, waiting or closed
	open    int
	closed  bool
	idle    list.List // of net.Conn between requests, as the HTTP server names them, and with TLS before the first one, the oldest first
	places  map[net.Conn]*list.Element
	fresh   waiting // for their first request
	unknown waiting
	known   waiting
}

// waiting is a heap of connections that wait for their clients, for longest first.
type waiting []*counted

func (w waiting) Len() int           { return len(w) }
func (w waiting) Less(i, j int) bool { return w[i].since.Before(w[j].since) }
func (w waiting) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].place, w[j].place = i+1, j+1
}

// Push implements heap.Interface.
func (w *waiting) Push(x any) {
	*w = append(*w, x.(*counted)) //nolint:errcheck // await adds no other
	x.(*counted).place = len(*w)  //nolint:errcheck // as above
}

// Pop implements heap.Interface.
func (w *waiting) Pop() any {
	last := (*w)[len(*w)-1]
	last.place = 0
	*w = (*w)[:len(*w)-1]
	return last
}

func newLimited(l net.Listener, most int, stall time.Duration, first int) *limited {
	limit := &limited{Listener: l, max: most, stall: stall, first: first, raised: budget.NewPlaces(raised), large: NewBuffers(), places: map[net.Conn]*list.Element{}}
	limit.changed = sync.NewCond(&limit.mu)
	return limit
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.open >= l.max && !l.closed {
		victim, later := l.victim()
		if victim == nil {
			if later > 0 {
				time.AfterFunc(later, func() {
					l.mu.Lock() // Accept holds it until it waits
					defer l.mu.Unlock()
					l.changed.Broadcast()
				})
			}
			l.changed.Wait()
			continue
		}
		l.mu.Unlock()
		cut(victim)
		l.mu.Lock()
	}
	if l.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	l.open++
	tcp := conn.(*net.TCPConn) //nolint:errcheck // Start listens on tcp
	keepUnsent(tcp, unsentBytes)
	_ = tcp.SetReadBuffer(l.first)
	return &counted{TCPConn: tcp, in: l, release: sync.OnceFunc(l.release), free: make(chan struct{})}, nil
}

// victim takes a connection out whose place the next caller gets. nil: there is none yet; later is when to look again, if something other than a change
// of l may bring one. l.mu is held.
func (l *limited) victim() (conn net.Conn, later time.Duration) {
	for len(l.fresh)+len(l.unknown) > max(l.idle.Len(), l.max/crowdShare, crowd) {
		all := &l.fresh
		if len(l.fresh) == 0 || len(l.unknown) > 0 && l.unknown[0].since.Before(l.fresh[0].since) {
			all = &l.unknown
		}
		if oldest, _ := all.victim(0); oldest != nil {
			return oldest, 0
		}
	}
	oldest, later := l.fresh.victim(patience)
	if oldest != nil {
		return oldest, 0
	}
	if first := l.idle.Front(); first != nil {
		conn = first.Value.(net.Conn) //nolint:errcheck // note adds no other
		l.forget(conn)
		return conn, 0
	}
	oldest, soon := l.unknown.victim(patience)
	if oldest != nil {
		return oldest, 0
	}
	later = earlier(later, soon)
	if later > 0 && len(l.known) <= l.max/2 {
		return nil, later // one of these goes soon
	}
	if oldest, soon = l.known.victim(patience); oldest != nil {
		return oldest, 0
	}
	return nil, earlier(later, soon)
}

// earlier is the smaller one of two times; 0 means never.
func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}

// victim takes the connection out that has waited for longest, if that is more than least. nil: there is none; later is when there may be one.
func (w *waiting) victim(least time.Duration) (oldest *counted, later time.Duration) {
	for len(*w) > 0 {
		oldest = (*w)[0]
		if left := time.Until(oldest.since.Add(least)); left > 0 {
			return nil, left
		}
		heap.Pop(w)
		if oldest.stillWaits() {
			return oldest, 0
		}
	}
	return nil, 0
}

// await notes that a connection has waited for its client for a while, and goes on until done is called.
func (l *limited) await(c *counted, reads bool, had time.Duration) (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.place > 0 && c.stillWaits() { // a handler reads and writes at once
		return func() {}
	}
	l.proceed(c)
	all := &l.unknown
	if c.known {
		all = &l.known
	}
	own := l.wait(c, all, reads, had)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if c.waits == own {
			l.proceed(c)
		}
	}
}

// wait adds a connection to those that wait for their clients, and returns its number among the waits of the connection. l.mu is held.
func (l *limited) wait(c *counted, all *waiting, reads bool, had time.Duration) int {
	c.heap, c.since, c.reads = all, time.Now().Add(-had), reads
	c.waits++
	heap.Push(c.heap, c)
	if l.open >= l.max {
		l.changed.Broadcast()
	}
	return c.waits
}

// proceed takes a connection out of those that wait for their clients, if it is there. l.mu is held.
func (l *limited) proceed(c *counted) {
	if c.place > 0 {
		heap.Remove(c.heap, c.place-1)
	}
}

// Close implements net.Listener.
func (l *limited) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.changed.Broadcast()
	return err
}

// note is the ConnState of the HTTP server.
func (l *limited) note(conn net.Conn, state http.ConnState) {
	if c, ok := conn.(*counted); ok { // without TLS, which is for callers that are known
		c.header.Note(state)
		c.awaitBody(0)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(conn)
	c, plain := conn.(*counted)
	if plain {
		c.known = false
		l.proceed(c)
		if state != http.StateHijacked {
			c.setPace(nil)
		}
	}
	switch {
	case state == http.StateNew && plain:
		l.wait(c, &l.fresh, false, 0)
	case state == http.StateNew, state == http.StateIdle:
		l.places[conn] = l.idle.PushBack(conn)
		l.changed.Broadcast()
	}
}

// raise lets the kernel keep more of a connection until leave is called. nil: there is no place for that.
func (l *limited) raise(tenant string, conn *net.TCPConn) (leave func()) {
	place := l.raised.Ask(tenant)
	select {
	case <-place.Granted():
	default:
		place.Leave()
		return nil
	}
	large := l.large.Bound(tenant, conn)
	return func() { large(); place.Leave() }
}

// forget takes a connection out of those without a request. l.mu is held.
func (l *limited) forget(conn net.Conn) {
	if place, ok := l.places[conn]; ok {
		l.idle.Remove(place)
		delete(l.places, conn)
	}
}

func (l *limited) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	l.changed.Broadcast()
}

// cut closes a connection without TLS's goodbye, which can block.
func cut(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close()
}

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

// Read implements net.Conn.
func (c *counted) Read(b []byte) (n int, err error) {
	c.pay()
	defer func() { c.owe(n) }()
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

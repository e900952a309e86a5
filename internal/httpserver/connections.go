package httpserver

import (
	"container/heap"
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
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

// defaultConnections is how many connections a server has where its Config does not say it, in a process with so many bytes of memory and so many files.
func defaultConnections(memory, files int64) int {
	return int(max(1, min(limit, memory/memoryShare/connectionBytes, files/fileShare)))
}

const (
	// chunk is what a client must send of a body, or take of an answer, in one go: a slow client can send and receive long ones.
	chunk = 64 << 10
	// crowd and crowdShare say what a crowd is: connections without a known caller that wait for their clients, more than are idle, more than a sixteenth of all,
	// and more than 16. Connections that are served are not compared: a server may have as many as it likes.
	crowd, crowdShare = 16, 16
	// patience is how long a client may take for a chunk, or for its header, before a new caller may get its place.
	patience = time.Second
	// unsentBytes is how much of an answer the kernel keeps that is not on its way, for each connection: without a bound up to 4 MiB.
	unsentBytes = 64 << 10
)

// limited is a listener that has a number of connections open at a time. When all are open, the next caller gets the place of one that has sent no request
// for longer than patience; or else of the one that has been idle since its last request for longest; or else of the one whose client is waited for longest,
// if that is more than patience: of those whose callers are not known (see Known), if one of these goes soon and the others are at most half of all. If there is none,
// it waits for one. Where there is a crowd of those that have sent no request, or wait for callers that are not known, the oldest of these goes at once: else thousands
// of them would let in as many new ones a second as there are places.
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

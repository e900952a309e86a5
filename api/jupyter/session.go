package jupyter

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
)

const (
	// MaxConnections bounds the WebSockets of one session. More than one are open when a client connects again before its last connection has
	// ended; a proxy of Jupyter may leave some open without reading them.
	MaxConnections = 3
	// settleTimeout bounds the wait for what a client has sent over its last connection when it connects again.
	settleTimeout = 2 * time.Second
	// maxMissed and maxMissedBytes bound what is kept for a client that has left. Beyond them the oldest is dropped.
	maxMissed, maxMissedBytes = waitingMessages / 2, waitingBytes / 2
)

// newID makes an id of a message, as Jupyter's are: a UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	text := hex.EncodeToString(b[:])
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}

// session is one client of a kernel. It outlives the client's connections: cells continue, and a client that reconnects under the same id gets what it has
// missed.
type session struct {
	kernel *kernel
	id     string

	order sync.Mutex // held while a message takes its place: cells are submitted in the order in which they come

	mu      sync.Mutex
	ctx     context.Context // of the caller who connected last, without the end of the request
	joining int             // connections that are to be attached
	sockets []*socket       // the client's connections; the last one is the one that it uses
	left    time.Time       // when the last connection ended
	missed  []*message      // messages from then on that are not the output of cells, which is sent again
	hold    *budget.Hold    // of missed
	gone    bool            // the session is forgotten: nothing is kept
	kept    *time.Timer     // forgets it, see linger; nil: not set

	queue   []*work
	bytes   int
	running bool
	current *work              // the message that is being handled; nil: none
	wake    context.CancelFunc // ends the wait for events of the cell that runs; nil: there is none
	rewind  bool               // the output of the cell that runs is to be sent from its beginning
	ended   []*work            // cells that ended last
}

func newSession(ctx context.Context, k *kernel, id string) *session {
	_, hold := budget.Renew(ctx)
	return &session{kernel: k, id: id, hold: hold}
}

// forget drops what is kept for the client, and work that has waited for the start of the sandbox. Cells that are jobs run without their session.
func (s *session) forget() {
	s.mu.Lock()
	s.gone, s.missed, s.ended = true, nil, nil // parents may name the session for long
	s.hold.Release()
	if s.kept != nil {
		s.kept.Stop()
		s.kept = nil
	}
	waiting := s.queue
	s.queue, s.bytes = nil, 0
	s.mu.Unlock()
	for _, w := range waiting {
		s.kernel.place(w.header.ID)()
		w.release()
	}
}

// linger keeps the session for its client for keptSession from now on, unless it is forgotten already. Nobody comes back to a kernel that has ended.
func (s *session) linger() {
	s.kernel.mu.Lock()
	over := s.kernel.over
	s.kernel.mu.Unlock()
	if over {
		s.kernel.server.leave(s)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.gone:
	case s.kept == nil:
		s.kept = time.AfterFunc(keptSession, func() { s.kernel.server.leave(s) })
	default:
		s.kept.Reset(keptSession)
	}
}

// connections are the client's connections; none: it has left.
func (s *session) connections() []*socket {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sockets)
}

// here reports whether the client is connected.
func (s *session) here() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sockets) > 0
}

// seen reports whether anybody gets what is sent of work now. What belongs to no job is kept for the client.
func (s *session) seen(w *work) bool {
	return w.job == "" || s.here() || !w.quiet && slices.ContainsFunc(s.kernel.all(), (*session).here)
}

// join announces a connection, for which the session is kept until joined is called.
func (s *session) join() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joining++
}

// joined says that a connection that was announced is attached, or does not come.
func (s *session) joined() {
	s.mu.Lock()
	s.joining--
	never := s.ctx == nil && s.joining == 0
	s.mu.Unlock()
	if never {
		s.kernel.server.leave(s)
	} else {
		s.linger()
	}
}

// idle reports whether the client has left and nothing runs. Work that waits for the start of the sandbox does not run: nobody looks for the start then.
func (s *session) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sockets) == 0 && s.joining == 0 && !s.running
}

// attach gives the session a connection beside those that it has. What the client may have missed is sent again: the output of the cell that runs
// and of cells that have ended since it was last here, each from its beginning, and other messages that were not delivered.
func (s *session) attach(ctx context.Context, at *socket, fresh bool) {
	s.mu.Lock()
	first := s.ctx == nil
	s.ctx = context.WithoutCancel(ctx)
	for _, m := range s.missed {
		at.offer(m)
	}
	s.missed = nil
	s.hold.Release() // the connection has charged them
	s.sockets = append(s.sockets, at)
	var again []*work
	if !first {
		again = s.since()
		if s.current != nil {
			s.rewind = true
		}
		if s.wake != nil {
			s.wake()
		}
	}
	own := s.ctx
	s.mu.Unlock()
	s.kernel.mu.Lock()
	s.kernel.listen(own) //nolint:contextcheck // it is made of ctx
	s.kernel.mu.Unlock()
	if first && !fresh {
		again = s.earlier() //nolint:contextcheck // as above
	}
	s.start(again)
}

// since are the cells that have ended since the client was last here, or a moment before: it may not have got what was sent then. s.mu is held.
func (s *session) since() (again []*work) {
	limit := s.kernel.server.cfg.Now()
	if len(s.sockets) == 1 { // else it is here
		limit = s.left
	}
	for _, w := range s.ended {
		if w.ends.After(limit.Add(-replayFor)) {
			again = append(again, w)
		}
	}
	s.ended = nil
	return again
}

// settle waits until what the client sent over its other connections has been read: what comes over this one must not overtake it. Then it ends
// connections beyond MaxConnections.
func (s *session) settle(at *socket) {
	for _, other := range s.connections() {
		if other == at {
			continue
		}
		ctx, done := context.WithTimeout(at.ctx, settleTimeout)
		stop := context.AfterFunc(other.ctx, done)
		_ = other.conn.Ping(ctx) // a pong comes behind all that was sent before it, and no end of a connection is before that
		stop()
		done()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sockets) <= MaxConnections {
		return
	}
	victim := s.sockets[0]
	for _, other := range s.sockets {
		if other != at && !other.used.Load() { // nothing was sent over it
			victim = other
			break
		}
	}
	victim.finish(errReplaced)
}

// use notes that the client uses a connection.
func (s *session) use(at *socket) {
	at.used.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.sockets, at); i >= 0 {
		s.sockets = append(slices.Delete(s.sockets, i, i+1), at)
	}
}

// detach takes a connection away.
func (s *session) detach(at *socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sockets = slices.DeleteFunc(s.sockets, func(other *socket) bool { return other == at })
	if len(s.sockets) == 0 {
		s.left = s.kernel.server.cfg.Now()
	}
}

// context is the context of work: it ends when the server stops, and what it is charged is its own.
func (s *session) context() (context.Context, context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, done := context.WithCancel(s.ctx)
	stop := context.AfterFunc(s.kernel.server.life, done) //nolint:contextcheck // the server stops, not the caller
	ctx, hold := budget.Renew(ctx)
	return ctx, func() {
		stop()
		done()
		hold.Release()
	}
}

// own sends a message to the session's own client, if it is here. The connection that it uses is waited for.
func (s *session) own(m *message) { s.deliver(s.connections(), m) }

func (s *session) deliver(all []*socket, m *message) {
	for i, at := range all {
		if i < len(all)-1 {
			at.offer(m)
		} else {
			at.put(m)
		}
	}
}

// keep sends a message to the session's own client, or keeps it until the client is back.
func (s *session) keep(m *message) {
	s.mu.Lock()
	if len(s.sockets) == 0 {
		s.miss(m)
		s.mu.Unlock()
		return
	}
	all := slices.Clone(s.sockets)
	s.mu.Unlock()
	s.deliver(all, m)
}

// miss keeps a message for a client that has left. Where there is no memory for it, the earlier ones are dropped. s.mu is held.
func (s *session) miss(m *message) {
	size := m.size()
	if s.gone || size > maxMissedBytes {
		return
	}
	if !s.hold.Grow(size) {
		s.missed = nil
		s.hold.Release()
		if !s.hold.Grow(size) {
			return
		}
	}
	bytes, from := size, len(s.missed)
	for from > 0 && len(s.missed)-from < maxMissed-1 && bytes+s.missed[from-1].size() <= maxMissedBytes {
		from--
		bytes += s.missed[from].size()
	}
	s.missed = append(slices.Clone(s.missed[from:]), m)
	s.hold.Keep(bytes)
}

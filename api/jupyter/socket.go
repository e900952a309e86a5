package jupyter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"
	"github.com/gin-gonic/gin"
	"golang.org/x/sync/semaphore"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
)

const (
	// waitingMessages and waitingBytes bound what waits for a client.
	waitingMessages, waitingBytes = 256, 1 << 20
	// freeBytes of what waits for a client is not charged. The rest is charged while it waits, not from the beginning of the connection: a
	// message that needs its tenant's whole share would wait for ever for what idle connections hold.
	freeBytes = 16 << 10
	// maxReason is the length of the text in a close message, by RFC 6455.
	maxReason = 123
	// smallMessage is the largest message of clients that are built with tornado: a larger one ends their connection.
	smallMessage = 10 << 20
)

// Reasons for which a WebSocket ends. After 1000 clients do not come back, after any other code they do.
var (
	errEnded    = websocket.CloseError{Code: websocket.StatusNormalClosure, Reason: "the kernel has ended"}
	errReplaced = websocket.CloseError{Code: websocket.StatusNormalClosure, Reason: "newer connections of the same session have taken over"}
	errRestart  = websocket.CloseError{Code: websocket.StatusServiceRestart, Reason: "the server stops: connect again"}
	errSlow     = websocket.CloseError{Code: websocket.StatusTryAgainLater, Reason: "the client reads too slowly"}
	errMemory   = websocket.CloseError{Code: websocket.StatusTryAgainLater, Reason: "the server has no memory for what waits for the client now"}
	errLate     = websocket.CloseError{Code: websocket.StatusTryAgainLater, Reason: "a message arrives too slowly"}
	errLeft     = errors.New("the client has left")
)

// socket is one WebSocket.
type socket struct {
	conn  *rest.WebSocket
	v1    bool
	small bool // messages over smallMessage would end it
	stall time.Duration
	ctx   context.Context // of the connection
	end   context.CancelCauseFunc

	out     chan queued
	room    *semaphore.Weighted // bytes in out
	reading atomic.Bool
	used    atomic.Bool // the client has sent something

	mu      sync.Mutex
	hold    *budget.Hold // of what waits
	waiting int64        // bytes in out, without that of queued.taken
	over    bool         // nothing more is charged
}

// queued is a message that waits for the client. If its caller's charge covers it, and not that of the connection, taken is closed when it waits
// no longer; else taken is nil.
type queued struct {
	*message
	taken chan struct{}
}

// newSocket makes what a connection has beside its network.
func newSocket(ctx context.Context, stall time.Duration) *socket {
	at := &socket{stall: stall, out: make(chan queued, waitingMessages), room: semaphore.NewWeighted(waitingBytes)}
	at.ctx, at.end = context.WithCancelCause(ctx)
	_, at.hold = budget.Renew(ctx)
	return at
}

// channels serves the WebSocket of a kernel. No browser sends a key with one, and every browser sends it to any server that a page names: so
// pages of other origins are refused.
func (s *Server) channels(c *gin.Context) error {
	ctx, tenant := c.Request.Context(), rest.Tenant(c)
	if c.GetHeader("Origin") != "" && !s.cfg.Guard.Origin(c.Request) {
		return rest.Refusef(http.StatusForbidden, farm.CodeUnauthorized, "Pages of other origins may not use kernels: add theirs to api.trusted_origins.")
	}
	box, err := s.box(ctx, tenant, c.Param("id"))
	if err != nil {
		return err
	}
	id := c.Query("session_id")
	if len(id) > maxIDBytes {
		return rest.BadRequestf("session_id has more than %d bytes", maxIDBytes)
	}
	fresh := id == ""
	if fresh {
		id = newID()
	}
	if !strings.EqualFold(c.GetHeader("Upgrade"), "websocket") {
		c.Header("Upgrade", "websocket")
		return rest.Refusef(http.StatusUpgradeRequired, farm.CodeInvalid, "This address serves WebSockets only.")
	}
	if !s.begin() {
		return farm.Errorf(farm.CodeUnavailable, "The server stops. Connect again.")
	}
	defer s.work.Done()
	session, err := s.join(ctx, tenant, &box, id)
	if err != nil {
		return err
	}
	conn, err := rest.AcceptWebSocket(c.Writer, c.Request, &websocket.AcceptOptions{Subprotocols: []string{subprotocol}, InsecureSkipVerify: true}) // the origin was checked
	if err != nil {
		session.joined()
		return nil // it has answered
	}
	s.cfg.Opened(c)
	at := newSocket(ctx, s.cfg.Stall)
	at.conn, at.v1, at.small = conn, conn.Subprotocol() == subprotocol, strings.HasPrefix(c.GetHeader("User-Agent"), "Tornado/")
	defer at.uncharge()
	s.serve(ctx, session, at, fresh)
	return nil
}

// serve serves a WebSocket until it ends.
func (s *Server) serve(ctx context.Context, session *session, at *socket, fresh bool) {
	at.conn.SetReadLimit(-1)                                            // read has a limit of its own, beyond which the close message still arrives
	stop := context.AfterFunc(s.life, func() { at.finish(errRestart) }) //nolint:contextcheck // the server stops, not the caller
	defer stop()
	io, done := context.WithCancel(context.WithoutCancel(ctx)) // to cancel a read or a write closes the connection
	defer done()
	var work sync.WaitGroup
	written := make(chan struct{})
	work.Go(func() {
		defer close(written)
		at.finish(at.write(io))
	})
	work.Go(func() { at.finish(at.ping(io, s.cfg.Heartbeat, session.kernel)) })
	session.attach(ctx, at, fresh)
	session.joined()
	work.Go(func() {
		session.settle(at) //nolint:contextcheck // of the connection
		at.finish(at.read(io, session))
	})
	<-at.ctx.Done()
	cause := context.Cause(at.ctx) //nolint:contextcheck // it is made of ctx
	if errors.Is(cause, access.ErrEnded) {
		session.drop(here)
	}
	session.detach(at)
	code, reason := closing(cause)
	timer := time.AfterFunc(rest.CloseTimeout, done)
	<-written // nothing can be sent after the close message
	_ = at.conn.Close(code, reason)
	timer.Stop()
	done()
	work.Wait()
	session.linger()
}

// closing is the close code of an end, and its text.
func closing(cause error) (websocket.StatusCode, string) {
	if e, ok := errors.AsType[websocket.CloseError](cause); ok {
		reason := e.Reason
		for len(reason) > maxReason || !utf8.ValidString(reason) {
			reason = reason[:min(len(reason)-1, maxReason)]
		}
		return e.Code, reason
	}
	if errors.Is(cause, access.ErrEnded) {
		return websocket.StatusPolicyViolation, "the API key is not valid any more"
	}
	return websocket.StatusInternalError, ""
}

// finish ends the connection for a reason.
func (at *socket) finish(cause error) {
	if cause != nil {
		at.end(cause)
	}
}

// read takes the messages of the client until it disconnects or sends an invalid one. Beyond maxRate they wait in the network.
func (at *socket) read(conn context.Context, to *session) error {
	for {
		if to.kernel.rate.Wait(at.ctx) != nil { //nolint:contextcheck // conn is for the connection, which outlives the work
			return errLeft
		}
		ctx, hold := budget.Renew(at.ctx)
		at.reading.Store(true)
		kind, from, err := at.conn.Reader(conn)
		var raw []byte
		if err == nil {
			from = rest.Paced(at.ctx, from, at.stall, func() { at.finish(errLate) }) //nolint:contextcheck // conn is for the connection, at.ctx knows who pays
			raw, err = budget.ReadAll(ctx, from, -1, MaxMessageBytes)                //nolint:contextcheck // conn is for the connection, which outlives the work
		}
		at.reading.Store(false)
		switch {
		case errors.Is(err, budget.ErrTooLong):
			_, _ = io.Copy(io.Discard, io.LimitReader(from, MaxMessageBytes))
			hold.Release()
			return websocket.CloseError{Code: websocket.StatusMessageTooBig, Reason: "a message has at most 32 MiB"}
		case farm.CodeOf(err) == farm.CodeExhausted:
			hold.Release()
			return errNoRoom()
		case err != nil:
			hold.Release()
			return errLeft
		}
		m, size, err := at.decode(ctx, kind, raw) //nolint:contextcheck // conn is for the connection, which outlives the work
		switch {
		case farm.CodeOf(err) == farm.CodeTooLarge:
			hold.Release()
			return websocket.CloseError{Code: websocket.StatusMessageTooBig, Reason: fmt.Sprintf("a message has at most %d JSON values", farm.MaxBodyValues)}
		case farm.CodeOf(err) == farm.CodeExhausted:
			hold.Release()
			return errNoRoom()
		case at.ctx.Err() != nil:
			hold.Release()
			return errLeft
		case err != nil:
			hold.Release()
			return websocket.CloseError{Code: websocket.StatusInvalidFramePayloadData, Reason: "a message cannot be read: " + err.Error()}
		}
		to.use(at)
		to.take(&work{message: m, hold: hold, size: len(raw), weight: size}) //nolint:contextcheck // work outlives the connection
	}
}

// decodeFactor is how often the bytes of a message count once more, see httpserver.Spend: to decode 64 MiB a second would take most of a core.
const decodeFactor = 3

// decode decodes a message, a large one on a core of its tenant's, and charges its values. It returns the size of the message for budget.Core.
func (at *socket) decode(ctx context.Context, kind websocket.MessageType, raw []byte) (m message, size int, err error) {
	httpserver.Spend(ctx, decodeFactor*len(raw))
	if size, err = budget.Decoding(ctx, len(raw), func() int { return values(kind, raw, at.v1) }); err != nil {
		return message{}, 0, err
	}
	defer budget.LeaveCore(ctx)
	m, err = decode(kind, raw, at.v1)
	return m, size, err
}

// encode encodes a message, a large one on a core of its tenant's. At the end of the connection none is waited for.
func (at *socket) encode(m *message) (websocket.MessageType, []byte) {
	ctx, hold := budget.Renew(at.ctx)
	defer hold.Release()
	if leave, err := budget.Core(ctx, int(m.size())); err == nil {
		defer leave()
	}
	return encode(m, at.v1)
}

func errNoRoom() error {
	return websocket.CloseError{Code: websocket.StatusTryAgainLater, Reason: "the server has no memory for the message now"}
}

// write sends what waits. A client that takes nothing for a while has left.
func (at *socket) write(conn context.Context) error {
	for {
		var m queued
		select {
		case m = <-at.out:
		case <-at.ctx.Done():
			if errors.Is(context.Cause(at.ctx), errEnded) { //nolint:contextcheck // conn is for the connection. What was said before is still sent
				select {
				case m = <-at.out:
				default:
				}
			}
			if m.message == nil {
				return nil
			}
		}
		kind, data := at.encode(m.message) //nolint:contextcheck // conn is for the connection, at.ctx knows who pays
		if at.small && len(data) > smallMessage {
			kind, data = encode(tooLarge(m.message), at.v1)
		}
		ctx, done := context.WithTimeout(conn, at.stall)
		err := at.conn.Write(ctx, kind, data)
		done()
		at.taken(m)
		if err != nil {
			return errLeft
		}
	}
}

// put sends a message. It waits while the client has not taken earlier ones, and reports whether the connection is there. Where there is no
// memory, it sends one message at a time and returns when that is written: until then the caller's charge covers it.
func (at *socket) put(m *message) bool {
	q, need := queued{message: m}, m.room()
	for {
		if at.room.Acquire(at.ctx, need) != nil {
			return false
		}
		at.room.Release(need - m.room())
		if at.charge(m.size()) {
			break
		}
		if need == waitingBytes { // nothing else waits then
			q.taken = make(chan struct{})
			break
		}
		at.room.Release(m.room())
		need = waitingBytes
	}
	select {
	case at.out <- q:
	case <-at.ctx.Done():
		return false
	}
	if q.taken == nil {
		return true
	}
	select {
	case <-q.taken:
		return true
	case <-at.ctx.Done():
		return false
	}
}

// offer sends a message if there is room for it, and closes the connection if there is none.
func (at *socket) offer(m *message) {
	if !at.room.TryAcquire(m.room()) {
		at.finish(errSlow)
		return
	}
	if !at.charge(m.size()) {
		at.finish(errMemory)
		return
	}
	select {
	case at.out <- queued{message: m}:
	default:
		at.finish(errSlow)
	}
}

// charge charges a message that is to wait, beyond freeBytes of all that wait.
func (at *socket) charge(size int64) bool {
	at.mu.Lock()
	defer at.mu.Unlock()
	if at.over || !at.hold.Grow(max(at.waiting+size-freeBytes, 0)-at.hold.Bytes()) {
		return false
	}
	at.waiting += size
	return true
}

// taken gives back what a message took that waits no longer.
func (at *socket) taken(m queued) {
	if m.taken != nil {
		close(m.taken)
	} else {
		at.mu.Lock()
		at.waiting -= m.size()
		at.hold.Keep(max(at.waiting-freeBytes, 0))
		at.mu.Unlock()
	}
	at.room.Release(m.room())
}

// uncharge gives back everything at the end of the connection.
func (at *socket) uncharge() {
	at.mu.Lock()
	defer at.mu.Unlock()
	at.over = true
	at.hold.Release()
}

// ping ends a connection whose other end is gone, or whose kernel is. While messages wait the connection is not read, and so answers are not seen.
func (at *socket) ping(conn context.Context, every time.Duration, k *kernel) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-at.ctx.Done():
			return nil
		}
		if _, err := k.look(at.ctx); errors.Is(err, errEnded) { //nolint:contextcheck // as above
			return errEnded
		}
		ctx, done := context.WithTimeout(conn, at.stall) // not at.ctx: a ping that is cancelled closes the connection, before the close message
		err := at.conn.Ping(ctx)
		done()
		if err != nil && at.reading.Load() {
			return errLeft
		}
	}
}

// size is about how many bytes a message has.
func (m *message) size() int64 {
	n := len(m.content) + len(m.parent) + len(m.metadata) + len(m.header.raw)
	for _, b := range m.buffers {
		n += len(b)
	}
	return int64(n)
}

// room is how much a message takes of what may wait for a client: one that is larger takes all.
func (m *message) room() int64 { return min(m.size(), waitingBytes) }

// tooLarge stands for a message that would end the client's connection.
func tooLarge(m *message) *message {
	out := *m
	out.buffers, out.metadata = nil, nil
	out.header.Type = "stream"
	out.header.raw = slices.Concat([]byte(`{"msg_type":"stream","msg_id":"`), []byte(newID()), []byte(`","session":"","username":"sandfarm","version":"`+protocolVersion+`"}`))
	out.content = []byte(`{"name":"stderr","text":"[a value was left out: it is larger than this client takes]\n"}`)
	return &out
}

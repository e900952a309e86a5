package mcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// SSEOptions are the settings of a set's SSE transport. Zero fields have the default.
type SSEOptions struct {
	Messages  string                           // path that clients post to; required
	Owner     func(ctx context.Context) string // who a caller is; only its owner can use a stream. Default: all callers are the same
	Heartbeat time.Duration                    // between comments on a quiet stream; default 15 s
	Streams   int                              // open at once for one owner; default 256
	Calls     int                              // running at once on one stream; default 64
	Outlast   func(ctx context.Context) func() // keeps the request with a message counted until what it returns is called, at the end of its call. Default: it is not
	Closing   <-chan struct{}                  // ends all streams, so that a server can stop
}

// callBytes is about what a call takes until its answer is sent, beside what it reads: goroutines, their waits for its job. It counts among what lasts.
const callBytes = 32 << 10

// SSE is the older HTTP transport of the protocol: a stream to GET, and messages posted to another address. mcp-go's own has no
// owners, no limits, and does not stop to wait for calls whose client disconnected.
type SSE struct {
	HTTP
	o      SSEOptions
	server *server.MCPServer
	log    *slog.Logger

	mu      sync.Mutex
	streams map[string]*stream
	count   map[string]int // by owner
}

// SSE makes the SSE transport of the set. It may be called for several addresses.
func (s *SetServer) SSE(o SSEOptions) *SSE {
	if o.Owner == nil {
		o.Owner = func(context.Context) string { return "" }
	}
	if o.Outlast == nil {
		o.Outlast = func(context.Context) func() { return func() {} }
	}
	orElse(&o.Heartbeat, 15*time.Second)
	orElse(&o.Streams, 256)
	orElse(&o.Calls, 64)
	return &SSE{HTTP: s.set.HTTP.withDefaults(), o: o, server: s.mcp, log: s.set.Logger, streams: map[string]*stream{}, count: map[string]int{}}
}

// pending is an encoded answer and the memory that it holds until it is sent.
type pending struct {
	text   []byte
	memory *budget.Hold
}

// stream is one client's stream, and mcp-go's session.
type stream struct {
	id, owner   string
	ctx         context.Context // of the stream; when it ends, its calls stop waiting
	out         chan pending
	notes       chan mcp.JSONRPCNotification
	delivery    *delivery
	slots       chan struct{} // of calls
	calls       sync.WaitGroup
	initialized sync.Once
	ready       chan struct{}
}

var _ server.ClientSession = (*stream)(nil)

// SessionID is the id under which messages are posted.
func (s *stream) SessionID() string { return s.id }

// NotificationChannel takes notifications to the client.
func (s *stream) NotificationChannel() chan<- mcp.JSONRPCNotification { return s.notes }

// Initialize records that the client has initialized the session.
func (s *stream) Initialize() { s.initialized.Do(func() { close(s.ready) }) }

// Initialized reports whether it has.
func (s *stream) Initialized() bool {
	select {
	case <-s.ready:
		return true
	default:
		return false
	}
}

// open makes a stream, or returns nil if its owner has too many.
func (t *SSE) open(ctx context.Context, owner string) *stream {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	s := &stream{
		id: hex.EncodeToString(id[:]), owner: owner, ctx: ctx, out: make(chan pending), notes: make(chan mcp.JSONRPCNotification),
		delivery: newDelivery(), slots: make(chan struct{}, t.o.Calls), ready: make(chan struct{}),
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.count[owner] >= t.o.Streams {
		return nil
	}
	t.count[owner]++
	t.streams[s.id] = s
	return s
}

func (t *SSE) shut(s *stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.streams, s.id)
	if t.count[s.owner]--; t.count[s.owner] == 0 {
		delete(t.count, s.owner)
	}
}

// find gives a stream of an owner.
func (t *SSE) find(id, owner string) *stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.streams[id]; s != nil && s.owner == owner {
		return s
	}
	return nil
}

// Stream serves GET: it sends the address for messages, then answers and notifications until the client disconnects. Calls that
// still run then stop waiting; their jobs continue.
func (t *SSE) Stream(w http.ResponseWriter, r *http.Request) {
	if !t.admit(w, r) {
		return
	}
	ctx, end := context.WithCancel(r.Context())
	s := t.open(ctx, t.o.Owner(r.Context()))
	if s == nil {
		end()
		w.Header().Set("Retry-After", "5")
		refuse(w, http.StatusTooManyRequests, mcp.INVALID_REQUEST, fmt.Sprintf("You have %d open streams, the most allowed: close one.", t.o.Streams))
		return
	}
	defer func() {
		t.shut(s)
		end()
		s.calls.Wait()
		t.server.UnregisterSession(context.WithoutCancel(ctx), s.id)
	}()
	if err := t.server.RegisterSession(ctx, s); err != nil {
		refuse(w, http.StatusInternalServerError, mcp.INTERNAL_ERROR, "The stream cannot be opened. Try again.")
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	out := &writer{w: w, control: http.NewResponseController(w), delivery: s.delivery, timeout: t.WriteTimeout}
	if t.event(out, "endpoint", []byte(t.o.Messages+"?session_id="+s.id)) == nil {
		t.pump(ctx, out, s)
	}
}

// pump sends until the client disconnects or stops reading, or the server stops.
func (t *SSE) pump(ctx context.Context, out *writer, s *stream) {
	beat := time.NewTicker(t.o.Heartbeat)
	defer beat.Stop()
	for {
		var err error
		select {
		case answer := <-s.out:
			err = t.event(out, "message", answer.text)
			answer.memory.Release()
		case note := <-s.notes:
			text, broken := farm.Encode(note)
			if broken == nil {
				err = t.event(out, "message", text)
			}
			s.delivery.wrote()
		case <-beat.C:
			if _, err = out.send([]byte(": ping\n\n")); err == nil {
				out.Flush()
			}
		case <-ctx.Done():
			return
		case <-t.o.Closing:
			return
		}
		if err != nil {
			return
		}
	}
}

func (t *SSE) event(out *writer, name string, data []byte) error {
	_, err := out.send(bytes.Join([][]byte{[]byte("event: " + name + "\ndata: "), data, []byte("\n\n")}, nil))
	if err == nil {
		out.Flush()
	}
	return err
}

// Post serves the messages of a stream's client. The answer goes over the stream.
func (t *SSE) Post(w http.ResponseWriter, r *http.Request) {
	if !t.admit(w, r) {
		return
	}
	id := strings.TrimSpace(r.URL.Query().Get("session_id"))
	if id == "" {
		refuse(w, http.StatusBadRequest, mcp.INVALID_REQUEST, "session_id is missing: post to the address from the stream's first event.")
		return
	}
	s := t.find(id, t.o.Owner(r.Context()))
	if s == nil {
		refuse(w, http.StatusNotFound, mcp.INVALID_REQUEST, "There is no such stream: it has ended, or it is not yours. Open a new one.")
		return
	}
	body, err := t.read(r)
	if err != nil {
		refuseBody(w, err)
		return
	}
	if !json.Valid(body) {
		refuse(w, http.StatusBadRequest, mcp.PARSE_ERROR, "The body is not JSON.")
		return
	}
	select {
	case s.slots <- struct{}{}:
	default:
		w.Header().Set("Retry-After", "2")
		refuse(w, http.StatusTooManyRequests, mcp.INVALID_REQUEST, fmt.Sprintf("%d calls run on this stream, the most allowed: wait for one to end.", t.o.Calls))
		return
	}
	lasting := budget.Lasting(r.Context())
	if !lasting.Grow(callBytes) {
		<-s.slots
		refuseBody(w, farm.Errorf(farm.CodeExhausted, "This server has no memory for another call over a stream now: wait for one to end."))
		return
	}
	end := t.o.Outlast(r.Context())
	ctx, memory := budget.HandOver(context.WithoutCancel(r.Context())) // with what the body is charged
	if !t.begin(ctx, memory, s, body, func() { end(); lasting.Release(); <-s.slots }) {
		refuse(w, http.StatusNotFound, mcp.INVALID_REQUEST, "The stream has just ended. Open a new one.")
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusAccepted)
	_, _ = w.Write([]byte("Accepted")) // an error means that the caller disconnected
}

// begin handles a message in a goroutine, which ends with the stream at the latest, and calls end then. Its memory, which ctx has, goes with the answer.
// It returns false if the stream has ended.
func (t *SSE) begin(ctx context.Context, memory *budget.Hold, s *stream, message []byte, end func()) bool {
	t.mu.Lock()
	if t.streams[s.id] == nil { // Stream already waits for its calls
		t.mu.Unlock()
		memory.Release()
		end()
		return false
	}
	s.calls.Add(1)
	t.mu.Unlock()
	ctx, cancel := context.WithCancel(withDelivery(t.server.WithContext(ctx, s), s.delivery))
	stop := context.AfterFunc(s.ctx, cancel) //nolint:contextcheck // the call lasts as long as its stream, not as the request that sent it
	go func() {
		defer s.calls.Done()
		defer func() { stop(); cancel(); end() }()
		defer func() {
			if v := recover(); v != nil {
				t.log.ErrorContext(ctx, "mcp message panicked", slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
			}
		}()
		defer func() { memory.Release() }()
		text, err := t.answer(ctx, memory, message)
		if err != nil {
			t.log.ErrorContext(ctx, "mcp answer cannot be sent", slog.Any("error", err))
		}
		if text == nil {
			return
		}
		budget.LeaveCore(ctx)
		select {
		case s.out <- pending{text, memory}:
			memory = nil // until it is sent
		case <-s.ctx.Done():
		}
	}()
	return true
}

// answer handles a message with its memory, which ctx has. It returns the encoded answer, whose bytes the memory holds; nil: there is none.
func (t *SSE) answer(ctx context.Context, memory *budget.Hold, message []byte) ([]byte, error) {
	_, err := decoding(ctx, message)
	var text []byte
	if err == nil {
		answer := t.server.HandleMessage(ctx, message)
		if answer == nil {
			return nil, nil
		}
		if text, err = farm.Encode(answer); err != nil {
			return nil, err
		}
		if !memory.Grow(max(0, int64(len(text))-memory.Bytes())) { // what a tool has read is charged already
			err = farm.Errorf(farm.CodeExhausted, "This server has no memory for the answer now: too many wait for this client. Read them, and ask again.")
		}
	}
	if err != nil {
		var m head
		_ = json.Unmarshal(message, &m) // Post has checked it
		return farm.Encode(failure(m.ID, mcp.JSONRPCErrorDetails{Code: mcp.INTERNAL_ERROR, Message: farm.MessageOf(err)}))
	}
	return text, nil
}

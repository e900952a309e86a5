package attach

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// closeTimeout bounds the end of a connection, in which the caller may still be sending a long message.
	closeTimeout = 5 * time.Second
	// maxReason is the length of the text in a close message, by RFC 6455.
	maxReason = 123
	// codeBase is added to the HTTP status of an error to make the close code of one.
	codeBase = 4000
	// keptBuffer is the largest buffer that a quiet connection keeps.
	keptBuffer = 4 << 10
)

// Process is what a connection is attached to. Write and Resize are called while NextPiece waits.
type Process interface {
	NextPiece(ctx context.Context, timeout time.Duration) (out farm.Output, ok bool, err error)
	Start() int64
	Write(ctx context.Context, from int64, p []byte, end bool) (position int64, err error)
	Resize(ctx context.Context, size farm.TerminalSize) error
}

// Config are the times of a connection. Both are required.
type Config struct {
	Heartbeat time.Duration // between two pings
	Stall     time.Duration // how long the caller may take nothing, or leave a ping unanswered
}

// Upgrades reports whether a request asks for a WebSocket.
func Upgrades(r *http.Request) bool {
	return r.ProtoMajor == 1 && r.ProtoMinor > 0 && r.Method == http.MethodGet && r.Header.Get("Sec-Websocket-Key") != "" && r.Header.Get("Upgrade") != ""
}

// session is one connection.
type session struct {
	cfg     Config
	process Process
	conn    *websocket.Conn
	ctx     context.Context // of the work; the connection outlives it by its close message
	end     context.CancelCauseFunc
	inputs  chan input
	waiting atomic.Int64 // bytes of inputs
	reading atomic.Bool  // the connection is being read, so that answers to pings are seen
}

// Serve answers a request with a WebSocket, until the process has exited, the caller leaves, or ctx ends. The returned error says why it ended
// before the exit, for the log.
func Serve(ctx context.Context, w http.ResponseWriter, r *http.Request, cfg Config, p Process) error {
	under := &hijacked{ResponseWriter: w}
	conn, err := websocket.Accept(under, r, nil)
	if err != nil {
		return err // it has answered
	}
	conn.SetReadLimit(-1) // read has a limit of its own, beyond which the close message still arrives
	s := &session{cfg: cfg, process: p, conn: conn, inputs: make(chan input, waitingInputs)}
	s.ctx, s.end = context.WithCancelCause(ctx)
	io, done := context.WithCancel(context.WithoutCancel(ctx)) // to cancel a read or a write closes the connection
	defer done()
	var work sync.WaitGroup
	work.Go(func() { s.end(s.read(io)) })
	work.Go(func() { s.end(s.write(io)) })
	work.Go(func() { s.end(s.ping(io)) })
	s.end(s.send(io))
	cause := context.Cause(s.ctx) //nolint:contextcheck // io is for the connection, which outlives the work
	under.expire(closeTimeout)
	code, reason := closing(cause)
	_ = conn.Close(code, reason)
	done()
	work.Wait()
	if errors.Is(cause, errExited) || errors.Is(cause, errLeft) {
		return nil
	}
	return cause
}

var (
	errExited = errors.New("the process has exited")
	errLeft   = errors.New("the caller has left")
)

// closing is the close code of an end, and its text.
func closing(cause error) (websocket.StatusCode, string) {
	if e, ok := errors.AsType[websocket.CloseError](cause); ok {
		return e.Code, e.Reason
	}
	switch {
	case errors.Is(cause, errExited):
		return websocket.StatusNormalClosure, errExited.Error()
	case errors.Is(cause, errLeft):
		return websocket.StatusNormalClosure, ""
	}
	reason := farm.MessageOf(cause)
	for len(reason) > maxReason || !utf8.ValidString(reason) {
		reason = reason[:min(len(reason)-1, maxReason)]
	}
	return websocket.StatusCode(codeBase + rest.StatusOf(cause)), reason //nolint:gosec // a status has three digits
}

// refuse makes an end that the caller is to blame for.
func refuse(code websocket.StatusCode, reason string) error {
	return websocket.CloseError{Code: code, Reason: reason}
}

// hijacked keeps the connection below a WebSocket, for its deadline.
type hijacked struct {
	http.ResponseWriter
	conn net.Conn
}

// Hijack takes over the connection.
func (h *hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	h.conn = conn
	return conn, rw, err
}

// WriteHeaderNow sends the header where a router would send it with the first bytes of a body.
func (h *hijacked) WriteHeaderNow() {
	if router, ok := h.ResponseWriter.(interface{ WriteHeaderNow() }); ok {
		router.WriteHeaderNow()
	}
}

func (h *hijacked) expire(after time.Duration) { _ = h.conn.SetDeadline(time.Now().Add(after)) }

// send sends the output until the exit.
func (s *session) send(io context.Context) error {
	var message []byte
	for {
		out, ok, err := s.process.NextPiece(s.ctx, s.cfg.Heartbeat) //nolint:contextcheck // io is for the connection, which outlives the work
		if err != nil {
			return err
		}
		if !ok { // quiet for a heartbeat
			message = drop(message)
			continue
		}
		kind := wire.AttachStdout
		switch out.Kind {
		case farm.OutputStdout:
		case farm.OutputStderr:
			kind = wire.AttachStderr
		case farm.OutputDropped:
			kind = wire.AttachDropped
		case farm.OutputExit:
			kind = wire.AttachExit
			if out.Data, err = json.Marshal(service.ExitData(out)); err != nil {
				return err
			}
		}
		message = append(wire.AppendAttach(message[:0], kind, out.Seq), out.Data...)
		if err := s.put(io, message); err != nil {
			return err
		}
		budget.Keep(s.ctx, 0) //nolint:contextcheck // as above; what is sent is not held
		if kind == wire.AttachExit {
			return errExited
		}
		if len(message) <= keptBuffer { // much output uses its buffer again
			message = drop(message)
		}
	}
}

// drop lets a large buffer go.
func drop(buffer []byte) []byte {
	if cap(buffer) > keptBuffer {
		return nil
	}
	return buffer
}

// put sends one message. A caller that takes nothing for a while has left.
func (s *session) put(io context.Context, message []byte) error {
	ctx, done := context.WithTimeout(io, s.cfg.Stall)
	defer done()
	if err := s.conn.Write(ctx, websocket.MessageBinary, message); err != nil {
		return errLeft
	}
	return nil
}

// ping ends a connection whose other end is gone. While the input is full the connection is not read, and so answers are not seen.
func (s *session) ping(io context.Context) error {
	tick := time.NewTicker(s.cfg.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return nil
		}
		ctx, done := context.WithTimeout(io, s.cfg.Stall)
		stop := context.AfterFunc(s.ctx, done) //nolint:contextcheck // as above
		err := s.conn.Ping(ctx)
		stop()
		done()
		if err != nil && s.reading.Load() {
			return errLeft
		}
	}
}

package api

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"
	"golang.org/x/time/rate"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// One WebSocket is attached to a process: output, input, size and exit as binary messages (docs/rest.md, "Attach"). The memory of a
// connection is bounded whatever its caller and the process do; a caller that takes nothing, or is gone, is noticed; every end has a close
// code that says why.

const (
	// maxCloseReason is the length of the text in a close message, by RFC 6455.
	maxCloseReason = 123
	// closeCodeBase is added to the HTTP status of an error to make the close code of one.
	closeCodeBase = 4000
	// resizeRate and resizeBurst bound the sizes of the terminal that are set. Each is a call to the worker, which costs the sandbox nothing.
	resizeRate, resizeBurst = 20, 100
	// keptBuffer is the largest buffer that a quiet connection keeps.
	keptBuffer = 4 << 10
)

// attachable is what a connection is attached to. Write and Resize are called while NextPiece waits.
type attachable interface {
	NextPiece(ctx context.Context, timeout time.Duration) (out farm.Output, ok bool, err error)
	Start() int64
	Write(ctx context.Context, from int64, p []byte, end bool) (position int64, err error)
	Resize(ctx context.Context, size farm.TerminalSize) error
}

// attachConfig are the times of a connection. Both are required.
type attachConfig struct {
	Heartbeat time.Duration // between two pings
	Stall     time.Duration // how long the caller may take nothing, or leave a ping unanswered
}

// attachSession is one connection.
type attachSession struct {
	cfg     attachConfig
	process attachable
	conn    *rest.WebSocket
	ctx     context.Context // of the work; the connection outlives it by its close message
	end     context.CancelCauseFunc
	inputs  chan attachInput
	waiting atomic.Int64                      // bytes of inputs
	size    atomic.Pointer[farm.TerminalSize] // to be set by the resize in inputs; nil: there is none
	reading atomic.Bool                       // the connection is being read, so that answers to pings are seen
}

// serveAttached answers a request with a WebSocket, until the process has exited, the caller leaves, or ctx ends. The returned error says why it ended
// before the exit, for the log.
func serveAttached(ctx context.Context, w http.ResponseWriter, r *http.Request, cfg attachConfig, p attachable) error {
	conn, err := rest.AcceptWebSocket(w, r, nil)
	if err != nil {
		return err
	}
	conn.SetReadLimit(-1) // read has a limit of its own, beyond which the close message still arrives
	s := &attachSession{cfg: cfg, process: p, conn: conn, inputs: make(chan attachInput, waitingInputs)}
	s.ctx, s.end = context.WithCancelCause(ctx)
	io, done := context.WithCancel(context.WithoutCancel(ctx)) // to cancel a read or a write closes the connection
	defer done()
	var work sync.WaitGroup
	work.Go(func() { s.end(s.read(io)) })
	work.Go(func() { s.end(s.write(io)) })
	work.Go(func() { s.end(s.ping(io)) })
	s.end(s.send(io))
	cause := context.Cause(s.ctx) //nolint:contextcheck // io is for the connection, which outlives the work
	code, reason := closeCode(cause)
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

// closeCode is the close code of an end, and its text.
func closeCode(cause error) (websocket.StatusCode, string) {
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
	for len(reason) > maxCloseReason || !utf8.ValidString(reason) {
		reason = reason[:min(len(reason)-1, maxCloseReason)]
	}
	return websocket.StatusCode(closeCodeBase + rest.StatusOf(cause)), reason //nolint:gosec // a status has three digits
}

// closeWith makes an end that the caller is to blame for.
func closeWith(code websocket.StatusCode, reason string) error {
	return websocket.CloseError{Code: code, Reason: reason}
}

// send sends the output until the exit.
func (s *attachSession) send(io context.Context) error {
	var message []byte
	for {
		out, ok, err := s.process.NextPiece(s.ctx, s.cfg.Heartbeat) //nolint:contextcheck // io is for the connection, which outlives the work
		if err != nil {
			return err
		}
		if !ok { // quiet for a heartbeat
			message = emptied(message)
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
			message = emptied(message)
		}
	}
}

// emptied lets a large buffer go.
func emptied(buffer []byte) []byte {
	if cap(buffer) > keptBuffer {
		return nil
	}
	return buffer
}

// put sends one message. A caller that takes nothing for a while has left.
func (s *attachSession) put(io context.Context, message []byte) error {
	ctx, done := context.WithTimeout(io, s.cfg.Stall)
	defer done()
	if err := s.conn.Write(ctx, websocket.MessageBinary, message); err != nil {
		return errLeft
	}
	return nil
}

// ping ends a connection whose other end is gone. While the input is full the connection is not read, and so answers are not seen.
func (s *attachSession) ping(io context.Context) error {
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

// waitingInputs is how many messages wait for the process; then the connection is not read until it takes some.
const waitingInputs = 16

// attachInput is one message of the caller.
type attachInput struct {
	kind wire.AttachKind
	data []byte
}

// read reads messages until the caller disconnects or sends an invalid message.
func (s *attachSession) read(conn context.Context) error {
	defer close(s.inputs)
	ctx, hold := budget.Renew(s.ctx)
	defer hold.Release()
	for {
		s.reading.Store(true)
		kind, raw, err := s.conn.Read(conn, wire.MaxAttachBytes+2, s.cfg.Stall)
		s.reading.Store(false)
		switch {
		case err != nil:
			return errLeft
		case kind != websocket.MessageBinary:
			return closeWith(websocket.StatusUnsupportedData, "Messages are binary: their first byte says what they are.")
		case len(raw) > wire.MaxAttachBytes+1:
			return closeWith(websocket.StatusMessageTooBig, fmt.Sprintf("A message has at most %d bytes behind its first one.", wire.MaxAttachBytes))
		case len(raw) == 0:
			return closeWith(closeCodeBase+http.StatusBadRequest, "The message is empty: its first byte says what it is.")
		}
		in := attachInput{wire.AttachKind(raw[0]), raw[1:]}
		if in.kind != wire.AttachStdin && in.kind != wire.AttachEnd && in.kind != wire.AttachResize {
			return closeWith(closeCodeBase+http.StatusBadRequest, fmt.Sprintf("There is no message of kind %d.", in.kind))
		}
		if in.kind == wire.AttachEnd && len(in.data) > 0 {
			return closeWith(closeCodeBase+http.StatusBadRequest, "The end of the input has no bytes.")
		}
		if in.kind == wire.AttachResize {
			if len(in.data) != 4 {
				return closeWith(closeCodeBase+http.StatusBadRequest, "A resize has 4 bytes: columns and rows.")
			}
			size := farm.TerminalSize{Cols: int(binary.BigEndian.Uint16(in.data)), Rows: int(binary.BigEndian.Uint16(in.data[2:]))}
			if in.data = nil; s.size.Swap(&size) != nil {
				continue // the resize that waits sets the newest size
			}
		}
		hold.Keep(s.waiting.Add(int64(len(in.data))) - int64(len(in.data)))
		if err := budget.Charge(ctx, int64(len(in.data))); err != nil { //nolint:contextcheck // conn is for the connection, which outlives the work
			return err
		}
		select {
		case s.inputs <- in:
		case <-s.ctx.Done():
			return nil
		}
	}
}

// write passes on what read has read.
func (s *attachSession) write(conn context.Context) error {
	position, open := s.process.Start(), true
	resizes := rate.NewLimiter(resizeRate, resizeBurst)
	for in := range s.inputs {
		var err error
		switch {
		case in.kind == wire.AttachResize:
			if err = resizes.Wait(s.ctx); err == nil { //nolint:contextcheck // conn is for the connection, which outlives the work
				err = s.resize(conn, *s.size.Swap(nil))
			}
		case open: // otherwise the caller has an error
			if position, err = s.pass(conn, position, in); farm.CodeOf(err) == farm.CodeConflict {
				open, err = false, s.refused(conn, err)
			}
		}
		if err != nil {
			return err
		}
		s.waiting.Add(-int64(len(in.data)))
	}
	<-s.ctx.Done()
	return nil
}

// pass gives the process one input, whose first byte has the position from, and tells the caller as it is taken.
func (s *attachSession) pass(conn context.Context, from int64, in attachInput) (position int64, err error) {
	end := in.kind == wire.AttachEnd
	want := from + int64(len(in.data))
	if end {
		want++
	}
	for position = from; position < want; {
		got, err := s.process.Write(s.ctx, position, in.data[position-from:], end) //nolint:contextcheck // conn is for the connection, which outlives the work
		if err != nil {
			return position, err
		}
		if got == position {
			continue // the process does not read now
		}
		position = got
		if err := s.put(conn, wire.AppendAttach(nil, wire.AttachTaken, uint64(position))); err != nil { //nolint:gosec // never negative
			return position, err
		}
	}
	return position, nil
}

// resize sets the size of the terminal.
func (s *attachSession) resize(conn context.Context, size farm.TerminalSize) error {
	err := s.process.Resize(s.ctx, size) //nolint:contextcheck // conn is for the connection, which outlives the work
	if code := farm.CodeOf(err); err != nil && (code == farm.CodeConflict || code == farm.CodeInvalid) {
		return s.refused(conn, err)
	}
	return err
}

// refused tells the caller that something was not done.
func (s *attachSession) refused(conn context.Context, err error) error {
	raw, failed := json.Marshal(wire.AttachError{Code: string(farm.CodeOf(err)), Detail: farm.MessageOf(err)})
	if failed != nil {
		return failed
	}
	return s.put(conn, append([]byte{byte(wire.AttachRefused)}, raw...))
}

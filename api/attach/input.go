package attach

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/coder/websocket"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// waitingInputs is how many messages wait for the process; then the connection is not read until it takes some.
const waitingInputs = 16

// input is one message of the caller.
type input struct {
	kind wire.AttachKind
	data []byte
}

// read reads messages until the caller disconnects or sends an invalid message.
func (s *session) read(conn context.Context) error {
	defer close(s.inputs)
	ctx, hold := budget.Renew(s.ctx)
	defer hold.Release()
	for {
		s.reading.Store(true)
		kind, from, err := s.conn.Reader(conn)
		var raw []byte
		if err == nil {
			raw, err = io.ReadAll(io.LimitReader(from, wire.MaxAttachBytes+2))
		}
		s.reading.Store(false)
		switch {
		case err != nil:
			return errLeft
		case kind != websocket.MessageBinary:
			return refuse(websocket.StatusUnsupportedData, "Messages are binary: their first byte says what they are.")
		case len(raw) > wire.MaxAttachBytes+1:
			return refuse(websocket.StatusMessageTooBig, fmt.Sprintf("A message has at most %d bytes behind its first one.", wire.MaxAttachBytes))
		case len(raw) == 0:
			return refuse(codeBase+http.StatusBadRequest, "The message is empty: its first byte says what it is.")
		}
		in := input{wire.AttachKind(raw[0]), raw[1:]}
		if in.kind != wire.AttachStdin && in.kind != wire.AttachEnd && in.kind != wire.AttachResize {
			return refuse(codeBase+http.StatusBadRequest, fmt.Sprintf("There is no message of kind %d.", in.kind))
		}
		if in.kind == wire.AttachEnd && len(in.data) > 0 {
			return refuse(codeBase+http.StatusBadRequest, "The end of the input has no bytes.")
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
func (s *session) write(conn context.Context) error {
	position, open := s.process.Start(), true
	for in := range s.inputs {
		var err error
		switch {
		case in.kind == wire.AttachResize:
			err = s.resize(conn, in.data)
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
func (s *session) pass(conn context.Context, from int64, in input) (position int64, err error) {
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
func (s *session) resize(conn context.Context, data []byte) error {
	if len(data) != 4 {
		return refuse(codeBase+http.StatusBadRequest, "A resize has 4 bytes: columns and rows.")
	}
	size := farm.TerminalSize{Cols: int(binary.BigEndian.Uint16(data)), Rows: int(binary.BigEndian.Uint16(data[2:]))}
	err := s.process.Resize(s.ctx, size) //nolint:contextcheck // conn is for the connection, which outlives the work
	if code := farm.CodeOf(err); err != nil && (code == farm.CodeConflict || code == farm.CodeInvalid) {
		return s.refused(conn, err)
	}
	return err
}

// refused tells the caller that something was not done.
func (s *session) refused(conn context.Context, err error) error {
	raw, failed := json.Marshal(wire.AttachError{Code: string(farm.CodeOf(err)), Detail: farm.MessageOf(err)})
	if failed != nil {
		return failed
	}
	return s.put(conn, append([]byte{byte(wire.AttachRefused)}, raw...))
}

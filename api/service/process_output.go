package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
)

const (
	// outputTimeout is how long a reader of output tries to reach the sandbox again after its worker has ended.
	outputTimeout = 30 * time.Second
	// outputPause is the time between two tries, and after an answer without output.
	outputPause = 100 * time.Millisecond
	// leaveTimeout bounds the message that a reader will not come back.
	leaveTimeout = 5 * time.Second
)

// readerPrefix begins the names by which the agent knows the readers of a process.
const readerPrefix = "rdr_"

// ProcessOutput is one reader of the output of a process: first what is kept, then what comes, until its exit. If the worker between them ends,
// it continues through another one. It is not safe for concurrent use.
type ProcessOutput struct {
	s                   *Service
	tenant, sandbox, id string
	reader              string
	agent               relay.Agent
	answer              *relay.Output
	next                uint64
	got                 bool // the answer had a piece
	over                bool
	asked               bool
	ask                 chan struct{}
	pieces              chan piece
	end                 context.CancelFunc
	hold                *budget.Hold // what read has: the caller gives back what it holds itself
	reading             sync.WaitGroup
}

type piece struct {
	farm.Output
	err error
}

// ProcessOutput reads the output of a process after the event with the id after; "" reads all that is kept.
func (s *Service) ProcessOutput(ctx context.Context, tenant, sandboxID, id, after string) (*ProcessOutput, error) {
	o := &ProcessOutput{
		s: s, tenant: tenant, sandbox: sandboxID, id: id, reader: farm.NewID(readerPrefix), ask: make(chan struct{}), pieces: make(chan piece),
	}
	if after != "" {
		last, err := strconv.ParseUint(after, 10, 63)
		if err != nil {
			return nil, farm.Invalidf("%q is not the id of an event of a process: it is a number", farm.Shorten(after))
		}
		o.next = last + 1
	}
	var err error
	if o.agent, err = s.agentOf(ctx, tenant, sandboxID, id); err != nil {
		return nil, err
	}
	ctx, o.hold = budget.Renew(ctx)
	ctx, o.end = context.WithCancel(ctx)
	if o.answer, err = o.agent.ProcessOutput(ctx, id, o.reader, o.next); err != nil {
		o.end()
		o.hold.Release()
		return nil, err
	}
	o.reading.Go(func() { o.read(ctx) })
	return o, nil
}

// Close ends the reader.
func (o *ProcessOutput) Close() {
	o.end()
	o.reading.Wait()
	o.hold.Release()
	if o.answer != nil {
		o.answer.Close()
	}
	if o.over {
		return
	}
	ctx, done := context.WithTimeout(context.Background(), leaveTimeout) //nolint:forbidigo // the request is over
	defer done()
	_ = o.agent.LeaveProcess(ctx, o.id, o.reader) // if it does not arrive, the process waits for this reader for ten seconds
}

// errDraining ends readers when the server stops.
var errDraining = farm.Errorf(farm.CodeUnavailable, "The server stops. Go on through another one.")

// Next returns the next event, or none if nothing came within timeout: call it again then. io.EOF: the exit was returned, or the server stops.
func (o *ProcessOutput) Next(ctx context.Context, timeout time.Duration) ([]wire.Event, error) {
	out, ok, err := o.NextPiece(ctx, timeout)
	switch {
	case errors.Is(err, errDraining), ctx.Err() != nil:
		return nil, io.EOF
	case err != nil || !ok:
		return nil, err
	}
	event, err := outputEvent(out)
	return []wire.Event{event}, err
}

// NextPiece returns the next piece of output; ok is false if none came within timeout: call it again then. io.EOF: the exit was returned. It is
// CodeUnavailable if the server stops.
func (o *ProcessOutput) NextPiece(ctx context.Context, timeout time.Duration) (out farm.Output, ok bool, err error) {
	if o.over {
		return out, false, io.EOF
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	if !o.asked {
		select {
		case o.ask <- struct{}{}:
			o.asked = true
		case <-ctx.Done():
			return out, false, ctx.Err()
		}
	}
	select {
	case p := <-o.pieces:
		o.asked = false
		o.over = p.err == nil && p.Kind == farm.OutputExit
		return p.Output, p.err == nil, p.err
	case <-timer.C:
		return out, false, nil
	case <-o.s.draining:
		return out, false, errDraining
	case <-ctx.Done():
		return out, false, ctx.Err()
	}
}

// read reads a piece each time that Next asks for one.
func (o *ProcessOutput) read(ctx context.Context) {
	for {
		select {
		case <-o.ask:
		case <-ctx.Done():
			return
		}
		budget.Keep(ctx, 0) // what the caller was given is sent
		out, err := o.piece(ctx)
		select {
		case o.pieces <- piece{out, err}:
		case <-ctx.Done():
			return
		}
	}
}

// piece reads the next piece, over as many answers and workers as it takes.
func (o *ProcessOutput) piece(ctx context.Context) (farm.Output, error) {
	broken := time.Time{} // since when the sandbox is not reached
	for {
		var out farm.Output
		err := o.open(ctx)
		if err == nil {
			out, err = o.answer.Next(func(bytes int) error { return budget.Charge(ctx, int64(bytes)) })
		}
		if err == nil {
			o.got, o.next = true, out.Seq+1
			return out, nil
		}
		if o.answer != nil {
			o.answer.Close()
			o.answer = nil
		}
		switch now := time.Now(); {
		case ctx.Err() != nil:
			return farm.Output{}, ctx.Err()
		case errors.Is(err, io.EOF): // the answer was complete
			if o.got {
				o.got = false
				continue
			}
		case farm.CodeOf(err) != farm.CodeUnavailable:
			return farm.Output{}, err
		case broken.IsZero():
			broken = now
		case now.Sub(broken) > outputTimeout:
			return farm.Output{}, err
		}
		if err := pause(ctx); err != nil {
			return farm.Output{}, err
		}
	}
}

// open asks for the next answer if there is none.
func (o *ProcessOutput) open(ctx context.Context) (err error) {
	if o.answer != nil {
		return nil
	}
	if !o.got { // not the next answer of many: the sandbox may have ended
		agent, err := o.s.agentOf(ctx, o.tenant, o.sandbox, o.id)
		if err != nil {
			return err // Close takes leave by the one before
		}
		o.agent = agent
	}
	o.answer, err = o.agent.ProcessOutput(ctx, o.id, o.reader, o.next)
	return err
}

// ExitData says how a process ended. out is its last piece.
func ExitData(out farm.Output) wire.ExitData {
	return wire.ExitData{ExitCode: *out.End.ExitCode, TimedOut: out.End.TimedOut, Stopped: out.End.Stopped, OutOfMemory: out.End.OutOfMemory}
}

// outputEvent makes the event of a piece.
func outputEvent(out farm.Output) (wire.Event, error) {
	var data any = struct{}{}
	switch out.Kind {
	case farm.OutputStdout, farm.OutputStderr:
		if utf8.Valid(out.Data) {
			text := string(out.Data)
			data = wire.OutputData{Text: &text}
		} else {
			data = wire.OutputData{Base64: out.Data}
		}
	case farm.OutputExit:
		data = ExitData(out)
	case farm.OutputDropped:
	}
	raw, err := json.Marshal(data)
	if err != nil {
		return wire.Event{}, fmt.Errorf("encode output: %w", err)
	}
	return wire.Event{ID: strconv.FormatUint(out.Seq, 10), Name: string(out.Kind), Data: raw}, nil
}

// writerPrefix begins the names by which the agent knows writers that callers did not name.
const writerPrefix = "wrt_"

// maxWriterBytes bounds the name of a writer.
const maxWriterBytes = 64

// AttachPoint is where an Attachment continues.
type AttachPoint struct {
	After   string // number of the last piece of output that the caller has; "": none
	Writer  string // name of the writer, which lets its input continue after a break; "": it cannot continue
	Written string // how many bytes of input were confirmed to the writer; "": none
}

// Attachment is both directions of a process. Write and Resize may be called while NextPiece waits, and not beside each other.
type Attachment struct {
	*ProcessOutput
	writer  string
	start   int64
	writing relay.Agent // finds its own way after a break
}

// Attach attaches to a process. The caller closes the attachment.
func (s *Service) Attach(ctx context.Context, tenant, sandboxID, id string, at AttachPoint) (*Attachment, error) {
	a := &Attachment{writer: at.Writer}
	if strings.Trim(at.Writer, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" || len(at.Writer) > maxWriterBytes {
		return nil, farm.Invalidf("writer is not a name of up to %d letters, digits, dashes and underscores", maxWriterBytes)
	}
	if at.Written != "" {
		n, err := strconv.ParseUint(at.Written, 10, 62)
		if err != nil || at.Writer == "" {
			return nil, farm.Invalidf("written is the number of the last message \"taken\", and needs writer")
		}
		a.start = int64(n)
	}
	if a.writer == "" {
		a.writer = farm.NewID(writerPrefix)
	}
	var err error
	if a.ProcessOutput, err = s.ProcessOutput(ctx, tenant, sandboxID, id, at.After); err != nil {
		return nil, err
	}
	a.writing, err = s.agentOf(ctx, tenant, sandboxID, id)
	if err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

// Start is the position of the first byte that this attachment writes.
func (a *Attachment) Start() int64 { return a.start }

// Write writes p, whose first byte has the position from, to the input of the process, and ends the input then if end says so. It returns the
// position behind what the process has: less than all if it did not read for a while; after an answer that it has read nothing it pauses. If the worker
// ends, it continues through another one, and nothing is written twice.
func (a *Attachment) Write(ctx context.Context, from int64, p []byte, end bool) (position int64, err error) {
	err = a.reach(ctx, func(agent relay.Agent) (err error) {
		position, err = agent.WriteProcessFrom(ctx, a.id, a.writer, from, p, end)
		return err
	})
	if err == nil && position == from { // the agent, which waits for the process, is in the sandbox
		err = pause(ctx)
	}
	return position, err
}

// Resize sets the size of the process's terminal.
func (a *Attachment) Resize(ctx context.Context, size farm.TerminalSize) error {
	if err := checkSize(size); err != nil {
		return err
	}
	return a.reach(ctx, func(agent relay.Agent) error {
		_, err := agent.ResizeProcess(ctx, a.id, size)
		return err
	})
}

// reach calls f until the sandbox can be reached, or for outputTimeout. f has no effect twice.
func (a *Attachment) reach(ctx context.Context, f func(relay.Agent) error) error {
	broken := time.Time{}
	for {
		err := f(a.writing)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil || farm.CodeOf(err) != farm.CodeUnavailable:
			return err
		case broken.IsZero():
			broken = time.Now()
		case time.Since(broken) > outputTimeout:
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
		if agent, err := a.s.agentOf(ctx, a.tenant, a.sandbox, a.id); err == nil {
			a.writing = agent
		} else if farm.CodeOf(err) != farm.CodeUnavailable {
			return err
		}
	}
}

// pause waits for outputPause.
func pause(ctx context.Context) error {
	timer := time.NewTimer(outputPause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

package client

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/sandfarm/sandfarm/api/wire"
)

// StartProcess starts a process beside the jobs of a sandbox. It runs on when the caller leaves.
func (c *Client) StartProcess(ctx context.Context, sandboxID string, request wire.ProcessRequest) (wire.Process, error) {
	var got wire.Process
	err := c.json(ctx, call{method: http.MethodPost, path: processPath(sandboxID), body: request, once: true}, &got)
	return got, err
}

// Processes lists the processes of a sandbox that callers started, the oldest first.
func (c *Client) Processes(ctx context.Context, sandboxID string) ([]wire.Process, error) {
	var got wire.Processes
	err := c.json(ctx, call{method: http.MethodGet, path: processPath(sandboxID)}, &got)
	return got.Items, err
}

// Running lists all processes that run in a sandbox, also those that jobs and kernels started, by pid.
func (c *Client) Running(ctx context.Context, sandboxID string) ([]wire.RunningProcess, error) {
	var got wire.Processes
	err := c.json(ctx, call{method: http.MethodGet, path: processPath(sandboxID), query: url.Values{"all": {"true"}}}, &got)
	return got.Running, err
}

// Process reads a process.
func (c *Client) Process(ctx context.Context, sandboxID, id string) (wire.Process, error) {
	var got wire.Process
	err := c.json(ctx, call{method: http.MethodGet, path: processPath(sandboxID, id)}, &got)
	return got, err
}

// ProcessEvents streams the output of a process after the event with the id in after; "" is the first that is kept. If the connection breaks,
// it reconnects and continues. It ends after the event exit, or with an error.
func (c *Client) ProcessEvents(ctx context.Context, sandboxID, id, after string) iter.Seq2[wire.Event, error] {
	in := call{method: http.MethodGet, path: processPath(sandboxID, id, "events")}
	return c.stream(ctx, "follow process "+id, in, after, func(e wire.Event) bool { return e.Name == "exit" })
}

// EndProcess ends a process and all that it started, by SIGTERM and after five seconds by SIGKILL. It returns how it ended. One that has
// ended before is forgotten.
func (c *Client) EndProcess(ctx context.Context, sandboxID, id string) (wire.Process, error) {
	var got wire.Process
	err := c.json(ctx, call{method: http.MethodDelete, path: processPath(sandboxID, id)}, &got)
	return got, err
}

// SignalProcess sends a signal, such as SIGINT, to a process and its group.
func (c *Client) SignalProcess(ctx context.Context, sandboxID, id, signal string) (wire.Process, error) {
	var got wire.Process
	err := c.json(ctx, call{method: http.MethodPost, path: processPath(sandboxID, id, "signal"), body: wire.SignalRequest{Signal: signal}, once: true}, &got)
	return got, err
}

func processPath(sandboxID string, more ...string) []string {
	return sandboxPath(sandboxID, append([]string{"processes"}, more...)...)
}

const (
	attachTimeout = time.Minute // how long a connection that broke is tried again, without a message between the tries
	maxUnacked    = 256 << 10   // bytes of input that wait for the process before Write blocks
	maxMessage    = 4 << 20     // of the farm; pieces of output are far smaller
	closeBase     = 4000        // close codes above it are HTTP statuses
)

// ErrInputClosed says that a process has no input, or none any more.
var ErrInputClosed = errors.New("the process has no open input")

// ProcessOutput is a piece of what a process wrote, or its end.
type ProcessOutput struct {
	Kind   wire.AttachKind // AttachStdout, AttachStderr, AttachDropped or AttachExit, which is the last
	Number uint64
	Data   []byte         // of stdout and stderr
	Exit   *wire.ExitData // of the exit
}

// Attachment is both directions of a process. If a connection breaks it continues over another one: nothing that the farm keeps is lost, and no
// input is repeated. Make it with [Client.Attach]; Output makes the connections. Its methods may be called at the same time.
type Attachment struct {
	c       *Client
	what    string
	path    []string
	writer  string
	after   uint64 // number of the last piece; only Output uses it
	changed chan struct{}

	mu      sync.Mutex
	unacked []byte // input that the process may not have yet
	taken   int64  // position of its first byte
	end     bool   // the input ends behind it
	size    *wire.TerminalSize
	sent    int  // of untaken, over the present connection
	endSent bool // the same for the end, and for the size
	sized   bool
	closed  bool // the farm takes no input
	over    bool // Output has ended
	room    chan struct{}
}

// Attach attaches to a process. It sends nothing yet.
func (c *Client) Attach(sandboxID, processID string) *Attachment {
	return &Attachment{
		c: c, what: "attach to process " + processID, path: processPath(sandboxID, processID, "attach"), writer: newKey(),
		changed: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
}

// Write gives bytes to the input of the process. It waits while much of what was written before is not taken. ErrInputClosed: the process has no
// input, or has ended.
func (a *Attachment) Write(ctx context.Context, p []byte) error {
	for len(p) > 0 {
		a.mu.Lock()
		if a.closed || a.end || a.over {
			a.mu.Unlock()
			signal(a.room) // for other writers
			return ErrInputClosed
		}
		n := min(len(p), maxUnacked-len(a.unacked))
		a.unacked = append(a.unacked, p[:n]...)
		a.mu.Unlock()
		p = p[n:]
		signal(a.changed)
		if len(p) == 0 {
			return nil
		}
		select {
		case <-a.room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// End ends the input, behind all that was written. On a terminal it types control-D.
func (a *Attachment) End() {
	a.mu.Lock()
	a.end = true
	a.mu.Unlock()
	signal(a.changed)
}

// Resize sets the size of the process's terminal.
func (a *Attachment) Resize(size wire.TerminalSize) {
	a.mu.Lock()
	a.size, a.sized = &size, false
	a.mu.Unlock()
	signal(a.changed)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Output connects and streams the output, from the first piece that is kept to the exit. An error ends it. Call it once.
func (a *Attachment) Output(ctx context.Context) iter.Seq2[ProcessOutput, error] {
	return func(yield func(ProcessOutput, error) bool) {
		defer func() {
			a.mu.Lock()
			a.over = true
			a.mu.Unlock()
			signal(a.room)
		}()
		heard := time.Now()
		for attempt := 1; ; attempt++ {
			done, err := a.follow(ctx, func() { heard, attempt = time.Now(), 1 }, yield)
			if done {
				return
			}
			if ctx.Err() == nil && time.Since(heard) < attachTimeout && (temporary(err) || errors.Is(err, errSilent)) {
				err = sleep(ctx, max(a.c.pause(attempt), retryAfterOf(err)))
				if err == nil {
					continue
				}
			}
			yield(ProcessOutput{}, fmt.Errorf("%s: %w", a.what, err))
			return
		}
	}
}

// follow makes one connection. done means that the process has exited or that the reader has stopped.
func (a *Attachment) follow(ctx context.Context, heard func(), yield func(ProcessOutput, error) bool) (done bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(silenceTimeout, func() { cancel(errSilent) })
	defer quiet.Stop()
	conn, err := a.dial(ctx, quiet)
	if err != nil {
		return false, err
	}
	defer conn.CloseNow() //nolint:errcheck // it may be closed
	conn.SetReadLimit(maxMessage)
	a.mu.Lock()
	a.sent, a.endSent, a.sized = 0, false, false
	a.mu.Unlock()
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel(nil)
	sending.Go(func() { a.send(ctx, conn) })
	for {
		kind, raw, err := conn.Read(ctx)
		switch {
		case errors.Is(context.Cause(ctx), errSilent):
			return false, errSilent
		case err != nil:
			return false, closed(err)
		case kind != websocket.MessageBinary || len(raw) == 0:
			return false, errors.New("the farm sent a message that cannot be read (check the address: is this a Sandfarm?)")
		}
		quiet.Reset(silenceTimeout)
		heard()
		out, ok, err := a.take(wire.AttachKind(raw[0]), raw[1:])
		if err != nil {
			return false, err
		}
		if ok && (!yield(out, nil) || out.Exit != nil) {
			_ = conn.Close(websocket.StatusNormalClosure, "")
			return true, nil
		}
	}
}

func (a *Attachment) dial(ctx context.Context, quiet *time.Timer) (*websocket.Conn, error) {
	a.mu.Lock()
	query := url.Values{"writer": {a.writer}, "written": {strconv.FormatInt(a.taken, 10)}}
	a.mu.Unlock()
	if a.after > 0 {
		query.Set("after", strconv.FormatUint(a.after, 10))
	}
	header := http.Header{"User-Agent": {a.c.userAgent}}
	if a.c.key != "" {
		header.Set("Authorization", "Bearer "+a.c.key)
	}
	conn, answer, err := websocket.Dial(ctx, a.c.at(call{path: a.path, query: query}).String(), &websocket.DialOptions{
		HTTPClient: a.c.http, HTTPHeader: header,
		OnPingReceived: func(context.Context, []byte) bool { return quiet.Reset(silenceTimeout) },
	})
	if err != nil && answer != nil {
		defer answer.Body.Close()
		return nil, errorOf(answer)
	}
	if e, ok := errors.AsType[*url.Error](err); ok { // without the address
		err = e.Err
	}
	return conn, err
}

// closed is the error of a close message, as the answer to a request would have it; other errors stay.
func closed(err error) error {
	e, ok := errors.AsType[websocket.CloseError](err)
	if !ok || e.Code < closeBase {
		return err
	}
	status := int(e.Code) - closeBase
	return &Error{Status: status, Code: codeOfStatus(status), Title: http.StatusText(status), Detail: e.Reason}
}

// take handles one message; ok means that it is output.
func (a *Attachment) take(kind wire.AttachKind, data []byte) (out ProcessOutput, ok bool, err error) {
	if kind == wire.AttachRefused {
		a.mu.Lock()
		a.closed, a.unacked, a.sent = true, nil, 0
		a.mu.Unlock()
		signal(a.room)
		return out, false, nil
	}
	if len(data) < 8 {
		return out, false, fmt.Errorf("the farm sent a message of kind %d with %d bytes", kind, len(data))
	}
	number, data := binary.BigEndian.Uint64(data), data[8:]
	out = ProcessOutput{Kind: kind, Number: number, Data: data}
	switch kind {
	case wire.AttachTaken:
		a.mu.Lock()
		n := min(max(int64(number)-a.taken, 0), int64(a.sent)) //nolint:gosec // a farm that lies gets what it asks for
		a.taken += n
		a.unacked, a.sent = a.unacked[n:], a.sent-int(n)
		a.mu.Unlock()
		signal(a.room)
		return out, false, nil
	case wire.AttachExit:
		out.Exit, out.Data = &wire.ExitData{}, nil
		if err := json.Unmarshal(data, out.Exit); err != nil {
			return out, false, fmt.Errorf("read the exit: %w", err)
		}
	case wire.AttachStdout, wire.AttachStderr, wire.AttachDropped:
	default:
		return out, false, nil // of a newer farm
	}
	a.after = number
	return out, true, nil
}

// send sends input and size as they come, until ctx ends.
func (a *Attachment) send(ctx context.Context, conn *websocket.Conn) {
	for {
		message := a.message()
		if message == nil {
			select {
			case <-a.changed:
			case <-ctx.Done():
				return
			}
			continue
		}
		if conn.Write(ctx, websocket.MessageBinary, message) != nil {
			return // the reader gets the error, too
		}
	}
}

// message is what is to be sent next; nil: nothing.
func (a *Attachment) message() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.size != nil && !a.sized:
		a.sized = true
		return wire.AppendAttachSize(nil, *a.size)
	case a.sent < len(a.unacked):
		part := a.unacked[a.sent:min(len(a.unacked), a.sent+wire.MaxAttachBytes)]
		a.sent += len(part)
		return append([]byte{byte(wire.AttachStdin)}, part...)
	case a.end && !a.endSent && !a.closed:
		a.endSent = true
		return []byte{byte(wire.AttachEnd)}
	}
	return nil
}

package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxProcesses bounds the answer of a list: farm.Limits.MaxProcesses and those that have ended.
const maxProcesses = 1000

// maxArguments bounds the arguments of processes, and so the JSON values of one. Linux starts none with more.
const maxArguments = 1 << 18

// runningValues bounds the JSON values of a process that runs.
const runningValues = 16

// stopTimeout bounds the end of a process, which may ignore SIGTERM.
const stopTimeout = time.Minute

// Relay sends a request to the agent as it is, and returns its answer, whatever its status. It is for the live path, whose other end checks
// the answer.
func (c *Client) Relay(ctx context.Context, method, path string, query url.Values, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	req.URL.RawQuery = query.Encode()
	res, err := c.live.Transport.RoundTrip(req)
	if err != nil {
		return nil, unavailable(err, "The connection to the sandbox is broken.")
	}
	return res, nil
}

// Live talks to the live part of an agent over any way to it.
type Live struct{ caller }

// NewLive makes a Live whose requests way carries.
func NewLive(way http.RoundTripper) Live {
	return Live{caller{&http.Client{Transport: way}}}
}

// Live is the live part of the agent, over this session.
func (c *Client) Live() Live { return NewLive(c.live.Transport) }

func processPath(id string) string { return agent.ProcessesPath + "/" + url.PathEscape(id) }

// process makes a call that is answered with a process.
func (l Live) process(ctx context.Context, timeout time.Duration, method, path string, query url.Values, in any) (farm.Process, error) {
	var p farm.Process
	if err := l.callFor(ctx, timeout, method, path, query, in, answer{&p, maxJSON, maxArguments}); err != nil {
		return p, err
	}
	return p, checkProcess(p)
}

// checkProcess checks what an agent says of a process.
func checkProcess(p farm.Process) error {
	exited := p.State == farm.ProcessExited
	if !farm.ValidID(farm.ProcessPrefix, p.ID) || !exited && p.State != farm.ProcessRunning || exited != (p.ExitCode != nil) || p.Terminal != nil && !p.Terminal.Valid() ||
		p.PID < 0 || p.Restarts < 0 || p.Restart != "" && !slices.Contains(farm.Restarts(), p.Restart) {
		return farm.Errorf(farm.CodeInternal, "the agent described a process that cannot be")
	}
	return nil
}

// StartProcess starts a process. Starting an id again returns the process that it names. CodeConflict: its fingerprint is another.
func (l Live) StartProcess(ctx context.Context, id string, spec farm.ProcessSpec) (farm.Process, error) {
	return l.process(ctx, callTimeout, http.MethodPut, processPath(id), nil, spec)
}

// Processes lists the processes, the oldest first.
func (l Live) Processes(ctx context.Context) ([]farm.Process, error) {
	var found []farm.Process
	if err := l.callFor(ctx, callTimeout, http.MethodGet, agent.ProcessesPath, nil, nil, answer{&found, maxJSON, maxArguments}); err != nil {
		return nil, err
	}
	if len(found) > maxProcesses {
		return nil, farm.Errorf(farm.CodeInternal, "the agent listed %d processes", len(found))
	}
	for _, p := range found {
		if err := checkProcess(p); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Running lists the processes that run in the sandbox, whoever started them, by pid: the first farm.MaxRunning.
func (l Live) Running(ctx context.Context) ([]farm.RunningProcess, error) {
	var found []farm.RunningProcess
	if err := l.callFor(ctx, callTimeout, http.MethodGet, agent.RunningPath, nil, nil, list(&found, farm.MaxRunning, runningValues)); err != nil {
		return nil, err
	}
	wrong := func(p farm.RunningProcess) bool {
		known := p.Owner == "" || p.Owner == farm.OwnerKernel || farm.ValidID(farm.ProcessPrefix, p.Owner) || farm.ValidID(farm.JobPrefix, p.Owner)
		return !known || p.PID < 1 || p.Parent < 0 || len(p.Command) > farm.MaxRunningCommand || p.CPUSeconds < 0 || p.MemoryBytes < 0
	}
	if len(found) > farm.MaxRunning || slices.ContainsFunc(found, wrong) {
		return nil, farm.Errorf(farm.CodeInternal, "the agent listed processes that cannot be")
	}
	return found, nil
}

// SignalRunning sends a signal, by its name, to one process that runs in the sandbox, whoever started it.
func (l Live) SignalRunning(ctx context.Context, pid int, signal string) error {
	return l.call(ctx, callTimeout, http.MethodPost, agent.RunningPath+"/"+strconv.Itoa(pid)+"/signal", url.Values{"signal": {signal}}, nil, nil)
}

// Use is what the sandbox uses.
func (l Live) Use(ctx context.Context) (farm.SandboxUse, error) {
	var u farm.SandboxUse
	if err := l.call(ctx, callTimeout, http.MethodGet, agent.UsePath, nil, nil, &u); err != nil {
		return u, err
	}
	if u.Cores < 0 || u.CPU < 0 || u.MemoryBytes < 0 || u.CacheBytes < 0 || u.CacheBytes > u.MemoryBytes || u.DiskBytes < 0 {
		return u, farm.Errorf(farm.CodeInternal, "the agent reports an impossible use of its sandbox")
	}
	return u, nil
}

// Process describes a process.
func (l Live) Process(ctx context.Context, id string) (farm.Process, error) {
	return l.process(ctx, callTimeout, http.MethodGet, processPath(id), nil, nil)
}

// EndProcess stops a process, waits for its end, and has the agent forget it. It returns how it ended.
func (l Live) EndProcess(ctx context.Context, id string) (farm.Process, error) {
	return l.process(ctx, stopTimeout, http.MethodDelete, processPath(id), nil, nil)
}

// SignalProcess sends a signal, by its name, to a process and its group.
func (l Live) SignalProcess(ctx context.Context, id, signal string) (farm.Process, error) {
	return l.process(ctx, callTimeout, http.MethodPost, processPath(id)+"/signal", url.Values{"signal": {signal}}, nil)
}

// ResizeProcess sets the size of a process's terminal.
func (l Live) ResizeProcess(ctx context.Context, id string, size farm.TerminalSize) (farm.Process, error) {
	query := url.Values{"cols": {strconv.Itoa(size.Cols)}, "rows": {strconv.Itoa(size.Rows)}}
	return l.process(ctx, callTimeout, http.MethodPost, processPath(id)+"/resize", query, nil)
}

// WriteProcess writes to the input of a process until in ends, and ends the input then if it is asked to. It returns how many bytes were
// written.
func (l Live) WriteProcess(ctx context.Context, id string, in io.Reader, end bool) (int64, error) {
	query := url.Values{}
	if end {
		query.Set("close", "1")
	}
	return l.written(ctx, http.MethodPost, processPath(id)+"/stdin", query, in)
}

// WriteProcessFrom writes p, of at most agent.InputBytes, to the input of a process, and ends the input then if it is asked to. from is the position of
// p among all that the writer of this name writes, where the end counts as one byte. What was written before is skipped, so a call can be sent
// again. It returns the position that the writer has come to: less than the end of p if the process does not read.
func (l Live) WriteProcessFrom(ctx context.Context, id, writer string, from int64, p []byte, end bool) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	query := url.Values{"from": {strconv.FormatInt(from, 10)}}
	if end {
		query.Set("close", "1")
	}
	written, err := l.written(ctx, http.MethodPut, processPath(id)+"/writers/"+url.PathEscape(writer), query, bytes.NewReader(p))
	if last := from + int64(len(p)); err == nil && (written < from || written > last+1) {
		err = farm.Errorf(farm.CodeInternal, "the agent wrote up to %d, where %d was the beginning and %d the end", written, from, last)
	}
	return written, err
}

// written sends what is to be written, and returns how much the answer says was.
func (l Live) written(ctx context.Context, method, path string, query url.Values, in io.Reader) (int64, error) {
	res, err := l.do(ctx, method, path, query, in)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	var out struct {
		Written int64 `json:"written"`
	}
	err = decode(ctx, res, short(&out))
	return out.Written, err
}

// LeaveProcess says that a reader of the output will not come back, so that the process does not wait for it.
func (l Live) LeaveProcess(ctx context.Context, id, reader string) error {
	return l.call(ctx, callTimeout, http.MethodDelete, processPath(id)+"/output", url.Values{"reader": {reader}}, nil, nil)
}

// ProcessOutput reads one answer with output of a process, from a piece on (0: the first that is kept). It ends with io.EOF after some 512 KiB,
// and after the exit.
func (l Live) ProcessOutput(ctx context.Context, id, reader string, from uint64) (*ProcessOutput, error) {
	ctx, cancel := context.WithCancel(ctx)
	query := fromQuery(from)
	query.Set("reader", reader)
	res, err := l.do(ctx, http.MethodGet, processPath(id)+"/output", query, nil) //nolint:bodyclose // ProcessOutput.Close closes it
	if err != nil {
		cancel()
		return nil, err
	}
	if kind := res.Header.Get("Content-Type"); kind != agent.FramesType {
		cancel()
		_ = res.Body.Close()
		return nil, farm.Errorf(farm.CodeInternal, "the agent answered with %q instead of output", farm.Shorten(kind))
	}
	return &ProcessOutput{body: res.Body, r: bufio.NewReader(res.Body), next: from, cancel: cancel}, nil
}

// ProcessOutput is an answer with output of a process. It is not safe for concurrent use.
type ProcessOutput struct {
	body   io.Closer
	r      *bufio.Reader
	next   uint64 // 0: any
	cancel context.CancelFunc
}

// Next returns the next piece; io.EOF at the end of the answer. admit is called with the size of a piece before it is allocated; its error is
// returned as it is. An answer that breaks off is unavailable.
func (o *ProcessOutput) Next(admit func(bytes int) error) (farm.Output, error) {
	var refused error
	frame, err := agent.ReadAdmittedFrame(o.r, func(bytes int) error {
		if bytes > maxPiece {
			refused = farm.Errorf(farm.CodeInternal, "the agent sent a piece of output of %d bytes", bytes)
		} else {
			refused = admit(bytes)
		}
		return refused
	})
	switch {
	case refused != nil:
		return farm.Output{}, refused
	case errors.Is(err, io.EOF):
		return farm.Output{}, io.EOF
	case err != nil:
		return farm.Output{}, unavailable(err, "The connection to the sandbox is broken.")
	}
	out := farm.Output{Seq: frame.Seq, Data: frame.Payload}
	switch frame.Type {
	case agent.FrameStdout:
		out.Kind = farm.OutputStdout
	case agent.FrameStderr:
		out.Kind = farm.OutputStderr
	case agent.FrameDropped:
		out.Kind, out.Data = farm.OutputDropped, nil
	case agent.FrameFinal:
		out.Kind, out.Data = farm.OutputExit, nil
		if out.End, err = endOf(frame.Payload); err != nil {
			return farm.Output{}, err
		}
	default:
		return farm.Output{}, farm.Errorf(farm.CodeInternal, "the agent sent a frame of type %d as output", frame.Type)
	}
	if o.next != 0 && frame.Seq != o.next && out.Kind != farm.OutputDropped && out.Kind != farm.OutputExit || frame.Seq == 0 && out.Kind != farm.OutputDropped {
		return farm.Output{}, farm.Errorf(farm.CodeInternal, "the agent sent piece %d where %d was due", frame.Seq, o.next)
	}
	o.next = frame.Seq + 1
	return out, nil
}

// maxPiece bounds one piece of output; agents send 64 KiB, and an end of some hundred bytes.
const maxPiece = 1 << 20

// endOf reads how a process ended: an Outcome with few values.
func endOf(payload []byte) (*farm.ProcessEnd, error) {
	var out agent.Outcome
	if budget.Values(payload) > fewValues {
		return nil, farm.Errorf(farm.CodeInternal, "the agent sent an end of a process with more than %d values", fewValues)
	}
	if err := json.NewDecoder(bytes.NewReader(payload)).Decode(&out); err != nil {
		return nil, farm.Errorf(farm.CodeInternal, "the agent sent an end of a process that cannot be read")
	}
	end := &farm.ProcessEnd{ExitCode: &out.ExitCode, TimedOut: out.TimedOut, Stopped: out.Canceled, OutOfMemory: out.OutOfMemory}
	if end.OutOfMemory && out.Error != nil {
		end.Reason = out.Error.Value
	}
	return end, nil
}

// Close ends the answer.
func (o *ProcessOutput) Close() {
	o.cancel()
	_ = o.body.Close()
}

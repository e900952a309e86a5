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
	"strconv"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxExecutions bounds the executions that an agent may list, and executionValues the JSON values of each.
const maxExecutions, executionValues = 8192, 8

// Info returns the agent's version, languages, kernels and memory.
func (c *Client) Info(ctx context.Context) (agent.Info, error) {
	var info agent.Info
	err := c.call(ctx, callTimeout, http.MethodGet, "/v1/info", nil, nil, &info)
	return info, err
}

// Start starts an execution. Starting an id again changes nothing and returns no error.
func (c *Client) Start(ctx context.Context, id string, spec agent.Spec) error {
	return c.call(ctx, callTimeout, http.MethodPut, executionPath(id), nil, spec, nil)
}

// Ack lets the agent drop frames up to and including seq; a full log then accepts output again.
func (c *Client) Ack(ctx context.Context, id string, seq uint64) error {
	query := url.Values{"seq": {strconv.FormatUint(seq, 10)}}
	return c.call(ctx, callTimeout, http.MethodPost, executionPath(id)+"/ack", query, nil, nil)
}

// Stop interrupts an execution and kills it after its grace period. It has no effect on one that has ended.
func (c *Client) Stop(ctx context.Context, id string, reason agent.StopReason) error {
	query := url.Values{"reason": {string(reason)}}
	return c.call(ctx, callTimeout, http.MethodPost, executionPath(id)+"/stop", query, nil, nil)
}

// Forget drops the frames of an execution; its outcome stays. A running one is killed. An unknown id is no error, and can no longer be
// started.
func (c *Client) Forget(ctx context.Context, id string) error {
	return c.call(ctx, callTimeout, http.MethodDelete, executionPath(id), nil, nil, nil)
}

// ForgetAll forgets several executions in one call. An agent that is too old for it returns an error.
func (c *Client) ForgetAll(ctx context.Context, ids ...string) error {
	return c.call(ctx, callTimeout, http.MethodDelete, "/v1/executions", url.Values{"id": ids}, nil, nil)
}

// Executions lists the executions that run or have frames.
func (c *Client) Executions(ctx context.Context) ([]agent.Execution, error) {
	return c.executions(ctx, nil)
}

// Execution describes an execution, also one that only the outcome is left of; nil if it was never started.
func (c *Client) Execution(ctx context.Context, id string) (*agent.Execution, error) {
	list, err := c.executions(ctx, url.Values{"id": {id}})
	for i := range list { // an agent that is older than the query lists all
		if list[i].ID == id {
			return &list[i], err
		}
	}
	return nil, err
}

func (c *Client) executions(ctx context.Context, query url.Values) ([]agent.Execution, error) {
	var found []agent.Execution
	err := c.callFor(ctx, callTimeout, http.MethodGet, "/v1/executions", query, nil, list(&found, maxExecutions, executionValues))
	if err == nil && len(found) > maxExecutions {
		return nil, farm.Errorf(farm.CodeInternal, "the agent listed %d executions", len(found))
	}
	return found, err
}

// Interrupt interrupts the running executions of a context as Stop with StopInterrupt does; "" means all contexts.
func (c *Client) Interrupt(ctx context.Context, kernel string) error {
	return c.call(ctx, callTimeout, http.MethodPost, "/v1/interrupt", url.Values{"context": {kernel}}, nil, nil)
}

// RestartKernel kills the kernel of a context and starts a new one; "" means all. It returns when the new one is ready.
func (c *Client) RestartKernel(ctx context.Context, kernel string) error {
	if kernel == "" {
		kernel = "*"
	}
	return c.call(ctx, kernelTimeout, http.MethodPost, "/v1/kernels/"+url.PathEscape(kernel)+"/restart", nil, nil, nil)
}

// StartKernel starts the kernel of a context in advance. It returns when the kernel is ready.
func (c *Client) StartKernel(ctx context.Context, kernel, language string) error {
	query := url.Values{"language": {language}}
	return c.call(ctx, kernelTimeout, http.MethodPost, "/v1/kernels/"+url.PathEscape(kernel)+"/start", query, nil, nil)
}

// WarmKernel imports modules in the running, idle Python kernel of a context, without changing the names and history of its
// code. It returns the modules that are loaded then. Modules missing from the image are left out; for other kernels it returns none.
func (c *Client) WarmKernel(ctx context.Context, kernel string, modules ...string) ([]string, error) {
	var loaded []string
	query := url.Values{"module": modules}
	err := c.call(ctx, kernelTimeout, http.MethodPost, "/v1/kernels/"+url.PathEscape(kernel)+"/warm", query, nil, &loaded)
	return loaded, err
}

func executionPath(id string) string { return "/v1/executions/" + url.PathEscape(id) }

// Frames reads the frames of one execution in order. It is not safe for concurrent use, but Close may be called at any time.
type Frames struct {
	body   io.Closer
	r      *bufio.Reader
	from   uint64
	next   uint64
	done   bool
	cancel context.CancelFunc
}

// Frames reads an execution's frames from a sequence number on (0 and 1 both mean the first), including future ones; beyond the final
// frame it reads that one again. CodeConflict: the frames have been dropped; Execution tells which is the first that is left. ctx bounds
// the whole stream.
func (c *Client) Frames(ctx context.Context, id string, from uint64) (*Frames, error) {
	ctx, cancel := context.WithCancel(ctx)
	from = max(from, 1)
	res, err := c.do(ctx, http.MethodGet, executionPath(id)+"/frames", fromQuery(from), nil) //nolint:bodyclose // Frames.Close closes it
	if err != nil {
		cancel()
		return nil, err
	}
	return newFrames(res, from, cancel), nil
}

// Run is Start and Frames in one call.
func (c *Client) Run(ctx context.Context, id string, spec agent.Spec, from uint64) (*Frames, error) {
	raw, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	whole := ctx
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(callTimeout, cancel)
	from = max(from, 1)
	res, err := c.do(ctx, http.MethodPut, executionPath(id), fromQuery(from), bytes.NewReader(raw))
	timer.Stop()
	if err != nil {
		cancel()
		return nil, err
	}
	if res.Header.Get("Content-Type") == agent.FramesType {
		return newFrames(res, from, cancel), nil
	}
	defer cancel() // an agent that only starts is older
	defer func() { _ = res.Body.Close() }()
	if err := decode(ctx, res, short(nil)); err != nil {
		return nil, err
	}
	return c.Frames(whole, id, from)
}

func newFrames(res *http.Response, from uint64, cancel context.CancelFunc) *Frames {
	return &Frames{body: res.Body, r: bufio.NewReaderSize(res.Body, 64<<10), from: from, next: from, cancel: cancel}
}

func fromQuery(from uint64) url.Values { return url.Values{"from": {strconv.FormatUint(from, 10)}} }

// Next returns the next frame, and io.EOF after the final one. A stream that breaks before that is unavailable.
func (f *Frames) Next() (agent.Frame, error) { return f.NextAdmitted(nil) }

// NextAdmitted is Next that calls admit, if it is not nil, with the size of the frame's payload before it allocates it. An error of admit
// ends the stream and is returned as it is.
func (f *Frames) NextAdmitted(admit func(bytes int) error) (agent.Frame, error) {
	if f.done {
		return agent.Frame{}, io.EOF
	}
	var refused error
	frame, err := agent.ReadAdmittedFrame(f.r, func(bytes int) error {
		if admit != nil {
			refused = admit(bytes)
		}
		return refused
	})
	if refused != nil {
		return agent.Frame{}, refused
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return agent.Frame{}, unavailable(err, "The connection to the sandbox is broken.")
	}
	again := frame.Type == agent.FrameFinal && frame.Seq > 0 && frame.Seq < f.next && f.next == f.from
	if frame.Seq != f.next && !again {
		return agent.Frame{}, farm.Errorf(farm.CodeInternal, "agent sent frame %d where %d was due", frame.Seq, f.next)
	}
	f.next++
	f.done = frame.Type == agent.FrameFinal
	return frame, nil
}

// Close stops reading. The execution continues.
func (f *Frames) Close() error {
	f.cancel()
	return f.body.Close()
}

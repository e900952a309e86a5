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

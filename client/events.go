package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
)

// silenceTimeout is how long a stream without a byte is not yet broken: the farm sends a heartbeat every 15 seconds.
const silenceTimeout = 60 * time.Second

var errSilent = errors.New("the event stream is silent")

// Events streams the events of a job as they happen, from the first one or from the one after the id in after, until its
// final state. If the connection breaks, it reconnects and continues after the last event; a farm that does not answer is asked again for about a
// minute. An error ends it.
func (c *Client) Events(ctx context.Context, jobID, after string) iter.Seq2[wire.Event, error] {
	in := call{method: http.MethodGet, path: []string{"v1", "jobs", jobID, "events"}}
	return c.stream(ctx, "follow job "+jobID, in, after, func(e wire.Event) bool { return e.Name == "state" && finalEvent(e.Data) })
}

// stream reads a stream of events from the one after an id on, and reconnects when it breaks. It ends after a final event.
func (c *Client) stream(ctx context.Context, what string, in call, after string, final func(wire.Event) bool) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		for broken := (outage{}); ; {
			before, opened := after, time.Now()
			done, err := c.follow(ctx, in, &after, final, yield)
			if done {
				return
			}
			if after != before || time.Since(opened) > silenceTimeout { // else the connection was of no use
				broken = outage{}
			}
			if err := c.outlast(ctx, &broken, err); err != nil {
				yield(wire.Event{}, fmt.Errorf("%s: %w", what, err))
				return
			}
		}
	}
}

// follow reads one stream. done means that an event was the final one, or that the reader has stopped.
func (c *Client) follow(ctx context.Context, in call, after *string, final func(wire.Event) bool, yield func(wire.Event, error) bool) (done bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(silenceTimeout, func() { cancel(errSilent) })
	defer quiet.Stop()

	in.header = http.Header{"Accept": {"text/event-stream"}}
	if *after != "" {
		in.header.Set("Last-Event-Id", *after)
	}
	r, err := c.send(ctx, in)
	if err != nil {
		return false, err
	}
	defer r.Body.Close()
	frames := newFrames(&activityReader{r: r.Body, quiet: quiet})
	frames.last = *after
	for {
		quiet.Reset(silenceTimeout)
		got, err := frames.next()
		if err != nil {
			if errors.Is(context.Cause(ctx), errSilent) {
				err = errSilent
			}
			return false, err
		}
		quiet.Stop() // the time that the caller takes does not count
		event := wire.Event{ID: got.id, Name: got.name, Data: json.RawMessage(got.data)}
		*after = got.id
		if !yield(event, nil) {
			return true, nil
		}
		if final(event) {
			return true, nil
		}
	}
}

// activityReader restarts a timer with every byte that arrives.
type activityReader struct {
	r     io.Reader
	quiet *time.Timer
}

func (a *activityReader) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	if n > 0 {
		a.quiet.Reset(silenceTimeout)
	}
	return n, err
}

func finalEvent(data []byte) bool {
	var state wire.StateData
	if err := json.Unmarshal(data, &state); err != nil {
		return false
	}
	job := wire.Job{State: state.State}
	return job.Final()
}

// maxEventBytes bounds one server-sent event.
const maxEventBytes = 32 << 20

var errEventTooLong = errors.New("an event is longer than 32 MiB")

// frame is a server-sent event.
type frame struct {
	id   string
	name string
	data []byte
}

// frames reads server-sent events.
type frames struct {
	r    *bufio.Reader
	last string // the last id seen
}

func newFrames(r io.Reader) *frames { return &frames{r: bufio.NewReaderSize(r, 64<<10)} }

// next returns the next event with data, or io.EOF. An incomplete event at the end is dropped, as the format requires.
func (f *frames) next() (frame, error) {
	var out frame
	has := false
	for {
		line, err := f.line(maxEventBytes - len(out.data))
		if err != nil {
			return frame{}, err
		}
		if len(line) == 0 {
			if has {
				out.id = f.last
				return out, nil
			}
			out = frame{}
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "id":
			if !bytes.ContainsRune(value, 0) {
				f.last = string(value)
			}
		case "event":
			out.name = string(value)
		case "data":
			if has {
				out.data = append(out.data, '\n')
			}
			out.data = append(out.data, value...)
			has = true
		}
	}
}

// line returns the next line without its line end.
func (f *frames) line(limit int) ([]byte, error) {
	var whole []byte
	for {
		part, err := f.r.ReadSlice('\n')
		whole = append(whole, part...)
		if len(whole) > limit {
			return nil, errEventTooLong
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return nil, err
		}
		return bytes.TrimRight(whole, "\r\n"), nil
	}
}

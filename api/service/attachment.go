package service

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
)

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
// position behind what the process has: less than all if it did not read for a while. If the worker ends, it continues through another one, and
// nothing is written twice.
func (a *Attachment) Write(ctx context.Context, from int64, p []byte, end bool) (position int64, err error) {
	err = a.reach(ctx, func(agent relay.Agent) (err error) {
		position, err = agent.WriteProcessFrom(ctx, a.id, a.writer, from, p, end)
		return err
	})
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

// reach calls f until the sandbox can be reached, or for outputPatience. f has no effect twice.
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
		case time.Since(broken) > outputPatience:
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

package execution

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// stageBytes is how much of an execution's log the worker gathers before it stages it in S3: enough that short executions
// are never staged, little enough for the memory of worker and agent.
const stageBytes = 4 << 20

// stageLog makes the log of a long execution durable: frames are in the object store before the agent may forget them. A worker that
// takes over reads the staged part again and the rest from the agent, so no output is lost.
type stageLog struct {
	x      *Runner
	job    *farm.Job
	suffix string // of the execution's id: "" for the job's own, else that of an install before it
	saved  checkpoint
	state  staged       // what is staged of this log
	buffer bytes.Buffer // frames after state.Seq
	last   uint64       // the last frame in the buffer
}

// staged says how much of a log is in the object store.
type staged struct {
	Chunks int    `json:"chunks"`
	Seq    uint64 `json:"seq"` // the last frame in the chunks
}

// checkpoint is what the record of a job remembers of its stage logs.
type checkpoint struct {
	staged
	Installs map[string]staged `json:"installs,omitempty"` // by suffix
}

// loadStageLog returns the log of one of a job's executions, as an earlier attempt left it. installs says that the job installs
// packages before its own work: then this attempt may have staged their logs, and the checkpoint keeps what it says of them.
func (x *Runner) loadStageLog(ctx context.Context, job *farm.Job, suffix string, installs bool) (*stageLog, error) {
	l := &stageLog{x: x, job: job, suffix: suffix}
	if job.Attempt < 2 && !installs { // nothing can be staged
		return l, nil
	}
	data, err := x.store.LoadCheckpoint(ctx, job.Ref())
	if err != nil {
		return nil, fmt.Errorf("load checkpoint: %w", err)
	}
	if len(data) > 0 {
		if err := json.Unmarshal(data, &l.saved); err != nil {
			return nil, fmt.Errorf("read checkpoint: %w", err)
		}
	}
	if l.state = l.saved.staged; suffix != "" {
		l.state = l.saved.Installs[suffix]
	}
	l.last = l.state.Seq
	return l, nil
}

func (l *stageLog) prefix() string { return fmt.Sprintf("staging/%s/%s/", l.job.Tenant, l.job.ID) }

func (l *stageLog) key(chunk int) string {
	return fmt.Sprintf("%slog%s-%06d", l.prefix(), l.suffix, chunk)
}

// add takes a frame. When stageBytes have gathered it stages them; then the agent may forget frames up to acked. Otherwise acked is 0.
func (l *stageLog) add(ctx context.Context, f agent.Frame) (acked uint64, err error) {
	l.buffer.Write(agent.AppendFrameHeader(l.buffer.AvailableBuffer(), f))
	l.buffer.Write(f.Payload)
	l.last = f.Seq
	if l.buffer.Len() < stageBytes {
		return 0, nil
	}
	err = l.x.retry(ctx, func(ctx context.Context) error {
		_, err := l.x.blobs.Put(ctx, l.key(l.state.Chunks), bytes.NewReader(l.buffer.Bytes()), int64(l.buffer.Len()), blob.PutOptions{ContentType: "application/octet-stream"})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("stage output: %w", err)
	}
	if err := l.save(ctx, staged{Chunks: l.state.Chunks + 1, Seq: f.Seq}); err != nil {
		return 0, err
	}
	l.buffer.Reset()
	return f.Seq, nil
}

// save writes the checkpoint.
func (l *stageLog) save(ctx context.Context, now staged) error {
	if l.suffix == "" {
		l.saved.staged = now
	} else {
		if l.saved.Installs == nil {
			l.saved.Installs = map[string]staged{}
		}
		l.saved.Installs[l.suffix] = now
	}
	data, err := json.Marshal(l.saved)
	if err != nil {
		return fmt.Errorf("encode checkpoint: %w", err)
	}
	if err := l.x.store.Checkpoint(ctx, l.job.Ref(), l.job.Attempt, data); err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	l.state = now
	return nil
}

// replay calls each with every frame of the log, from the first.
func (l *stageLog) replay(ctx context.Context, each func(agent.Frame) error) error {
	for chunk := range l.state.Chunks {
		r, _, err := l.x.blobs.Get(ctx, l.key(chunk), 0, 0)
		if err != nil {
			return fmt.Errorf("read staged output: %w", err)
		}
		err = errors.Join(eachFrame(bufio.NewReaderSize(r, 1<<20), each), r.Close())
		if err != nil {
			return err
		}
	}
	return eachFrame(bufio.NewReader(bytes.NewReader(l.buffer.Bytes())), each)
}

func eachFrame(r *bufio.Reader, each func(agent.Frame) error) error {
	for {
		f, err := agent.ReadFrame(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read staged frame: %w", err)
		}
		if err := each(f); err != nil {
			return err
		}
	}
}

// whole writes one stream of the output with this index, from its beginning.
func (l *stageLog) whole(ctx context.Context, index int, stream agent.FrameType, to io.Writer) error {
	command := 0
	began := false
	return l.replay(ctx, func(f agent.Frame) error {
		switch f.Type {
		case agent.FrameCommandStart:
			if began {
				command++
			}
			began = true
		case stream:
			if command == index {
				_, err := to.Write(f.Payload)
				return err
			}
		default:
		}
		return nil
	})
}

// drop removes all staged logs of the job.
func (l *stageLog) drop(ctx context.Context) {
	if l == nil || l.state.Chunks == 0 && l.saved.Chunks == 0 && len(l.saved.Installs) == 0 {
		return
	}
	if _, err := l.x.blobs.DeletePrefix(ctx, l.prefix()); err != nil {
		l.x.log.WarnContext(ctx, "staged output was not removed", "job_id", l.job.ID, "error", err)
	}
}

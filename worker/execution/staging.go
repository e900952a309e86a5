package execution

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/retry"
)

const (
	// ackBytes and ackFrames are how much of an execution's log may be unacknowledged. They are less than the agent's log holds (agent.LogBytes
	// and 65,536 frames), so the code runs on while a snapshot is written. Shorter executions are never staged.
	ackBytes  = agent.AckBytes
	ackFrames = 1 << 15
	// maxSnapshot bounds each piece of a snapshot, far above what is written.
	maxSnapshot = 256 << 20
	// takeAhead of a piece is allocated before it is read: the head or tail of a stream, or a displayed value, has no more.
	takeAhead = 1 << 20
)

// staging lets the agent of a long execution forget what it has sent: the full parts of long outputs are in the object store, as
// parts of their artifacts, and a snapshot of the collector has the rest. A worker that takes over begins with the snapshot and reads
// on from the agent, so no output is lost, and none is there twice.
type staging struct {
	x      *Runner
	job    *farm.Job
	suffix string // of the execution's id: "" for the job's own, else that of an install before it
	saved  checkpoint
	slot   int    // of the next snapshot: 0 or 1, so that the last one stays until the next one is complete
	acked  uint64 // the last frame in a snapshot that the checkpoint names
	bytes  int    // of frames since then
	frames int
}

// checkpoint is what the record of a job remembers: the names of its snapshots, by the suffixes of its executions. A worker
// writes snapshots under names of its own, so one that was taken over replaces none that is in use.
type checkpoint map[string]string

// resume prepares the staging of one of a job's executions, and brings its collector to where an earlier attempt left it. installs
// says that the job installs packages before its own work: then this attempt may have staged them, and the checkpoint keeps what it
// says of them.
func (x *Runner) resume(ctx context.Context, e *execution, suffix string, installs bool) error {
	s := &staging{x: x, job: e.job, suffix: suffix, saved: checkpoint{}}
	e.staged = s
	if e.job.Attempt < 2 && !installs { // nothing can be staged
		return nil
	}
	var data []byte
	err := x.retry(ctx, func(ctx context.Context) (err error) {
		data, err = x.store.LoadCheckpoint(ctx, e.job.Ref())
		return err
	})
	if err != nil {
		return fmt.Errorf("load checkpoint: %w", err)
	}
	if len(data) > 0 {
		if err := json.Unmarshal(data, &s.saved); err != nil {
			return fmt.Errorf("read checkpoint: %w", err)
		}
	}
	name := s.saved[suffix]
	if name == "" {
		return nil
	}
	err = x.retry(ctx, func(ctx context.Context) error {
		r, _, err := x.blobs.Get(ctx, s.prefix()+name, 0, 0)
		if err != nil {
			return err
		}
		defer func() { _ = r.Close() }()
		return e.collect.restore(r)
	})
	if err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	s.acked = e.collect.seq
	e.storage.reserved = e.collect.kept()
	return nil
}

// prefix begins the keys of a job's snapshots. The scheduler removes what is left of them.
func (s *staging) prefix() string { return snapshotPrefix(s.job.Ref()) }

func snapshotPrefix(job farm.Ref) string {
	return farm.SnapshotsOf(job)
}

// count counts a frame that was taken.
func (s *staging) count(f agent.Frame) {
	s.bytes += len(f.Payload)
	s.frames++
}

// due reports whether the log so far is to be acknowledged.
func (s *staging) due() bool { return s.bytes >= ackBytes || s.frames >= ackFrames }

// acknowledge makes everything that was taken durable, and then lets the agent forget it. Each step can be repeated by this worker or by
// the next one: parts are always the same bytes, a snapshot counts once the checkpoint names it, and the agent keeps all frames
// until the last step.
func (x *Runner) acknowledge(ctx context.Context, e *execution, c *client.Client, id string) error {
	s := e.staged
	if err := x.publish(ctx, e); err != nil { // a takeover does not see these frames again
		return err
	}
	for _, out := range e.collect.current() {
		if err := x.sendParts(ctx, e, out); err != nil {
			return fmt.Errorf("stage output: %w", err)
		}
	}
	open, size, err := e.collect.snapshot()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%d-%d%s", s.job.Attempt, s.slot, s.suffix)
	err = x.retry(ctx, func(ctx context.Context) error {
		_, err := x.blobs.Put(ctx, s.prefix()+name, open(), size, blob.PutOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("stage snapshot: %w", err)
	}
	s.saved[s.suffix] = name
	data, err := json.Marshal(s.saved)
	if err != nil {
		return fmt.Errorf("encode checkpoint: %w", err)
	}
	if err := x.retry(ctx, func(ctx context.Context) error { return x.store.Checkpoint(ctx, s.job.Ref(), s.job.Attempt, data) }); err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	s.slot = 1 - s.slot
	s.acked, s.bytes, s.frames = e.collect.seq, 0, 0
	return s.ack(ctx, c, id)
}

// ack lets the agent forget what is in the last snapshot. After a takeover, and after a connection that broke, the message may have to be repeated.
func (s *staging) ack(ctx context.Context, c *client.Client, id string) error {
	if s.acked == 0 {
		return nil
	}
	if err := c.Ack(ctx, id, s.acked); err != nil {
		return fmt.Errorf("acknowledge output: %w", err)
	}
	return nil
}

// dropOf is drop for later; nil if there is nothing to remove.
func (x *Runner) dropOf(e *execution) func(context.Context) {
	if e.staged == nil || e.collect == nil || !e.staged.snapshots() && !slices.ContainsFunc(e.collect.outputs, func(o *output) bool {
		return slices.ContainsFunc(o.both(), func(s *sink) bool { return e.staged.unfinished(s) })
	}) {
		return nil
	}
	return func(ctx context.Context) { x.drop(ctx, e) }
}

// snapshots reports whether the job may have snapshots.
func (s *staging) snapshots() bool { return len(s.saved) > 0 || s.job.Attempt > 1 }

// unfinished reports whether an upload of a stream may not be completed.
func (s *staging) unfinished(o *sink) bool {
	return o.truncated() && (o.upload != "" && o.artifact == nil || s.job.Attempt > 1)
}

// drop removes what only a takeover needed: the job's snapshots, and uploads of outputs that were not completed.
func (x *Runner) drop(ctx context.Context, e *execution) {
	s := e.staged
	ctx, done := retry.Detached(ctx)
	defer done()
	var err error
	if s.snapshots() {
		_, err = x.blobs.DeletePrefix(ctx, s.prefix())
	}
	for _, out := range e.collect.outputs {
		for _, o := range out.both() {
			if s.unfinished(o) {
				_, abortErr := x.blobs.AbortUploadsOf(ctx, x.artifact(e, o.path, outputType).Key)
				err = errors.Join(err, abortErr)
			}
		}
	}
	if err != nil {
		x.log.WarnContext(ctx, "staged output was not removed", "job_id", s.job.ID, "error", err)
	}
}

package execution

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/retry"
)

const (
	// eventDelay gathers output into one event. It is far below what a reader notices.
	eventDelay = 8 * time.Millisecond
	// attachFor is how long a broken connection to a sandbox is dialled again before the job fails, if its engine answers.
	attachFor = 60 * time.Second
	// maxEndEvents is how many events go with the commit of a job.
	maxEndEvents = 64
	// overrun is how long an execution may take to end after its timeout: interrupt, kill, a new kernel, the list of files.
	overrun = 2 * time.Minute
	// lateEvery is how often output is stored again that the object store did not take.
	lateEvery = 2 * time.Second
	// shortBytes of the output of an execution are handled without a turn.
	shortBytes = 64 << 10
	// frameBytes is what a frame counts at least: one without a payload is work, too.
	frameBytes = 64
	// turnTimeout is how long an execution waits for its turn: an object store that hangs must not hold up one execution after the other.
	turnTimeout = 10 * time.Second
	// steady is how long a connection must have worked for its break to count as the first.
	steady = 5 * time.Second
	// redialPause is how long a broken connection rests before it is dialled again. It doubles up to redialMost while connections last less than steady,
	// whatever came over them: where each is a process of the engine, no tenant pays for it.
	redialPause, redialMost = 300 * time.Millisecond, 5 * time.Second
)

// execution is the code or the commands of a job in a sandbox, from the first frame to the outcome.
type execution struct {
	job      *farm.Job
	request  *farm.Request
	claim    *store.Claim // of the job; nil: the request is kept until the end
	outline  bool         // request is without what is large
	dropped  int64        // bytes that were held for the whole request
	charged  bool         // the result is
	sandbox  *farm.Sandbox
	collect  *collector
	staged   *staging
	late     bool // the object store did not take output; pump tries again
	storage  storage
	deadline *deadline       // nil: none
	cancel   <-chan struct{} // closed when the job is to be cancelled
	started  func(context.Context)
	sent     bool // events were sent
	taken    int  // bytes of frames

	installs []*Installed // what was installed before
}

// execute starts the job's execution in the sandbox, or attaches to it if an earlier attempt started it, and follows it to its end.
// An error means that it could not be followed; how the code ended is in the collector. Once that is known, the agent is not asked again.
func (x *Runner) execute(ctx context.Context, e *execution) error {
	published, err := x.publishedUpTo(ctx, e.job)
	if err != nil {
		return err
	}
	x.collect(e, x.cfg.Limits, published)
	if err := x.resume(ctx, e, "", len(e.installs) > 0); err != nil {
		return err
	}
	if err := x.follow(ctx, e); err != nil {
		return err
	}
	if err := x.chargeArtifacts(ctx, e); err != nil {
		return err
	}
	if e.endsSoon() {
		return nil
	}
	return x.publishLast(ctx, e)
}

// endsSoon reports whether the last events of an execution that has ended can go with the commit: nothing remains to be done before it, and they
// are few and the first of the job.
func (e *execution) endsSoon() bool {
	return !e.sent && e.job.Attempt == 1 && len(e.installs) == 0 && !e.sandbox.OneShot && len(e.collect.outcome.Files) == 0 &&
		e.collect.bytes-eventExtra*len(e.collect.events) <= store.EndEventBytes && len(e.collect.events) <= maxEndEvents
}

// follow attaches to an execution until it has ended.
func (x *Runner) follow(ctx context.Context, e *execution) error {
	if e.job.TimeoutSeconds > 0 && !background(e.request) {
		var stop func()
		limit := time.Duration(e.job.TimeoutSeconds)*time.Second + x.cfg.Grace + overrun
		ctx, e.deadline, stop = withDeadline(ctx, limit, context.DeadlineExceeded)
		defer func() {
			stop()
			e.deadline = nil
		}()
	}
	return x.reattach(ctx, e.sandbox, e.job.ID, func() (moved bool, err error) {
		began, from := time.Now(), e.collect.seq
		err = x.attach(ctx, e)
		return e.collect.seq > from || time.Since(began) > steady, err
	})
}

// collect gives an execution its collector.
func (x *Runner) collect(e *execution, limits farm.Limits, published uint64) {
	e.collect.close()
	e.collect = newCollector(e.job, e.request, limits, published, x.room)
	e.collect.artifact = func(path, contentType string) *farm.Artifact { return x.artifact(e, path, contentType) }
}

// reattach calls attach again when the connection to a sandbox breaks, until nothing new has come for attachFor. moved says that
// attach worked for a while: then the time starts again. The time in which the engine does not answer does not count, up to EngineTimeout: then the
// sandbox is lost.
func (x *Runner) reattach(ctx context.Context, sandbox *farm.Sandbox, job string, attach func() (moved bool, err error)) error {
	var broken, since time.Time // since is broken with the time in which the engine was silent
	for pause := redialPause; ; pause = min(2*pause, redialMost) {
		began := time.Now()
		moved, err := attach()
		if time.Since(began) > steady {
			pause = redialPause
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, store.ErrFenced), errors.Is(err, ErrProtocol):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		if gone, ok := x.node.Gone(ctx, sandbox); ok {
			return gone
		}
		now := time.Now()
		if broken.IsZero() || moved {
			broken, since = now, now
		}
		if now.Sub(since) <= x.cfg.EngineTimeout && !x.node.Answers(ctx) {
			broken = time.Now()
		}
		switch code := farm.CodeOf(err); {
		case time.Since(broken) > attachFor:
			return err
		case code == farm.CodeUnavailable, code == farm.CodeInternal:
		case code == farm.CodeConflict: // the container does not run, and an engine that stops could not say that it is gone
		default:
			return err
		}
		x.log.WarnContext(ctx, "connection to a sandbox broke; dialling again", "job_id", job, "sandbox_id", sandbox.ID, "error", err)
		if err := retry.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// publishedUpTo is the last frame whose events an earlier attempt has sent.
func (x *Runner) publishedUpTo(ctx context.Context, job *farm.Job) (uint64, error) {
	if job.Attempt < 2 {
		return 0, nil
	}
	var last string
	err := x.retry(ctx, func(ctx context.Context) (err error) {
		last, err = x.store.LastEvent(ctx, job.Ref())
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read last event: %w", err)
	}
	seq, _, _ := strings.Cut(last, "-")
	n, err := strconv.ParseUint(seq, 10, 64)
	if err != nil {
		return 0, nil // no event yet
	}
	return n, nil
}

// attach reads frames until the final one, or until the connection breaks.
func (x *Runner) attach(ctx context.Context, e *execution) error {
	c, err := x.node.Connect(ctx, e.sandbox)
	if err != nil {
		return err
	}
	frames, err := x.start(ctx, e, c)
	if err != nil {
		return err
	}
	in := newFrameReader(ctx, frames, x.memory, e.job.Tenant)
	defer in.stop()
	if e.started != nil {
		e.started(ctx)
		e.started = nil
	}
	if err := e.staged.ack(ctx, c, e.job.ID); err != nil {
		return err
	}
	return x.pump(ctx, e, c, in)
}

// run starts an execution, unless it runs, and reads its frames from where the collector is. It skips frames that the agent does not have any
// more: Redis lost the checkpoint of those that were acknowledged, or the agent had no room for so many ended executions.
func (e *execution) run(ctx context.Context, c *client.Client, id string, spec agent.Spec) (*client.Frames, error) {
	frames, err := c.Run(ctx, id, spec, e.collect.seq+1)
	if farm.CodeOf(err) != farm.CodeConflict {
		return frames, err
	}
	known, err := c.Execution(ctx, id)
	if err != nil {
		return nil, err
	}
	if known == nil || known.FirstSeq <= e.collect.seq+1 {
		return nil, fmt.Errorf("%w: it has dropped frame %d, but not those before it", ErrProtocol, e.collect.seq+1)
	}
	e.collect.skip(known.FirstSeq - 1)
	return c.Frames(ctx, id, e.collect.seq+1)
}

// pump moves frames into the collector and events out of it.
func (x *Runner) pump(ctx context.Context, e *execution, c *client.Client, in *frameReader) error {
	timer, late := time.NewTimer(time.Hour), time.NewTicker(lateEvery)
	timer.Stop()
	defer late.Stop()
	waiting := false
	cancel := e.cancel
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-cancel:
			cancel = nil
			if err := c.Stop(ctx, e.job.ID, agent.StopCancel); err != nil {
				return fmt.Errorf("cancel execution: %w", err)
			}
		case <-timer.C:
			waiting = false
			if e.late {
				continue
			}
			e.deadline.pause()
			err := x.publishSoon(ctx, e)
			e.deadline.resume()
			if err != nil {
				return err
			}
		case <-late.C:
			if !e.late {
				continue
			}
			e.deadline.pause()
			err := x.storeLate(ctx, e, c)
			e.deadline.resume()
			if err != nil {
				return err
			}
		case item, ok := <-in.frames:
			if !ok {
				return fmt.Errorf("read execution: %w", io.ErrUnexpectedEOF)
			}
			if item.err != nil {
				return fmt.Errorf("read execution: %w", item.err)
			}
			e.deadline.pause()
			frame := item.frame
			item.frame.Payload = nil // it can go as soon as it is decoded
			done, err := x.take(ctx, e, c, frame)
			e.deadline.resume()
			agent.ReleasePayload(frame)
			in.handled(item)
			if err != nil || done {
				return err
			}
			if len(e.collect.events) > 0 && !waiting {
				timer.Reset(eventDelay)
				waiting = true
			}
		}
	}
}

// publishSoon publishes what came a moment ago.
func (x *Runner) publishSoon(ctx context.Context, e *execution) error {
	defer x.turn(ctx, e, 0)()
	return x.orLater(ctx, e, x.publish(ctx, e))
}

// ErrProtocol says that the agent sent something that no agent of this farm sends.
var ErrProtocol = errors.New("the sandbox's agent broke the protocol")

// take handles one frame. It reports whether the frame was the last; its events are not published yet then.
func (x *Runner) take(ctx context.Context, e *execution, c *client.Client, f agent.Frame) (done bool, err error) {
	defer x.turn(ctx, e, max(len(f.Payload), frameBytes))()
	due, err := x.absorb(ctx, e, f)
	switch {
	case err != nil:
		return false, err
	case f.Type == agent.FrameFinal:
		return true, nil
	case e.late:
		e.collect.holdEvents()
		return false, nil
	case due:
		return false, x.orLater(ctx, e, x.acknowledge(ctx, e, c, e.job.ID))
	case e.collect.bytes >= publishBytes:
		return false, x.orLater(ctx, e, x.publish(ctx, e))
	default:
		return false, nil
	}
}

// turn waits until n more bytes of an execution may be handled, which end calls when they are. Output beyond the first shortBytes is handled for as
// many executions at once as there are threads for Go code, and for one tenant in at most half of those that others leave, beyond one
// (budget.Places). Without this, executions that print as fast as they can are in front of everybody in the queues of the Go scheduler and of the
// kernel, since the process needs more of the cores than its share.
func (x *Runner) turn(ctx context.Context, e *execution, n int) (end func()) {
	if e.taken += n; e.taken <= shortBytes {
		return func() {}
	}
	place := x.turns.Ask(e.job.Tenant)
	timer := time.NewTimer(turnTimeout)
	defer timer.Stop()
	select {
	case <-place.Granted():
	case <-timer.C:
	case <-ctx.Done():
	}
	return place.Leave
}

// orLater lets an execution continue although the object store did not take its output: pump tries again. The agent keeps all frames until
// then, and its log holds the code back when it is full. What waits here is charged.
func (x *Runner) orLater(ctx context.Context, e *execution, err error) error {
	if !errors.Is(err, blob.ErrNoAnswer) || ctx.Err() != nil {
		return err
	}
	x.log.WarnContext(ctx, "the object store does not take the output of a job; it is tried again", "job_id", e.job.ID, "error", err)
	e.late = true
	e.collect.holdEvents()
	return nil
}

// storeLate stores what the object store did not take before.
func (x *Runner) storeLate(ctx context.Context, e *execution, c *client.Client) error {
	err := x.publish(ctx, e)
	if err == nil && x.due(e) {
		err = x.acknowledge(ctx, e, c, e.job.ID)
	}
	e.late = false
	return x.orLater(ctx, e, err)
}

// due reports whether the frames so far are to be acknowledged.
func (x *Runner) due(e *execution) bool {
	return e.staged.due() || slices.ContainsFunc(e.collect.current(), (*sink).partFull)
}

// publishLast publishes the last events of an execution that has ended. They are not worth the job: if the object store does not take
// those that Redis has no room for, the job ends without them, and a note says so.
func (x *Runner) publishLast(ctx context.Context, e *execution) error {
	err := x.publish(ctx, e)
	if !errors.Is(err, blob.ErrNoAnswer) || ctx.Err() != nil {
		return err
	}
	x.log.WarnContext(ctx, "the last events of a job were not stored", "job_id", e.job.ID, "error", err)
	e.collect.take()
	e.collect.chargeEvents()
	e.collect.note("The object store failed, so the last events of the job are missing. The result has its output.")
	return nil
}

// absorb takes one frame into the collector, and stores what it completes: large values, and the outputs of a command. If the object
// store fails for too long, the code runs on, and the job fails when it has ended. due says that the frames so far are to be acknowledged.
func (x *Runner) absorb(ctx context.Context, e *execution, f agent.Frame) (due bool, err error) {
	if f.Type == agent.FrameFinal && f.Seq <= e.collect.seq { // it ended before the frames that an earlier attempt has seen: it was forgotten
		f.Seq = e.collect.seq + 1
	}
	if f.Seq != e.collect.seq+1 {
		return false, fmt.Errorf("%w: frame %d after %d", ErrProtocol, f.Seq, e.collect.seq)
	}
	e.staged.count(f)
	if err := e.collect.add(e.collect.cut(f)); err != nil {
		return false, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	f.Payload = nil // a large value is decoded: it is not needed twice while it is stored
	x.giveUpOutputs(ctx, e)
	err = x.storeDisplays(ctx, e)
	if f.Type == agent.FrameCommandEnd {
		for _, s := range e.collect.current() {
			err = errors.Join(err, x.storeOutput(ctx, e, s))
		}
	}
	if err != nil && ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if err != nil {
		x.log.WarnContext(ctx, "output could not be stored; the job will fail", "job_id", e.job.ID, "error", err)
		e.collect.unstored = err
	}
	return x.due(e), nil
}

func (x *Runner) publish(ctx context.Context, e *execution) error {
	events := e.collect.take()
	if len(events) == 0 {
		return nil
	}
	e.sent = true
	err := x.retry(ctx, func(ctx context.Context) error { return x.store.AppendEvents(ctx, e.job.Ref(), e.job.Attempt, events) })
	if farm.CodeOf(err) == farm.CodeExhausted {
		if e.collect.stopEvents(events) {
			return x.publish(ctx, e)
		}
	} else if err != nil {
		e.collect.unsend(events)
		return fmt.Errorf("send events: %w", err)
	}
	e.collect.chargeEvents()
	return nil
}

func background(r *farm.Request) bool { return r.Command != nil && r.Command.Background }

// spec describes the execution for the agent.
func (x *Runner) spec(e *execution) agent.Spec {
	s := agent.Spec{
		Kind: farm.KindExecute, Grace: x.cfg.Grace,
		Timeout:  time.Duration(e.job.TimeoutSeconds) * time.Second,
		MaxFiles: x.cfg.Limits.MaxArtifacts, MaxFileBytes: x.cfg.Limits.MaxArtifactBytes, MaxOutput: maxOutput(x.cfg.Limits),
	}
	if r := e.request.Execute; r != nil {
		s.Code, s.Language, s.Filename, s.Context, s.Env = r.Code, r.Language, r.Filename, r.Context, r.Env
		s.StopAtMaxOutput, s.Data, s.Cell = r.StopAtOutputLimit, r.Data, r.Cell
	}
	if r := e.request.Install; r != nil && e.job.Kind == farm.KindInstall {
		s.Kind = farm.KindInstall
		s.Install = &agent.Install{Manager: r.Manager, Packages: r.Packages}
	}
	if r := e.request.Command; r != nil {
		s.Kind = farm.KindCommand
		s.Commands, s.Cwd, s.Env = r.Commands, r.Cwd, r.Env
		s.ContinueOnError, s.Background = r.ContinueOnError, r.Background
		s.StopAtMaxOutput = r.StopAtOutputLimit
	}
	return s
}

// Package execution runs claimed jobs in sandboxes that are ready: code and commands, installs, file operations, and requests to
// kernels. A Runner follows each execution from its first frame to its outcome, publishes output as events, and uploads artifacts.
//
// # From frames to the result
//
// The agent logs an execution as numbered frames and keeps them until they are acknowledged. follow.go reads them and dials again
// when the stream breaks; collect.go turns them into events and the result; outputs.go uploads a long stream in parts of its artifact
// while it continues, and displays.go large values when they arrive; staging.go acknowledges a long log when a snapshot of the collector is in
// the object store; artifacts.go uploads changed files.
//
// A worker that takes over begins with the snapshot, reads the rest from the agent, and gets the same result. Events carry the
// numbers of their frames, parts of an artifact are always the same bytes, and artifact ids follow from the job and the path, so
// nothing is added twice: a worker may die or be held up at any step (takeover_test.go). If the worker died
// between upload and commit, the next one uploads the same objects again under the same ids and commits; the agent forgets the
// execution only when the commit is durable (cleanup.go), and then still knows how it ended: the code never runs twice. A job that comes
// back after that gets the outcome, with a note that the output is gone (noteGone).
//
// # Where output is limited
//
//   - the agent sends at most limits.MaxOutputMB of each stream of a job and drops the middle of what is longer; stream.go counts that,
//     and cuts what an agent sends beyond it;
//   - stream.go keeps limits.MaxStreamInline bytes of each of stdout and stderr in the record: head and tail around a line that
//     names the artifact with the whole. The streams of all commands have limits.MaxResultInline together (outputs.go);
//   - collect.go stops sending a stream as events after limits.MaxStreamEvents bytes or maxTextEvents events, bounds rich results and their events (maxRich…)
//     and moves those over limits.MaxInlineRich to artifacts, and removes from the result the values that the code has cleared;
//   - result.go and packages.go cut errors, tracebacks, notes and what an install reports;
//   - artifacts.go skips files over limits.MaxArtifactBytes, those after limits.MaxArtifacts, and those whose paths are too long together, as does the agent;
//   - storage.go reserves the bytes of what is uploaded; what is beyond the tenant's quota max_stored_mb is skipped, with a note;
//   - spool.go charges what the record will have to the staging memory while the job runs; without room streams are cut shorter, and values
//     become artifacts;
//   - spool.go keeps what waits for its upload in the staging memory, then in a file; what fits into neither is cut, with a note. The result
//     and its list of artifacts are charged to the memory budget until they are stored (task.go);
//   - collect.go charges events that wait for an object store that is away to the staging memory; without room they are dropped, with a note;
//   - the agent holds the code back when its frame log is full (backpressure), so memory is bounded on both ends (readAhead here,
//     ackBytes until a snapshot is stored);
//   - follow.go handles long output for some executions at once only, with fair shares for tenants (turn).
//
// # While Redis or the object store is away
//
// Redis is waited for until the worker stops (package retry): events, checkpoints and records are written as they would have been. Frames
// are not read meanwhile, so the agent's log holds back code that prints more than it takes, and memory stays bounded for hours. Once the
// outcome is known, the agent is not asked again. The wait does not count as time of the execution (worker/node/deadline.go).
//
// The object store is waited for until it has been away for Config.UploadRetry. The job stays in its sandbox's FIFO for that time: the
// next job could change the files that wait for their upload. After that, each upload gets one try, and the job fails with its output.
//
// Everything that an agent sends is untrusted: it is bounded, checked, and frames that no agent sends end the job with ErrProtocol.
package execution

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/telemetry"
	"github.com/sandfarm/sandfarm/internal/tracing"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// Run executes code or commands in a sandbox that is ready, and collects what they leave. requested is what InstallRequested gave;
// nil: nothing.
func (x *Runner) Run(ctx context.Context, t Task, sandbox *farm.Sandbox, requested *Installed) (v Outcome, err error) {
	e := &execution{job: t.Job, request: t.Request, claim: t.Claim, sandbox: sandbox, cancel: t.Cancel}
	if background(t.Request) {
		e.started = func(ctx context.Context) { x.leaveFIFO(ctx, t) }
	}
	defer func() { e.collect.close() }()
	defer func() { // also if it fails: the job may have been ended meanwhile
		v.then(x.dropOf(e))
		for _, i := range e.installs {
			v.then(x.dropOf(i.from.e))
		}
	}()
	imports, err := x.installImports(ctx, t, sandbox)
	if err != nil {
		return Outcome{}, explain(ctx, err)
	}
	for _, i := range []*Installed{requested, imports} {
		if i != nil {
			e.installs = append(e.installs, i)
		}
	}
	defer x.evictLater(ctx, sandbox, t.Job.ID)()
	began := time.Now()
	started := began
	if err := x.execute(ctx, e); err != nil {
		err = explain(ctx, err)
		x.halt(ctx, e, err)
		return Outcome{}, err
	}
	v = Outcome{State: e.collect.state(), Run: runTime(t.Job, e.collect.outcome.RunMS, began, time.Now()), LastEvent: e.collect.seq + 1}
	if v.State == farm.JobCanceled {
		v.Err = x.Canceled(ctx, sandbox).Err
		if v.Err == nil && e.collect.outcome.OutputGone && !t.Canceled() { // see halt
			v.State, v.Err = farm.JobFailed, &farm.JobError{
				Code: farm.CodeUnavailable, Message: "An earlier attempt of this job failed and stopped its code, but the record of that is lost. Send the job again.",
			}
		}
	}
	began = time.Now()
	tracing.Past(ctx, "run", began.Add(-v.Run), began) // as the agent measured it
	kept, stored := tracing.Start(ctx, "collect", trace.SpanKindInternal)
	if e.charged { // what an earlier attempt has recorded is read while the list is charged
		kept = budget.Without(kept)
	}
	artifacts, err := x.keep(kept, e)
	stored(err)
	if err != nil {
		if ctx.Err() != nil {
			return Outcome{}, context.Cause(ctx)
		}
		if errors.Is(err, store.ErrFenced) {
			return Outcome{}, err
		}
		if errors.Is(err, ErrProtocol) {
			return Outcome{}, err
		}
		v.State, v.Err = farm.JobFailed, x.uploadError(ctx, t, sandbox, err)
		x.log.ErrorContext(ctx, "artifacts were not stored", "job_id", t.Job.ID, "error", err)
	}
	v.Upload = time.Since(began)
	if err := x.chargeResult(ctx, e); err != nil {
		return Outcome{}, err
	}
	if e.request.Command != nil { // its result repeats the commands
		switch err := x.recall(budget.Without(ctx), e); { // chargeResult has charged for it
		case errors.Is(err, blob.ErrNoAnswer) && ctx.Err() == nil:
			e.collect.note("The object store failed, so the result does not repeat the commands.")
		case err != nil:
			return Outcome{}, err
		}
	}
	v.Events = e.collect.take()
	v.Result = e.collect.result()
	if sandbox.OneShot {
		endedWithRun(v.Result.Execute)
	}
	var denied []farm.EgressEntry
	if sandbox.Spec.Network == farm.NetworkAllowlist && x.deps.Denied != nil {
		denied = x.deps.Denied(ctx, sandbox.Ref(), started)
	}
	v.Result.Artifacts = artifacts
	imports.addTo(v.Result)
	missing := hints(v.Result, e.request, sandbox, x.cfg.Allowlist, denied) // of packages it sees those of auto_install only
	requested.addTo(v.Result)
	v.Result.Notes = append(v.Result.Notes, missing...)
	if t.Job.Attempt > 1 {
		v.then(func(ctx context.Context) {
			ctx, done := context.WithTimeout(ctx, retry.CommitTimeout)
			defer done()
			if err := x.store.DropStrays(ctx, sandbox.ID, t.Job.Ref()); err != nil {
				x.log.WarnContext(ctx, "objects of earlier attempts were not removed; the scheduler removes them", "job_id", t.Job.ID, "error", err)
			}
		})
	}
	if !sandbox.OneShot { // a one-shot sandbox is removed as a whole
		v.Forget = []string{e.job.ID}
		if imports != nil {
			v.Forget = append(v.Forget, imports.from.id)
		}
	}
	return v, nil
}

// runTime is how long the code of a job ran. The agent says so (ms), also of the time in which an earlier worker followed it. Code can change what
// the agent says, so it is no longer than since this worker attached, or, of a job that was taken over, since the job started.
func runTime(job *farm.Job, ms float64, attached, now time.Time) time.Duration {
	most := now.Sub(attached)
	if job.Attempt > 1 && !job.StartedAt.IsZero() {
		most = max(most, now.Sub(job.StartedAt))
	}
	if ms > 0 && ms < float64(most.Microseconds())/1000 {
		return time.Duration(ms * float64(time.Millisecond))
	}
	return most
}

// uploadError is the error of a job whose files could not be stored. Its output is in the result all the same.
func (x *Runner) uploadError(ctx context.Context, t Task, sandbox *farm.Sandbox, err error) *farm.JobError {
	if errors.Is(err, node.ErrGone) {
		if x.sandboxes.Closing(ctx, sandbox) {
			return &farm.JobError{Code: farm.CodeConflict, Message: "The code ran, but the sandbox was closed before its files were stored."}
		}
		x.sandboxes.Lose(ctx, sandbox, t.Job.ID, err.Error())
		return &farm.JobError{Code: farm.CodeUnavailable, Message: fmt.Sprintf("The code ran, but the sandbox was lost before its files were stored (%s). Create a new sandbox and send the job again.", err)}
	}
	reason := string(unstored(err))
	if farm.CodeOf(err) != farm.CodeUnavailable {
		reason = "see the log of the worker"
	}
	return &farm.JobError{Code: farm.CodeOf(err), Message: "The code ran, but its files could not be stored: " + reason + ". They are still in the workspace."}
}

// halt stops the code of a job that fails while the code may still run, so that it does not block the next job. It does nothing if
// another worker has the job, or will take it over, and if the sandbox is gone.
func (x *Runner) halt(ctx context.Context, e *execution, err error) {
	if errors.Is(err, node.ErrGone) || errors.Is(err, ErrProtocol) || errors.Is(err, store.ErrFenced) ||
		errors.Is(err, node.ErrStopping) || errors.Is(context.Cause(ctx), node.ErrStopping) {
		return
	}
	ctx, done := retry.Detached(ctx)
	defer done()
	c, err := x.node.Connect(ctx, e.sandbox)
	if err == nil {
		err = stopAndForget(ctx, c, e.job.ID)
	}
	if err != nil {
		x.log.WarnContext(ctx, "code of a failed job may run on until its timeout", "job_id", e.job.ID, "sandbox_id", e.sandbox.ID, "error", err)
	}
}

// explain turns an overrun of the timeout into node.ErrGone.
func explain(ctx context.Context, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fmt.Errorf("%w: it did not end the code within %s after its timeout", node.ErrGone, overrun)
	}
	return err
}

// keep stores the artifacts of an execution: objects, then records, then events.
func (x *Runner) keep(ctx context.Context, e *execution) ([]farm.Artifact, error) {
	artifacts, err := x.upload(ctx, e)
	if err != nil {
		return nil, err
	}
	for _, i := range e.installs {
		artifacts = append(artifacts, i.artifacts...)
	}
	if len(artifacts) > 0 { // their events follow
		if err := x.publishLast(ctx, e); err != nil {
			return nil, err
		}
	}
	return artifacts, x.record(ctx, e.job, artifacts, e.collect.seq+1)
}

// record stores the records of artifacts, then sends their events under a number.
func (x *Runner) record(ctx context.Context, job *farm.Job, artifacts []farm.Artifact, number uint64) error {
	if len(artifacts) == 0 {
		return nil
	}
	if err := x.retry(ctx, func(ctx context.Context) error { return x.store.AddArtifacts(ctx, job.Attempt, artifacts) }); err != nil {
		return fmt.Errorf("record artifacts: %w", err)
	}
	events := make([]farm.Event, 0, len(artifacts))
	for i := range artifacts {
		events = append(events, farm.Event{
			ID: fmt.Sprintf("%d-%d", number, i+1), Name: farm.EventArtifact, Artifact: &artifacts[i],
		})
	}
	err := x.retry(ctx, func(ctx context.Context) error { return x.store.AppendEvents(ctx, job.Ref(), job.Attempt, events) })
	if (errors.Is(err, blob.ErrNoAnswer) || farm.CodeOf(err) == farm.CodeExhausted) && ctx.Err() == nil { // the artifacts are recorded: the job does not fail for their events
		x.log.WarnContext(ctx, "events of artifacts were not stored", "job_id", job.ID, "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("send artifact events: %w", err)
	}
	return nil
}

// leaveFIFO lets the next jobs of the sandbox run while a background command runs.
func (x *Runner) leaveFIFO(ctx context.Context, t Task) {
	err := x.retry(ctx, func(ctx context.Context) error { return x.store.LeaveFIFO(ctx, t.Job.Ref(), t.Job.Attempt) })
	if err != nil {
		x.log.WarnContext(ctx, "background command still blocks the FIFO of its sandbox", "job_id", t.Job.ID, "error", err)
	}
}

// metrics count uploads.
type metrics struct {
	uploads     *prometheus.CounterVec
	uploadBytes prometheus.Counter
}

// Outcomes of uploads, as metrics have them.
const (
	outcomeOK    = "ok"
	outcomeError = "error"
)

func newMetrics() *metrics {
	m := &metrics{
		uploads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_worker_uploads_total", Help: "Artifacts sent to the object store, each try, by outcome: ok or error.",
		}, []string{"outcome"}),
		uploadBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sandfarm_worker_upload_bytes_total", Help: "Bytes of artifacts that the object store took.",
		}),
	}
	for _, outcome := range []string{outcomeOK, outcomeError} { // so that rate() counts the first one
		m.uploads.WithLabelValues(outcome)
	}
	return m
}

func (m *metrics) register(to prometheus.Registerer) error {
	if to == nil {
		return nil
	}
	return telemetry.Register(to, m.uploads, m.uploadBytes)
}

// stored counts an artifact that was sent.
func (m *metrics) stored(size int64, err error) {
	if err != nil {
		m.uploads.WithLabelValues(outcomeError).Inc()
		return
	}
	m.uploads.WithLabelValues(outcomeOK).Inc()
	m.uploadBytes.Add(float64(size))
}

// put stores an artifact's bytes, and counts them.
func (x *Runner) put(ctx context.Context, a *farm.Artifact, r io.Reader, size int64) error {
	info, err := x.blobs.Put(ctx, a.Key, r, size, putOptions(a))
	a.Size, a.SHA256 = info.Size, info.SHA256
	x.metrics.stored(info.Size, err)
	return err
}

// maxSpool is the largest disk space that is chosen without a setting.
const maxSpool = 4 << 30

// newRoom makes the room for spools: memory from a budget, then a number of MiB of the temporary directory. 0 means a quarter of its
// free space, and none if its files are memory themselves.
func newRoom(memory *budget.Budget, dir string, spoolMB int) room {
	r := room{memory: memory, dir: dir}
	size := int64(spoolMB) << 20
	if spoolMB == 0 {
		size = freeOnDisk(cmp.Or(dir, os.TempDir()))
	}
	if size > 0 {
		r.disk = budget.New(size)
	}
	return r
}

// freeOnDisk is a quarter of the free space of a directory; 0 if there is none, and if its files are in memory.
func freeOnDisk(dir string) int64 {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC {
		return 0
	}
	return min(int64(fs.Bavail)*fs.Bsize/4, maxSpool) //nolint:gosec // no disk has that many blocks
}

// freeAfter is how long a frame may be handled on the execution's own time.
const freeAfter = time.Second

// deadline ends a context when the agent has not ended an execution in time. Time for which the worker itself waited, for Redis or for the
// object store, does not count: the code may have ended long ago. Nil: there is none.
type deadline struct {
	timer *time.Timer
	left  time.Duration
	since time.Time // when it last began to count, or to pause
}

// withDeadline returns a context that ends with this cause once the limit is over. The caller calls stop.
func withDeadline(ctx context.Context, limit time.Duration, cause error) (bounded context.Context, d *deadline, stop func()) {
	bounded, end := context.WithCancelCause(ctx)
	d = &deadline{left: limit, since: time.Now()}
	d.timer = time.AfterFunc(limit, func() { end(cause) })
	return bounded, d, func() {
		d.timer.Stop()
		end(nil)
	}
}

// pause stops the time.
func (d *deadline) pause() {
	if d == nil {
		return
	}
	d.timer.Stop()
	now := time.Now()
	d.left -= now.Sub(d.since)
	d.since = now
}

// resume starts the time again. A short pause counts: an agent that sends without end does not get more time with each frame.
func (d *deadline) resume() {
	if d == nil {
		return
	}
	now := time.Now()
	if paused := now.Sub(d.since); paused < freeAfter {
		d.left -= paused
	}
	d.since = now
	d.timer.Reset(max(d.left, 0))
}

// Kernel interrupts or restarts a kernel. Its job does not wait in the sandbox's FIFO.
func (x *Runner) Kernel(ctx context.Context, t Task) (Outcome, error) {
	c, err := x.node.Connect(ctx, t.Sandbox)
	if err != nil {
		if gone, ok := x.node.Gone(ctx, t.Sandbox); ok {
			return Outcome{}, gone
		}
		return Outcome{}, err
	}
	if t.Job.Kind == farm.KindInterrupt {
		err = c.Interrupt(ctx, t.Request.Context)
	} else {
		err = c.RestartKernel(ctx, t.Request.Context)
	}
	if err != nil {
		return Outcome{}, fmt.Errorf("%s kernel: %w", t.Job.Kind, err)
	}
	return Outcome{State: farm.JobCompleted}, nil
}

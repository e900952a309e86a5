package execution

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// ErrCanceled ends work of a job that was cancelled.
var ErrCanceled = errors.New("the job was cancelled")

// Config holds the settings of executions. All fields are required unless they say otherwise.
type Config struct {
	Grace            time.Duration // between the interrupt and the kill of code
	UploadRetry      time.Duration // for how long the object store is waited for
	UploadParallel   int           // artifacts of one job at once
	EngineTimeout    time.Duration // for how long the engine is waited for
	InstallTimeout   time.Duration // of packages that come with a create, with a run or by auto_install
	AutoInstallAllow []string      // normal names; empty: every package
	AutoInstallDeny  []string      // normal names; may be empty
	OutputSpoolMB    int           // see newRoom; may be 0
	Allowlist        bool          // notes may name the network allowlist: the operator has enabled it
	Limits           farm.Limits
}

// Node gives access to the agents of sandboxes; *node.Node is one.
type Node interface {
	Connect(ctx context.Context, s *farm.Sandbox) (*client.Client, error)
	Gone(ctx context.Context, s *farm.Sandbox) (error, bool)
	// Answers reports whether the engine does.
	Answers(ctx context.Context) bool
	Connected(sandboxID string) bool
}

// Sandboxes ends sandboxes and reports whether they have ended.
type Sandboxes interface {
	// Closing reports whether a sandbox is being closed, or was.
	Closing(ctx context.Context, s *farm.Sandbox) bool
	// Lose marks a sandbox as lost and ends its jobs but exceptJob.
	Lose(ctx context.Context, s *farm.Sandbox, exceptJob, reason string)
}

// Deps are the dependencies of a Runner. All fields except Memory, Staging, Metrics and Denied are required.
type Deps struct {
	Store     *store.Store
	Blobs     *blob.Store
	Memory    *budget.Budget // for output on its way; nil: without limit
	Staging   *budget.Budget // for output of jobs that run; it must be used for nothing else; nil: without limit
	Node      Node
	Sandboxes Sandboxes
	Log       *slog.Logger
	Now       func() time.Time
	Metrics   prometheus.Registerer // nil: metrics are not registered
	// Denied lists the hosts that a sandbox of the network allowlist did not reach since a time, denied or not; nil: none are known.
	Denied func(ctx context.Context, sandbox farm.Ref, since time.Time) []farm.EgressEntry
}

// Runner runs jobs in sandboxes of this worker's node.
type Runner struct {
	cfg       Config
	deps      Deps
	store     *store.Store
	blobs     *blob.Store
	memory    *budget.Budget
	room      room
	turns     *budget.Places // for handling long output, see turn
	reading   *budget.Places // of files of sandboxes, see open
	node      Node
	sandboxes Sandboxes
	log       *slog.Logger
	metrics   *metrics

	cleanups   cleanups
	background sync.WaitGroup
	stopped    chan struct{} // closed by Wait
	stop       sync.Once
}

// New makes a Runner.
func New(cfg Config, deps Deps) (*Runner, error) {
	x := &Runner{
		cfg: cfg, deps: deps, store: deps.Store, blobs: deps.Blobs, memory: deps.Memory, room: newRoom(deps.Staging, "", cfg.OutputSpoolMB), node: deps.Node, sandboxes: deps.Sandboxes, log: deps.Log,
		turns: budget.NewPlaces(runtime.GOMAXPROCS(0)), reading: budget.NewPlaces(openFiles), metrics: newMetrics(), stopped: make(chan struct{}),
	}
	return x, x.metrics.register(deps.Metrics)
}

// Wait waits for background work; requests to agents to forget executions that were not sent yet are dropped. The contexts of all tasks must
// have ended.
func (x *Runner) Wait() {
	x.stop.Do(func() { close(x.stopped) })
	x.background.Wait()
}

// retry repeats a write to Redis or the object store while they do not answer.
func (x *Runner) retry(ctx context.Context, write func(context.Context) error) error {
	return retry.Writes{Limit: x.cfg.UploadRetry, Silent: x.deps.Blobs.Silent}.Do(ctx, write)
}

// Task is a job that this worker has claimed.
type Task struct {
	*store.Claim
	Cancel <-chan struct{} // closed when the job is to be cancelled
}

// OnCancel calls f when the job is cancelled, until stop is called or ctx ends.
func (t Task) OnCancel(ctx context.Context, f func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		select {
		case <-t.Cancel:
			f()
		case <-done:
		case <-ctx.Done():
		}
	}()
	return func() { close(done) }
}

// Canceled reports whether the job is to be cancelled.
func (t Task) Canceled() bool {
	select {
	case <-t.Cancel:
		return true
	default:
		return false
	}
}

// Outcome is how a job ended. The zero value is no outcome.
type Outcome struct {
	State     farm.JobState
	Result    *farm.Result
	Err       *farm.JobError
	Run       time.Duration // in the sandbox
	Upload    time.Duration
	Events    []farm.Event // the last ones, which go with the commit
	LastEvent uint64       // number of the last event, see store.Finish

	// Forget are the executions that the sandbox's agent may forget, and Cleanup is what else is to be done (nil: nothing), once the outcome is
	// committed durably, also that of a job that failed; see CleanUp. Before that, a worker that takes over may need everything still.
	Forget  []string
	Cleanup func(context.Context)
}

// then adds a step to Cleanup; nil: none.
func (o *Outcome) then(step func(context.Context)) {
	first := o.Cleanup
	switch {
	case first == nil:
		o.Cleanup = step
	case step != nil:
		o.Cleanup = func(ctx context.Context) {
			first(ctx)
			step(ctx)
		}
	}
}

// ClosedMessage is what the caller of a job reads whose sandbox was closed.
const ClosedMessage = "The sandbox was closed while the job waited or ran."

// ClosedError is the error of a job whose sandbox was closed.
func ClosedError() *farm.JobError {
	return &farm.JobError{Code: farm.CodeConflict, Message: ClosedMessage}
}

// Canceled is the outcome of a job that was cancelled. It has an error where the close of its sandbox cancelled it.
func (x *Runner) Canceled(ctx context.Context, s *farm.Sandbox) Outcome {
	o := Outcome{State: farm.JobCanceled}
	if s != nil && x.sandboxes.Closing(ctx, s) {
		o.Err = ClosedError()
	}
	return o
}

// start starts the execution in the agent, or attaches to it. The agent has the request then: a large one is dropped here, since many jobs may
// run for long.
func (x *Runner) start(ctx context.Context, e *execution, c *client.Client) (*client.Frames, error) {
	if err := x.recall(ctx, e); err != nil {
		return nil, err
	}
	frames, err := e.run(ctx, c, e.job.ID, x.spec(e))
	if err != nil {
		return nil, fmt.Errorf("start execution: %w", err)
	}
	if e.claim != nil && e.claim.ForgetRequest() {
		e.dropped = max(e.dropped, budget.Held(ctx))
		e.use(outline(e.request))
		e.outline = true
		budget.Keep(ctx, 0)
	}
	return frames, nil
}

// recall reads the request again if it was dropped.
func (x *Runner) recall(ctx context.Context, e *execution) error {
	if !e.outline {
		return nil
	}
	e.deadline.pause()
	defer e.deadline.resume()
	if err := x.retry(ctx, func(ctx context.Context) error { return x.store.LoadRequest(ctx, e.claim) }); err != nil {
		return fmt.Errorf("read the request again: %w", err)
	}
	e.use(e.claim.Request)
	e.outline = false
	return nil
}

const (
	// resultWeight is how often a result is in memory until it is stored: as text, encoded, and what the collector has not freed.
	resultWeight = 3
	// artifactBytes and pathWeight are what an artifact takes beside its path, and how often its path is in memory: in the outcome, as a record, and in
	// the result, whose encoder has it up to four times, with the path, the name and the key. 10,000 files with paths of 209 bytes took 51 MB.
	artifactBytes = 3 << 10
	pathWeight    = 10
)

// chargeArtifacts charges the list of artifacts as chargeResult does, with the result, before they are uploaded: that and what else the outcome says is
// in memory from now on. A short one waits for chargeResult.
func (x *Runner) chargeArtifacts(ctx context.Context, e *execution) error {
	if e.collect.listed()+e.reported()*resultWeight <= budget.SmallBytes {
		return nil
	}
	return x.chargeResult(ctx, e)
}

// chargeResult waits for the memory of the result and its list of artifacts, until the job's memory is released. It does nothing the second time.
// Nothing else is held meanwhile, so it cannot deadlock: the request is not needed any more, all frames are handled, and nothing waits for the
// staging budget.
func (x *Runner) chargeResult(ctx context.Context, e *execution) error {
	if e.charged {
		return nil
	}
	e.charged = true
	need := (e.collect.quoted()+e.reported())*resultWeight + e.collect.listed()
	if e.outline && e.request.Command != nil {
		need += e.dropped
	}
	if need <= budget.SmallBytes {
		return nil
	}
	budget.Keep(ctx, 0)
	return budget.Charge(ctx, need)
}

// listed is how many bytes the list of artifacts takes until it is stored.
func (c *collector) listed() int64 {
	n := 0
	for _, f := range c.outcome.Files {
		n += artifactBytes + pathWeight*farm.Quoted(f.Path)
	}
	for _, o := range c.outputs {
		for _, s := range o.both() {
			if s.truncated() {
				n += artifactBytes
			}
		}
	}
	for _, r := range c.rich {
		if r.Artifact != nil {
			n += artifactBytes
		}
	}
	return int64(n)
}

// quoted is how many bytes output and displayed values have in the result, as JSON.
func (c *collector) quoted() int64 {
	n := 0
	for _, o := range c.outputs {
		for _, s := range o.both() {
			n += farm.Quoted(s.head) + farm.Quoted(s.last())
		}
	}
	for _, r := range c.rich {
		n += farm.Quoted(r.Data) + len(r.Metadata)
	}
	return int64(n)
}

// reported is how many bytes the error of the code, packages and their notes have in the result, as JSON.
func (e *execution) reported() int64 {
	n := 0
	if e := e.collect.outcome.Error; e != nil {
		n += farm.Quoted(e.Name) + farm.Quoted(e.Value)
		for _, line := range e.Traceback {
			n += farm.Quoted(line)
		}
	}
	add := func(packages []farm.PackageOutcome, notes []string) {
		for _, p := range packages {
			n += farm.Quoted(p.Name) + farm.Quoted(p.Requested) + farm.Quoted(p.Version) + farm.Quoted(p.Message) + farm.Quoted(p.Why)
		}
		for _, note := range notes {
			n += farm.Quoted(note)
		}
	}
	add(e.collect.outcome.Install, e.collect.outcome.Notes)
	for _, i := range e.installs {
		add(i.packages, i.notes)
	}
	return int64(n)
}

func (e *execution) use(request *farm.Request) {
	e.request = request
	if e.collect != nil {
		e.collect.request = request
	}
}

// outline is a request without code, commands and files; their number stays.
func outline(r *farm.Request) *farm.Request {
	short := *r
	short.Files = nil
	if r.Execute != nil {
		execute := *r.Execute
		execute.Code, short.Execute = "", &execute
	}
	if r.Command != nil {
		command := *r.Command
		command.Commands, short.Command = make([]string, len(r.Command.Commands)), &command
	}
	return &short
}

// WriteInputs writes the files that came with a request into the sandbox. Where an earlier attempt has started the code, the
// files stay as they are: the code may have changed them.
func (x *Runner) WriteInputs(ctx context.Context, t Task, sandbox *farm.Sandbox) error {
	if len(t.Request.Files) == 0 {
		return nil
	}
	c, err := x.node.Connect(ctx, sandbox)
	if err != nil {
		return err
	}
	if t.Job.Attempt > 1 {
		started, err := c.Execution(ctx, t.Job.ID)
		if err != nil {
			return fmt.Errorf("look for the execution: %w", err)
		}
		if started != nil {
			return nil
		}
	}
	_, err = x.writeInputs(ctx, c, t.Job.Tenant, t.Request.Files)
	return err
}

package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// TasksExtension is the name of the extension that lets a tool call be answered with a task.
const TasksExtension = "io.modelcontextprotocol/tasks"

// TaskStatus is the state of a task, as the protocol names it.
type TaskStatus string

// The states of a task. The last three are final.
const (
	TaskWorking       TaskStatus = "working"
	TaskInputRequired TaskStatus = "input_required"
	TaskCompleted     TaskStatus = "completed" // also if the tool's result is an error
	TaskFailed        TaskStatus = "failed"    // with an error of the protocol
	TaskCancelled     TaskStatus = "cancelled"
)

// Task is a tool call that continues without its caller, as the protocol represents it.
type Task struct {
	ID        string     `json:"taskId"`
	Status    TaskStatus `json:"status"`
	Message   string     `json:"statusMessage,omitempty"`
	CreatedAt time.Time  `json:"createdAt"`
	UpdatedAt time.Time  `json:"lastUpdatedAt"`
	TTL       *int64     `json:"ttlMs"`                    // milliseconds that it is kept at least, from its creation; nil: forever
	Poll      int64      `json:"pollIntervalMs,omitempty"` // milliseconds to wait between two polls

	Result *mcp.CallToolResult      `json:"result,omitempty"`        // of a completed task
	Error  *mcp.JSONRPCErrorDetails `json:"error,omitempty"`         // of a failed one
	Input  map[string]any           `json:"inputRequests,omitempty"` // questions of one that requires input
}

// TaskSupport says whether calls of a tool become tasks.
type TaskSupport int

// The kinds of support. The zero value is none.
const (
	TaskNever    TaskSupport = iota
	TaskOptional             // for callers that declare the extension; others get their answer directly
	TaskRequired             // others are refused
)

// ErrNoTask is the error for a task that does not exist or belongs to another caller.
var ErrNoTask = errors.New("no such task")

// TaskSource stores tasks. Its methods see only the tasks of the caller in the context; for any other task they return an error that
// is ErrNoTask.
type TaskSource interface {
	// Support returns the support of a tool. A call of a tool with support calls BecomeTask or answers directly.
	Support(tool string) TaskSupport
	Task(ctx context.Context, id string) (Task, error)
	// Answer gives a task the input that it asked for. Other answers are ignored.
	Answer(ctx context.Context, id string, answers map[string]json.RawMessage) error
	// Cancel requests the end of a task. The task may still end in another way; a final task does not change.
	Cancel(ctx context.Context, id string) error
}

// taskCall is a tool call that may become a task.
type taskCall struct {
	end context.CancelFunc

	mu   sync.Mutex
	task *Task
}

type taskKey struct{}

// MayBecomeTask reports whether the running tool call may become a task.
func MayBecomeTask(ctx context.Context) bool {
	call, _ := ctx.Value(taskKey{}).(*taskCall)
	return call != nil && call.made() == nil
}

// BecomeTask makes a task the answer to the running tool call and ends the call's context: the task continues without it. The source
// must know the task from then on. It returns false and does nothing if the call may not become a task.
func BecomeTask(ctx context.Context, t Task) bool {
	call, _ := ctx.Value(taskKey{}).(*taskCall)
	if call == nil {
		return false
	}
	call.mu.Lock()
	defer call.mu.Unlock()
	if call.task != nil {
		return false
	}
	call.task = &t
	call.end()
	return true
}

func (c *taskCall) made() *Task {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.task
}

// How often a client should poll a task: soon at first, then less often the longer it runs.
const (
	pollFirst = 250 * time.Millisecond
	pollLast  = 5 * time.Second
	pollPart  = 8 // of the time that a task has run so far
)

// farmTasks presents the farm's jobs as tasks. The id of a task is the id of its job, and nothing else is stored: a task outlives the
// process that started it, and only callers that can read the job can see it.
type farmTasks struct {
	*Server
	tools map[string]*tool // those whose calls become tasks, by the kind of their job
}

func newFarmTasks(s *Server) *farmTasks {
	return &farmTasks{Server: s, tools: map[string]*tool{
		string(farm.KindCreate): s.createSandbox(), string(farm.KindExecute): executePython(),
		string(farm.KindCommand): executeCommand(), string(farm.KindInstall): installPackages(),
	}}
}

// Support is optional for tools whose calls may take long.
func (f *farmTasks) Support(name string) TaskSupport {
	for _, t := range f.tools {
		if t.name == name {
			return TaskOptional
		}
	}
	return TaskNever
}

// Task returns the task of a job.
func (f *farmTasks) Task(ctx context.Context, id string) (Task, error) {
	job, err := f.job(ctx, id)
	if err != nil {
		return Task{}, err
	}
	t := f.taskOf(&job)
	if t.Status != TaskCompleted {
		return t, nil
	}
	t.Result, err = f.resultOf(ctx, &job)
	return t, err
}

// Answer does nothing: the farm's tasks never ask for input.
func (f *farmTasks) Answer(ctx context.Context, id string, _ map[string]json.RawMessage) error {
	_, err := f.job(ctx, id)
	return err
}

// Cancel cancels the job.
func (f *farmTasks) Cancel(ctx context.Context, id string) error {
	job, err := f.job(ctx, id)
	if err != nil || job.Final() {
		return err
	}
	if _, err := f.Farm(ctx).Cancel(ctx, id); err != nil && farm.CodeOf(err) != farm.CodeConflict { // it ended meanwhile
		return fmt.Errorf("cancel job: %w", err)
	}
	return nil
}

// job reads a job of the caller, of a kind that can be a task.
func (f *farmTasks) job(ctx context.Context, id string) (wire.Job, error) {
	job, err := f.Farm(ctx).Job(ctx, id, 0)
	switch code := farm.CodeOf(err); {
	case code == farm.CodeNotFound || code == farm.CodeInvalid:
		return wire.Job{}, fmt.Errorf("%w: %w", ErrNoTask, err)
	case err != nil:
		return wire.Job{}, fmt.Errorf("read job: %w", err)
	case f.tools[job.Kind] == nil:
		return wire.Job{}, fmt.Errorf("%w: a job of kind %s is none", ErrNoTask, job.Kind)
	}
	return job, nil
}

// taskOf represents a job as a task, without its result.
func (f *farmTasks) taskOf(j *wire.Job) Task {
	t := Task{
		ID: j.ID, Status: TaskWorking, Message: messageOf(j), CreatedAt: j.CreatedAt, UpdatedAt: j.CreatedAt,
		Poll: min(max(time.Since(j.CreatedAt)/pollPart, pollFirst), pollLast).Milliseconds(),
	}
	ttl := f.TaskTTL.Milliseconds()
	t.TTL = &ttl
	for _, at := range []*time.Time{j.StartedAt, j.FinishedAt} {
		if at != nil && at.After(t.UpdatedAt) {
			t.UpdatedAt = *at
		}
	}
	switch {
	case j.State == string(farm.JobCanceled):
		t.Status = TaskCancelled
	case j.Final(): // also if it failed: the tool's result says so
		t.Status = TaskCompleted
	}
	return t
}

// messageOf describes the state of a job.
func messageOf(j *wire.Job) string {
	switch {
	case j.Final():
		return headline(j)
	case j.StartedAt != nil:
		return fmt.Sprintf("Running for %s in sandbox %s.", time.Since(*j.StartedAt).Round(time.Second), j.SandboxID)
	case j.Position > 0:
		return fmt.Sprintf("Waiting in sandbox %s, at position %d of its queue.", j.SandboxID, j.Position)
	default:
		return fmt.Sprintf("Waiting for sandbox %s.", j.SandboxID)
	}
}

// resultOf is the tool's result for a final job. The tool itself makes it, on a farm that returns this job.
func (f *farmTasks) resultOf(ctx context.Context, j *wire.Job) (*mcp.CallToolResult, error) {
	t := f.tools[j.Kind]
	over := endedFarm{Farm: f.Farm(ctx), job: *j}
	if j.Kind == string(farm.KindCreate) {
		boxes, err := over.Sandboxes(ctx)
		if err != nil {
			return nil, fmt.Errorf("find sandbox: %w", err)
		}
		over.boxes = boxes
	}
	result := (&call{Server: f.Server, arguments: arguments{}, ctx: ctx, farm: over, tool: t}).result()
	result.ResultType = mcp.ResultTypeComplete
	return result, escaping(ctx, result)
}

// endedFarm is a farm whose verbs return a job that is already final.
type endedFarm struct {
	Farm
	job   wire.Job
	boxes []wire.Sandbox
}

// CreateSandbox returns the created sandbox while it is open.
func (f endedFarm) CreateSandbox(context.Context, wire.CreateRequest, time.Duration) (wire.Created, error) {
	for _, box := range f.boxes {
		if box.ID == f.job.SandboxID {
			return wire.Created{Sandbox: box, Job: f.job}, nil
		}
	}
	if f.job.State != string(farm.JobCompleted) {
		return wire.Created{Job: f.job}, nil
	}
	return wire.Created{}, farm.Conflictf("Sandbox %s was created, but it is closed by now.", f.job.SandboxID)
}

// Execute gives the job.
func (f endedFarm) Execute(context.Context, string, wire.ExecuteRequest, time.Duration) (wire.Job, error) {
	return f.job, nil
}

// Command gives the job.
func (f endedFarm) Command(context.Context, string, wire.CommandRequest, time.Duration) (wire.Job, error) {
	return f.job, nil
}

// Install gives the job.
func (f endedFarm) Install(context.Context, string, wire.PackagesRequest, time.Duration) (wire.Job, error) {
	return f.job, nil
}

// taskFarm turns a tool call into a task as soon as its job is accepted, if the caller accepts tasks.
type taskFarm struct {
	Farm
	tasks *farmTasks
}

// waitOf is the wait of a call: none if it becomes a task.
func waitOf(ctx context.Context, wait time.Duration) time.Duration {
	if MayBecomeTask(ctx) {
		return 0
	}
	return wait
}

func (f taskFarm) become(ctx context.Context, j wire.Job, err error) (wire.Job, error) {
	if err == nil {
		BecomeTask(ctx, f.tasks.taskOf(&j))
	}
	return j, err
}

// CreateSandbox is that of the farm.
func (f taskFarm) CreateSandbox(ctx context.Context, r wire.CreateRequest, wait time.Duration) (wire.Created, error) {
	made, err := f.Farm.CreateSandbox(ctx, r, waitOf(ctx, wait))
	_, err = f.become(ctx, made.Job, err)
	return made, err
}

// Execute is that of the farm.
func (f taskFarm) Execute(ctx context.Context, sandboxID string, r wire.ExecuteRequest, wait time.Duration) (wire.Job, error) {
	j, err := f.Farm.Execute(ctx, sandboxID, r, waitOf(ctx, wait))
	return f.become(ctx, j, err)
}

// Command is that of the farm.
func (f taskFarm) Command(ctx context.Context, sandboxID string, r wire.CommandRequest, wait time.Duration) (wire.Job, error) {
	j, err := f.Farm.Command(ctx, sandboxID, r, waitOf(ctx, wait))
	return f.become(ctx, j, err)
}

// Install is that of the farm.
func (f taskFarm) Install(ctx context.Context, sandboxID string, r wire.PackagesRequest, wait time.Duration) (wire.Job, error) {
	j, err := f.Farm.Install(ctx, sandboxID, r, waitOf(ctx, wait))
	return f.become(ctx, j, err)
}

// offerTasks adds the extension in front of the farm's tools.
func (s *Server) offerTasks() Extension {
	source := newFarmTasks(s)
	plain := s.Farm
	s.Farm = func(ctx context.Context) Farm { return taskFarm{Farm: plain(ctx), tasks: source} }
	return Tasks(source, mcp.Implementation{Name: "sandfarm", Title: "Sandfarm", Version: s.Version}, s.Logger)
}

package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
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

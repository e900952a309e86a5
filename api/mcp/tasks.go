package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
)

// TasksExtension is the name of the extension under which tool calls may be answered with a task.
const TasksExtension = "io.modelcontextprotocol/tasks"

// TaskStatus is where a task stands, in the words of the protocol.
type TaskStatus string

// The states of a task. The last three are final.
const (
	TaskWorking       TaskStatus = "working"
	TaskInputRequired TaskStatus = "input_required"
	TaskCompleted     TaskStatus = "completed" // also when the tool tells of an error
	TaskFailed        TaskStatus = "failed"    // with an error of the protocol
	TaskCancelled     TaskStatus = "cancelled"
)

// Task is a tool call that goes on without its caller, as the protocol tells of it.
type Task struct {
	ID        string     `json:"taskId"`
	Status    TaskStatus `json:"status"`
	Message   string     `json:"statusMessage,omitempty"`
	CreatedAt time.Time  `json:"createdAt"`
	UpdatedAt time.Time  `json:"lastUpdatedAt"`
	TTL       *int64     `json:"ttlMs"`                    // milliseconds from its creation that it is kept at least; nil: for ever
	Poll      int64      `json:"pollIntervalMs,omitempty"` // milliseconds to wait between two looks

	Result *mcp.CallToolResult      `json:"result,omitempty"`        // of a completed task
	Error  *mcp.JSONRPCErrorDetails `json:"error,omitempty"`         // of a failed one
	Input  map[string]any           `json:"inputRequests,omitempty"` // what one that requires input asks
}

// TaskSupport tells whether calls of a tool become tasks.
type TaskSupport int

// The kinds of support. The zero value is none.
const (
	TaskNever    TaskSupport = iota
	TaskOptional             // for callers who know tasks; others get their answer at once
	TaskRequired             // others are refused
)

// ErrNoTask is what a TaskSource says of a task that it does not have, or that is another caller's.
var ErrNoTask = errors.New("no such task")

// TaskSource is where tasks live. Its methods see only the tasks of the caller whom the context tells; for any other they
// give an error that is ErrNoTask.
type TaskSource interface {
	// Support tells of a tool. A call of one with support calls BecomeTask, or it answers at once.
	Support(tool string) TaskSupport
	Task(ctx context.Context, id string) (Task, error)
	// Answer gives a task what it asked for. Answers that nobody asked for are ignored.
	Answer(ctx context.Context, id string, answers map[string]json.RawMessage) error
	// Cancel asks for the end of a task. It may end in another way, and one that has ended stays as it is.
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

// BecomeTask makes a task the answer to the running tool call, and ends the call's context: the task must go on without it.
// From then on the task's source has to know it. It reports false, and does nothing, where the call may not become a task.
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

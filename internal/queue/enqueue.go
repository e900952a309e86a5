package queue

import (
	_ "embed"
	"fmt"
)

//go:embed enqueue.lua
var enqueueLua string

// EnqueueLua is a piece of Lua for scripts that enqueue jobs in the step that makes them runnable. It defines the function enqueueTask(queue,
// id of the task, tenant, id of the job, timeout in seconds, time in microseconds), which does what Client.Enqueue does with a task of
// TypeJob. It returns nil if it added the task, else the state of the one of that id that is there, as Client.State does.
func EnqueueLua() string {
	return fmt.Sprintf("local TASK_TYPE, TASK_RETRY = '%s', %d\n\n", TypeJob, defaultMaxRetry+spareRetry) + enqueueLua
}

package queue

import (
	"encoding/json"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Types of tasks.
const (
	TypeJob      = "job"      // run the job
	TypeCallback = "callback" // deliver the callback of a finished job
)

// QueueCallbacks is the queue of all callbacks.
const QueueCallbacks = "callbacks"

// Task says that there is work to do for a job. It only names the job: the record is the source of truth.
type Task struct {
	Type string // TypeJob or TypeCallback
	Ref  farm.Ref
}

// encodePayload encodes the ref only, since asynq writes the payload again with every heartbeat.
func encodePayload(t Task) ([]byte, error) {
	data, err := json.Marshal(t.Ref)
	if err != nil {
		return nil, fmt.Errorf("encode task: %w", err)
	}
	return data, nil
}

func decodePayload(kind string, payload []byte) (Task, error) {
	t := Task{Type: kind}
	if err := json.Unmarshal(payload, &t.Ref); err != nil {
		return t, fmt.Errorf("decode task: %w", err)
	}
	return t, nil
}

// Keys of asynq that this package reads, and the channel that wakes a queue's servers.
func taskKey(queue, id string) string  { return "asynq:{" + queue + "}:t:" + id }
func listKey(queue, set string) string { return "asynq:{" + queue + "}:" + set }
func wakeChannel(queue string) string  { return "sf:wake:" + queue }

const queuesKey = "asynq:queues"

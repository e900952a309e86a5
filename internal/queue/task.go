package queue

import (
	"encoding/json"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Types of tasks.
const (
	TypeJob      = "job"      // run the job
	TypeCallback = "callback" // tell the job's owner that it is done
)

// QueueCallbacks is the queue of all callbacks.
const QueueCallbacks = "callbacks"

// Task says that there is something to do for a job. It holds no more than the name: the record is the truth.
type Task struct {
	Type string // TypeJob or TypeCallback
	Ref  farm.Ref
}

// encodePayload gives what travels: the ref alone, because asynq writes it again with every heartbeat.
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

// Keys of asynq that are read here too, and the channel on which a queue's servers are woken.
func taskKey(queue, id string) string  { return "asynq:{" + queue + "}:t:" + id }
func listKey(queue, set string) string { return "asynq:{" + queue + "}:" + set }
func wakeChannel(queue string) string  { return "sf:wake:" + queue }

const queuesKey = "asynq:queues"

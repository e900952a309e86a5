package farm

import "time"

// Image is a sandbox image that a node offers.
type Image struct {
	Name        string    `json:"name"`
	Ref         string    `json:"ref"`          // what the engine calls it
	ID          string    `json:"id,omitempty"` // of what is in it: another build has another one
	Description string    `json:"description,omitempty"`
	Languages   []string  `json:"languages"`
	Size        int64     `json:"size"`
	CreatedAt   time.Time `json:"created_at"`
}

// Worker is the registration of a worker process. It is renewed with every heartbeat and vanishes without it.
type Worker struct {
	ID        string      `json:"id"`
	Node      string      `json:"node"` // the engine it is attached to
	Host      string      `json:"host"`
	Version   string      `json:"version"`
	Queues    []string    `json:"queues"`
	Images    []Image     `json:"images"`
	Slots     int         `json:"slots"`   // jobs at once
	Running   int         `json:"running"` // jobs now
	Sandboxes int         `json:"sandboxes"`
	StartedAt time.Time   `json:"started_at"`
	SeenAt    time.Time   `json:"seen_at"`
	Capacity  Capacity    `json:"capacity"`          // of its node, for sandboxes; zero: not known
	Reserved  Capacity    `json:"promised"`          // to the sandboxes of its node
	Pool      []PoolStock `json:"pool,omitempty"`    // of its node
	Problem   string      `json:"problem,omitempty"` // why it takes no jobs now, in a sentence; empty when it does

	GPUs []GPUDevice `json:"gpus,omitempty"` // devices of its node that it offers
}

// LeasedGPUs counts the devices that sandboxes have.
func (w Worker) LeasedGPUs() (n int) {
	for _, d := range w.GPUs {
		if d.Leased {
			n++
		}
	}
	return n
}

// PoolStock says how many sandboxes of an image are started ahead of need.
type PoolStock struct {
	Image  string `json:"image"`
	Target int    `json:"target"` // wanted, by the settings of the worker that tells it
	Ready  int    `json:"ready"`  // waiting for a create, on the whole node
}

// QueueCPU is the queue of new sandboxes. Those that exist are served by the queue of their node.
const QueueCPU = "cpu"

// QueueControl is the queue of what ends sandboxes that have no node yet. It is never held back for want of room.
const QueueControl = "control"

// NodeQueue is the queue of everything for sandboxes of a node.
func NodeQueue(node string) string { return "node-" + node }

// QueueDepth says how much waits in a queue.
type QueueDepth struct {
	Name    string `json:"name"`
	Depth   int    `json:"depth"` // waiting
	Running int    `json:"running"`
	// OldestSeconds is for how long the job that is next has waited for the queue or in it; 0 when none waits.
	OldestSeconds float64 `json:"oldest_seconds"`
}

package farm

import "time"

// MaxFleetEvents is how many events of the fleet are kept, the newest.
const MaxFleetEvents = 200

// FleetEventKind says what happened to a worker or a node.
type FleetEventKind string

// The kinds of events of the fleet.
const (
	FleetWorkerStarted   FleetEventKind = "worker_started"
	FleetWorkerStopped   FleetEventKind = "worker_stopped"   // in order: it handed its jobs over
	FleetWorkerLost      FleetEventKind = "worker_lost"      // its heartbeat has expired
	FleetWorkerProblem   FleetEventKind = "worker_problem"   // it accepts no jobs; Detail says why
	FleetWorkerRecovered FleetEventKind = "worker_recovered" // it accepts jobs again
	FleetNodeEnded       FleetEventKind = "node_ended"       // it had no worker for too long: its sandboxes are lost
	FleetDrainStarted    FleetEventKind = "drain_started"
	FleetDrained         FleetEventKind = "node_drained" // Detail is the state: drained or hibernated
	FleetDrainEnded      FleetEventKind = "drain_ended"
)

// FleetEvent is something that happened to a worker or a node.
type FleetEvent struct {
	ID        string         `json:"-"` // in the order of the events
	At        time.Time      `json:"at"`
	Kind      FleetEventKind `json:"kind"`
	Node      string         `json:"node"`
	Host      string         `json:"host,omitempty"` // empty: not known
	Worker    string         `json:"worker,omitempty"`
	Jobs      int            `json:"jobs,omitempty"`      // of a lost worker, which others take over
	Sandboxes int            `json:"sandboxes,omitempty"` // that are lost
	Detail    string         `json:"detail,omitempty"`
}

// SeenWorker is what is remembered of a worker to notice its next event.
type SeenWorker struct {
	Node    string `json:"node"`
	Host    string `json:"host"`
	Problem string `json:"problem,omitempty"`
}

// Subjects of the fleet's memory.
const (
	SeenWorkerPrefix = "worker:" // before the id of a worker; a SeenWorker as JSON
	SeenDrainPrefix  = "drain:"  // before a node that is drained; a DrainState
)

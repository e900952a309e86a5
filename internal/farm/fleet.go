package farm

import (
	"math"
	"time"
)

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

// Capacity is an amount of memory and cores: what a node has for sandboxes, or what is reserved of it.
type Capacity struct {
	MemoryMB int     `json:"memory_mb"` // MiB
	CPUs     float64 `json:"cpus"`      // cores
}

// Capacity is what must be reserved for a sandbox with these resources.
func (r Resources) Capacity() Capacity { return Capacity{MemoryMB: r.MemoryMB, CPUs: r.CPUs} }

// Millicores are the cores in thousandths, as records count them.
func (r Capacity) Millicores() int { return int(math.Round(r.CPUs * 1000)) }

// Plus is the sum.
func (r Capacity) Plus(other Capacity) Capacity {
	return Capacity{MemoryMB: r.MemoryMB + other.MemoryMB, CPUs: r.CPUs + other.CPUs}
}

// Minus is r without other, never below zero.
func (r Capacity) Minus(other Capacity) Capacity {
	return Capacity{MemoryMB: max(r.MemoryMB-other.MemoryMB, 0), CPUs: max(r.CPUs-other.CPUs, 0)}
}

// coresSlack absorbs rounding: cores are counted in thousandths.
const coresSlack = 0.0005

// Within reports whether r fits into other.
func (r Capacity) Within(other Capacity) bool {
	return r.MemoryMB <= other.MemoryMB && r.CPUs <= other.CPUs+coresSlack
}

// Share is the part of a capacity that r takes, of memory or of cores, whichever is larger. It is 1 of an empty capacity.
func (r Capacity) Share(capacity Capacity) float64 {
	if capacity.MemoryMB <= 0 || capacity.CPUs <= 0 {
		return 1
	}
	return max(float64(r.MemoryMB)/float64(capacity.MemoryMB), r.CPUs/capacity.CPUs)
}

// DrainIdle is what becomes of idle sandboxes of a node that is drained; the zero value is DrainKeep.
type DrainIdle string

// The values of DrainIdle.
const (
	DrainKeep      DrainIdle = ""          // they stay until they are closed or expire
	DrainHibernate DrainIdle = "hibernate" // those that can are hibernated, on the node's own disk
	DrainClose     DrainIdle = "close"     // they are closed
)

// DrainIdleAfter is how long a sandbox must be unused before a drain hibernates or closes it.
const DrainIdleAfter = 30 * time.Second

// Drain says that a node takes no new sandboxes.
type Drain struct {
	Node  string    `json:"node"`
	Since time.Time `json:"since"`
	Idle  DrainIdle `json:"idle,omitempty"`
}

// DrainState is how far a drain is.
type DrainState string

// The states of a drain.
const (
	DrainRuns       DrainState = "draining"   // sandboxes or jobs are left, or a worker does not know yet
	DrainHibernated DrainState = "hibernated" // only hibernated sandboxes are left: the host may be restarted, but not removed
	DrainDone       DrainState = "drained"    // nothing is left: the host may be removed
)

// DrainProgress is what is left on a node that is drained.
type DrainProgress struct {
	Sandboxes  int       // open ones, also those that hibernate
	Hibernated int       // those that hibernate
	Jobs       int       // that its workers run
	Ends       time.Time // when the last of its sandboxes expires; zero: there is none
	State      DrainState
}

// ProgressOfDrain says how far the drain of a node is, from the node's live workers and its open sandboxes.
func ProgressOfDrain(workers []Worker, open []*Sandbox) DrainProgress {
	p := DrainProgress{Sandboxes: len(open), State: DrainDone}
	known := true
	for _, w := range workers {
		p.Jobs += w.Running
		known = known && w.Draining
	}
	for _, s := range open {
		if s.State == SandboxHibernated {
			p.Hibernated++
		}
		if s.ExpiresAt.After(p.Ends) {
			p.Ends = s.ExpiresAt
		}
	}
	switch {
	case !known, p.Jobs > 0, p.Sandboxes > p.Hibernated:
		p.State = DrainRuns
	case p.Sandboxes > 0:
		p.State = DrainHibernated
	}
	return p
}

// ActivityKept is how far back the farm's activity goes.
const ActivityKept = time.Hour

// Minute is what became of the jobs that ended in one minute. Sums can be added up.
type Minute struct {
	At     int64 `json:"at"`     // minutes since 1970
	Ended  int   `json:"ended"`  // jobs, however they ended
	Failed int   `json:"failed"` // of them, those that did not complete and were not canceled
	// Sums over the jobs, in milliseconds: from the acceptance to the claim, and in the sandbox.
	WaitMS int64 `json:"wait"`
	RunMS  int64 `json:"run"`
	// MaxWaitMS is the longest wait of a job.
	MaxWaitMS int64 `json:"max_wait"`
	// Queues counts the jobs by the queue that they came from; the records of releases that did not have it say nothing.
	Queues map[string]int `json:"queues,omitempty"`
}

// MinuteOf is the number of a time's minute.
func MinuteOf(t time.Time) int64 { return t.Unix() / 60 }

// Plus adds up what two workers say of a minute.
func (m Minute) Plus(o Minute) Minute {
	sum := Minute{
		At: m.At, Ended: m.Ended + o.Ended, Failed: m.Failed + o.Failed, WaitMS: m.WaitMS + o.WaitMS, RunMS: m.RunMS + o.RunMS,
		MaxWaitMS: max(m.MaxWaitMS, o.MaxWaitMS),
	}
	for _, queues := range []map[string]int{m.Queues, o.Queues} {
		for name, n := range queues {
			if sum.Queues == nil {
				sum.Queues = map[string]int{}
			}
			sum.Queues[name] += n
		}
	}
	return sum
}

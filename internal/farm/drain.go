package farm

import "time"

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

// DrainStates lists every state, in the order of a drain's life.
func DrainStates() []DrainState { return []DrainState{DrainRuns, DrainHibernated, DrainDone} }

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

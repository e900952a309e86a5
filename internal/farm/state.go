package farm

import "slices"

// JobState is the state of a job.
type JobState string

// The states of a job. A job whose code raised is completed: an error of the user's code is a result. Failed and lost are faults of
// the farm.
const (
	JobQueued    JobState = "queued"
	JobRunning   JobState = "running"
	JobCompleted JobState = "completed"
	JobFailed    JobState = "failed"
	JobTimedOut  JobState = "timed_out"
	JobCanceled  JobState = "canceled"
	JobLost      JobState = "lost"
)

// jobMoves is the transition table of jobs. running → running is a takeover: the same execution under a new attempt.
// running → queued is a requeue by a worker that could not begin it. queued → completed is a close whose sandbox has ended without it.
var jobMoves = map[JobState][]JobState{
	JobQueued:    {JobRunning, JobCompleted, JobCanceled, JobFailed, JobLost},
	JobRunning:   {JobQueued, JobRunning, JobCompleted, JobFailed, JobTimedOut, JobCanceled, JobLost},
	JobCompleted: {},
	JobFailed:    {},
	JobTimedOut:  {},
	JobCanceled:  {},
	JobLost:      {},
}

// JobStates lists every state, in the order of a job's life.
func JobStates() []JobState {
	return []JobState{JobQueued, JobRunning, JobCompleted, JobFailed, JobTimedOut, JobCanceled, JobLost}
}

// Valid reports whether s is a state.
func (s JobState) Valid() bool { _, ok := jobMoves[s]; return ok }

// Final reports whether no state can follow.
func (s JobState) Final() bool { moves, ok := jobMoves[s]; return ok && len(moves) == 0 }

// To reports whether next may follow s.
func (s JobState) To(next JobState) bool { return slices.Contains(jobMoves[s], next) }

// From lists the states that s may follow.
func (s JobState) From() []JobState {
	var from []JobState
	for _, before := range JobStates() {
		if before.To(s) {
			from = append(from, before)
		}
	}
	return from
}

// SandboxState is the state of a sandbox.
type SandboxState string

// The states of a sandbox. A hibernated one is on the disk of its node, or on the way there or back: an unfinished job says which.
const (
	SandboxQueued     SandboxState = "queued"
	SandboxStarting   SandboxState = "starting"
	SandboxReady      SandboxState = "ready"
	SandboxBusy       SandboxState = "busy"
	SandboxHibernated SandboxState = "hibernated"
	SandboxClosing    SandboxState = "closing"
	SandboxClosed     SandboxState = "closed"
	SandboxExpired    SandboxState = "expired"
	SandboxFailed     SandboxState = "failed"
	SandboxLost       SandboxState = "lost"
)

// sandboxMoves is the transition table of sandboxes. Closing ends as closed, or as expired if the deadline had passed.
// starting → queued is a create that is moved to another node.
var sandboxMoves = map[SandboxState][]SandboxState{
	SandboxQueued:     {SandboxStarting, SandboxClosing, SandboxClosed, SandboxFailed, SandboxLost},
	SandboxStarting:   {SandboxQueued, SandboxStarting, SandboxReady, SandboxClosing, SandboxFailed, SandboxLost},
	SandboxReady:      {SandboxBusy, SandboxHibernated, SandboxClosing, SandboxFailed, SandboxLost},
	SandboxBusy:       {SandboxReady, SandboxClosing, SandboxFailed, SandboxLost},
	SandboxHibernated: {SandboxReady, SandboxBusy, SandboxClosing, SandboxFailed, SandboxLost},
	SandboxClosing:    {SandboxClosed, SandboxExpired, SandboxLost},
	SandboxClosed:     {},
	SandboxExpired:    {},
	SandboxFailed:     {},
	SandboxLost:       {},
}

// SandboxStates lists every state, in the order of a sandbox's life.
func SandboxStates() []SandboxState {
	return []SandboxState{
		SandboxQueued, SandboxStarting, SandboxReady, SandboxBusy, SandboxHibernated,
		SandboxClosing, SandboxClosed, SandboxExpired, SandboxFailed, SandboxLost,
	}
}

// Valid reports whether s is a state.
func (s SandboxState) Valid() bool { _, ok := sandboxMoves[s]; return ok }

// Final reports whether no state can follow.
func (s SandboxState) Final() bool { moves, ok := sandboxMoves[s]; return ok && len(moves) == 0 }

// To reports whether next may follow s.
func (s SandboxState) To(next SandboxState) bool { return slices.Contains(sandboxMoves[s], next) }

// Accepts reports whether a sandbox in this state accepts work: it waits in the FIFO while the sandbox starts, and resumes one that
// is hibernated.
func (s SandboxState) Accepts() bool {
	switch s {
	case SandboxQueued, SandboxStarting, SandboxReady, SandboxBusy, SandboxHibernated:
		return true
	default:
		return false
	}
}

// OpenStates names the states of sandboxes that accept work, as filters of lists take them. The index of open sandboxes has all of these, so such a list
// reads no records of others.
func OpenStates() []string {
	var names []string
	for _, s := range SandboxStates() {
		if s.Accepts() {
			names = append(names, string(s))
		}
	}
	return names
}

// NoMoreWork is the error of work for a sandbox whose state does not accept it. reason, a sentence, says why one has expired.
func NoMoreWork(id string, state SandboxState, reason string) error {
	if state == SandboxExpired && reason != "" {
		return Conflictf("Sandbox %s is expired and accepts no more work. %s Create a new one.", id, reason)
	}
	return Conflictf("Sandbox %s is %s and accepts no more work. Create a new one.", id, state)
}

// Reachable reports whether a sandbox in this state has an agent that can be asked for processes.
func (s SandboxState) Reachable() bool { return s == SandboxReady || s == SandboxBusy }

package farm

import "slices"

// JobOutcome says whether what a job ran was successful, which its state does not: code that raised is completed. Empty: the job has not
// ended, or was canceled.
type JobOutcome string

// The outcomes of a job.
const (
	// OutcomeOK: the job is completed, and so is what it ran: code without an exception, exit codes of 0, packages that were installed.
	OutcomeOK JobOutcome = "ok"
	// OutcomeFailed: something of that is not so, or the job failed, timed out or was lost.
	OutcomeFailed JobOutcome = "failed"
)

// JobOutcomes lists them.
func JobOutcomes() []JobOutcome { return []JobOutcome{OutcomeOK, OutcomeFailed} }

// OutcomeOf is the outcome of a job in a state, with a result; nil: it has none.
func OutcomeOf(state JobState, r *Result) JobOutcome {
	switch state {
	case JobCompleted:
		if r.successful() {
			return OutcomeOK
		}
		return OutcomeFailed
	case JobFailed, JobTimedOut, JobLost:
		return OutcomeFailed
	default:
		return ""
	}
}

func (r *Result) successful() bool {
	if r == nil {
		return true
	}
	if e := r.Execute; e != nil && (e.ExitCode != 0 || e.Error != nil && e.Error.Name != "SystemExit") {
		return false
	}
	if r.Command != nil && slices.ContainsFunc(r.Command.Commands, func(c CommandOutcome) bool { return c.ExitCode != 0 }) {
		return false
	}
	return r.Install == nil || !slices.ContainsFunc(r.Install.Packages, func(p PackageOutcome) bool { return p.Status == PackageFailed })
}

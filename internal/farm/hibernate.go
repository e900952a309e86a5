package farm

import "time"

// CannotHibernate is the refusal to hibernate a sandbox.
func CannotHibernate(s *Sandbox) *Error {
	switch {
	case s.Spec.GPU != nil:
		return Conflictf("Sandbox %s has a GPU, whose memory cannot be stored, so it cannot hibernate. Close it, or let it run.", s.ID)
	case s.Runtime != "" && !OwnKernel(s.Runtime):
		return Conflictf("Sandbox %s runs under %s, which cannot store a running sandbox. Create one with the runtime runsc (gVisor) to hibernate it; the operator enables it: engine.runtime = \"runsc\" (docs/operations.md).", s.ID, s.Runtime)
	default:
		return Conflictf("The node of sandbox %s makes no checkpoints, so it cannot hibernate: they need gVisor (runsc) and an engine with experimental features (`sandfarm doctor`). Close it, or let it run.", s.ID)
	}
}

// OnIdle is what happens to a sandbox that has been idle for its IdleSeconds; the zero value is OnIdleClose.
type OnIdle string

// The values of OnIdle.
const (
	OnIdleClose     OnIdle = ""
	OnIdleHibernate OnIdle = "hibernate"
)

// SleepsAt reports whether a sandbox whose deadline has passed hibernates instead of being closed: only its idle limit is over.
func (s *Sandbox) SleepsAt(now time.Time) bool {
	return s.Spec.OnIdle == OnIdleHibernate && s.State == SandboxReady && now.Before(s.ExpiresAt)
}

package farm

// CannotHibernate is the refusal to hibernate a sandbox.
func CannotHibernate(s *Sandbox) *Error {
	switch {
	case s.Spec.GPU != nil:
		return Conflictf("Sandbox %s has a GPU, whose memory cannot be stored, so it cannot hibernate. Close it, or let it run.", s.ID)
	case s.Runtime != "" && !OwnKernel(s.Runtime):
		return Conflictf("Sandbox %s runs under %s, which cannot store a running sandbox. Create one with the runtime runsc (gVisor) to hibernate it.", s.ID, s.Runtime)
	default:
		return Conflictf("The node of sandbox %s makes no checkpoints, so it cannot hibernate: they need gVisor (runsc) and an engine with experimental features (`sandfarm doctor`). Close it, or let it run.", s.ID)
	}
}

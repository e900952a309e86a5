package server

import (
	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// checkInstall refuses what no installer could do.
func checkInstall(in *agent.Install) error {
	if in == nil {
		return farm.Invalidf("there is nothing to install")
	}
	return nil
}

// runInstall installs, one execution after the other.
func (s *Server) runInstall(e *execution) {
	if !s.installs.acquire(e.stopped) {
		e.finish(interruptedOutcome())
		return
	}
	defer s.installs.release()
	e.begin()
	e.finish(agent.Outcome{})
}

package server

import (
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// run takes an execution from its start to its final frame.
func (s *Server) run(e *execution) {
	defer func() {
		if r := recover(); r != nil {
			s.cfg.Logger.Error("execution panicked", "panic", fmt.Sprint(r))
			e.finish(agent.Outcome{ExitCode: 1, Error: &farm.CodeError{Name: "AgentError", Value: fmt.Sprint(r)}})
		}
	}()
	switch e.spec.Kind {
	case farm.KindExecute:
		s.runCode(e)
		return
	case farm.KindInstall:
		s.runInstall(e)
		return
	}
	e.begin()
	e.finish(s.measured(e, s.runCommands))
}

// measured runs an execution with what is measured around it: time, changed files, memory kills.
func (s *Server) measured(e *execution, body func(*execution) agent.Outcome) agent.Outcome {
	_, limit, kills := memoryInfo()
	before := newSnapshot(s.cfg.Workspace, s.seed)
	began := time.Now()
	out := body(e)
	out.RunMS = milliseconds(time.Since(began))
	out.Files, out.Skipped = before.changes(s.cfg.Workspace, e.spec.MaxFiles, e.spec.MaxFileBytes)
	died := out.ExitCode == exitKilled || (out.Error != nil && out.Error.Name == farm.ErrorKernelDied)
	if _, _, now := memoryInfo(); now > kills && died && !e.isStopped() {
		out.OutOfMemory = true
		out.Error = &farm.CodeError{Name: farm.ErrorOutOfMemory, Value: memorySentence(limit), Traceback: []string{}}
	}
	return out
}

func memorySentence(limit int64) string {
	if limit <= 0 {
		return "The code was ended because the sandbox's memory limit was reached. Use less memory at once, or create a sandbox with more."
	}
	return fmt.Sprintf("The code was ended because it reached the sandbox's memory limit of %d MiB. "+
		"Use less memory at once, or create a sandbox with more.", limit>>20)
}

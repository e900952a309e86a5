package server

import (
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// run runs an execution to its final frame.
func (s *Server) run(e *execution.Execution) {
	defer func() {
		if r := recover(); r != nil {
			s.cfg.Logger.Error("execution panicked", "panic", fmt.Sprint(r))
			e.Finish(execution.Failed("AgentError", fmt.Sprint(r)))
		}
	}()
	switch e.Spec.Kind {
	case farm.KindExecute:
		s.kernels.Run(e)
		return
	case farm.KindInstall:
		s.installer.Run(e)
		return
	}
	e.Begin()
	e.Finish(s.measured(e, s.commands.Run))
}

// measured runs an execution and adds to its outcome the time it took, the files it changed, and whether the kernel killed it
// because its memory was used up.
func (s *Server) measured(e *execution.Execution, body func(*execution.Execution) agent.Outcome) agent.Outcome {
	kills := s.kills()
	before := s.files.Snapshot()
	began := time.Now()
	out := body(e)
	out.RunMS = float64(time.Since(began).Microseconds()) / 1000
	out.Files, out.Skipped, out.LeftOut = before.Changes(e.Spec.MaxFiles, e.Spec.MaxFileBytes)
	return s.ended(e, out, kills)
}

// kills counts what was killed in the sandbox for its limits.
type kills struct{ kernel, sockets, terminals, memory int64 }

func (s *Server) kills() kills {
	return kills{process.Kills(), s.cfg.Sockets.Kills(), s.cfg.Terminals.Kills(), s.cfg.Memory.Kills()}
}

// ended adds to an outcome which of the sandbox's limits ended the code, if one did since before.
func (s *Server) ended(e *execution.Execution, out agent.Outcome, before kills) agent.Outcome {
	died := out.ExitCode == process.ExitKilled || (out.Error != nil && out.Error.Name == farm.ErrorKernelDied)
	if !died {
		return out
	}
	now := s.kills()
	sentence := ""
	switch {
	case !e.IsStopped() && (now.kernel > before.kernel || now.memory > before.memory):
		_, limit := process.Memory()
		files, places := s.kernels.Files()
		sentence = memorySentence(limit, files, places)
	case now.sockets > before.sockets:
		sentence = socketSentence()
	case now.terminals > before.terminals:
		sentence = terminalSentence()
	default:
		return out
	}
	if out.Restarted {
		sentence += " A new kernel has been started; variables are gone."
	}
	out.OutOfMemory = true
	out.Error = &farm.CodeError{Name: farm.ErrorOutOfMemory, Value: sentence, Traceback: []string{}}
	return out
}

func socketSentence() string {
	return fmt.Sprintf("The code was ended because the sandbox had more than %d sockets, with connections that it had not accepted. Accept or close connections.", process.MaxSockets)
}

func terminalSentence() string {
	return fmt.Sprintf("The code was ended because the sandbox had more than %d pseudo-terminals. Close those that are not used.", process.MaxTerminals)
}

// filesPart is the part of the limit of memory that files take when the sentence about it names them.
const filesPart = 4

// memorySentence says that the code reached this limit of memory (0: unknown), and which files take a good part of it: so many bytes in
// these places.
func memorySentence(limit, files int64, places string) string {
	const help = "se less memory at once, or create a sandbox with more memory_mb."
	switch {
	case limit <= 0:
		return "The code was ended because the sandbox's memory limit was reached. U" + help
	case files < limit/filesPart || places == "":
		return fmt.Sprintf("The code was ended because it reached the sandbox's memory limit of %d MiB. U%s", limit>>20, help)
	default:
		return fmt.Sprintf("The code was ended because it reached the sandbox's memory limit of %d MiB. Files take %d MiB of it (%s). Delete some of them, u%s",
			limit>>20, files>>20, places, help)
	}
}

package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Exit codes that a shell would give.
const (
	exitMissing = 1   // no such directory
	exitCannot  = 126 // could not be started
	exitNoShell = 127 // nothing to start it with
	exitKilled  = 128 + int(syscall.SIGKILL)
)

// runCommands runs the commands of an execution one after the other, each by a shell of its own, until one fails.
func (s *Server) runCommands(e *execution) agent.Outcome {
	began := time.Now()
	deadline := e.spec.Timeout
	outcome := agent.Outcome{}
	for i, command := range e.spec.Commands {
		if e.isStopped() {
			break
		}
		if deadline > 0 { // the timeout is for all commands together
			e.spec.Timeout = max(deadline-time.Since(began), time.Millisecond)
		}
		mark := agent.CommandMark{Index: i}
		s.appendJSON(e, agent.FrameCommandStart, mark)
		start := time.Now()
		mark.ExitCode = s.runCommand(e, command)
		mark.DurationMS = milliseconds(time.Since(start))
		s.appendJSON(e, agent.FrameCommandEnd, mark)
		if mark.ExitCode != 0 {
			outcome.ExitCode = mark.ExitCode
			if !e.spec.ContinueOnError {
				break
			}
		}
	}
	return outcome
}

func (s *Server) runCommand(e *execution, command string) int {
	complain := func(code int, format string, args ...any) int {
		e.log.append(agent.FrameStderr, fmt.Appendf(nil, format+"\n", args...))
		return code
	}
	dir := s.directory(e.spec.Cwd)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return complain(exitMissing, "cannot change to directory %s: no such directory", dir)
	}
	shell := lookPath(s.image, "bash", "sh")
	if shell == "" {
		return complain(exitNoShell, "this image has no shell")
	}
	p, err := s.spawn(e, []string{shell, "-c", command}, s.executionEnv(e), dir, nil)
	switch {
	case errors.Is(err, syscall.EAGAIN):
		return complain(exitCannot, "cannot start the command: the sandbox's limit of processes is reached")
	case errors.Is(err, syscall.E2BIG):
		return complain(exitCannot, "cannot start the command: it or its environment is too long")
	case err != nil:
		return complain(exitCannot, "cannot start the command: %v", err)
	}
	s.wait(e, p)
	return p.code()
}

// directory resolves a working directory: relative to the workspace, or absolute. The workspace's public name always means the
// workspace.
func (s *Server) directory(cwd string) string {
	if rest, err := farm.CleanPath(cwd); err == nil {
		return filepath.Join(s.cfg.Workspace, rest)
	}
	if filepath.IsAbs(cwd) {
		return filepath.Clean(cwd)
	}
	return filepath.Join(s.cfg.Workspace, cwd)
}

// executionEnv is the environment of a process of an execution.
func (s *Server) executionEnv(e *execution) []string {
	set := maps.Clone(e.spec.Env)
	if set == nil {
		set = map[string]string{}
	}
	set["SBX_EXEC"] = e.id
	return withEnv(s.env, set)
}

func (s *Server) appendJSON(e *execution, kind agent.FrameType, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		s.cfg.Logger.Error("encode frame", "error", err)
		return
	}
	e.log.append(kind, raw)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

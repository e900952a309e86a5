// Package process starts and ends the processes of a sandbox: the shells of commands, kernels and installers. It copies their
// output to the log of their execution, reaps every child, and kills the processes of a stopped execution, including those
// that try to escape.
package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Exit codes as a shell would return them.
const (
	exitNoDirectory = 1   // the working directory does not exist
	exitNotStarted  = 126 // the shell could not be started
	exitNoShell     = 127 // the image has none
)

// ExitKilled is the exit code of a process that was killed.
const ExitKilled = 128 + int(syscall.SIGKILL)

// Commands runs lists of shell commands.
type Commands struct {
	Reaper    *Reaper
	Workspace string
	Image     []string // the environment in which the image's shell is found
	Env       []string // the environment of the commands
}

// Run runs the commands of an execution in order, each in its own shell, until one fails.
func (c *Commands) Run(e *execution.Execution) agent.Outcome {
	began := time.Now()
	timeout := e.Spec.Timeout
	outcome := agent.Outcome{}
	for i, command := range e.Spec.Commands {
		if e.IsStopped() {
			break
		}
		if timeout > 0 { // the timeout covers all commands together
			e.Spec.Timeout = max(timeout-time.Since(began), time.Millisecond)
		}
		mark := agent.CommandMark{Index: i}
		appendJSON(e.Log, agent.FrameCommandStart, mark)
		start := time.Now()
		mark.ExitCode = c.runOne(e, command)
		mark.DurationMS = float64(time.Since(start).Microseconds()) / 1000
		appendJSON(e.Log, agent.FrameCommandEnd, mark)
		if mark.ExitCode != 0 {
			outcome.ExitCode = mark.ExitCode
			if !e.Spec.ContinueOnError {
				break
			}
		}
	}
	return outcome
}

// OutOfProcesses is why nothing more can be started in a sandbox, and what helps; it follows a colon.
const OutOfProcesses = "the sandbox's limit of processes is reached. End processes or close the sandbox."

var outOfProcesses = regexp.MustCompile(`(?i)resource temporarily unavailable|can't start new thread|Tokio executor failed|os error 11\)`)

// IsOutOfProcesses reports whether the text of an error, or what a program printed, says that the limit of processes is reached.
func IsOutOfProcesses(text string) bool { return outOfProcesses.MatchString(text) }

// runOne runs one command and returns its exit code.
func (c *Commands) runOne(e *execution.Execution, command string) int {
	fail := func(code int, format string, args ...any) int {
		e.Log.Append(agent.FrameStderr, fmt.Appendf(nil, format+"\n", args...))
		return code
	}
	p, err := c.start(e, nil, command, Streams{})
	switch {
	case errors.Is(err, errNoDirectory):
		return fail(exitNoDirectory, "cannot change to directory %s: no such directory", Directory(c.Workspace, e.Spec.Cwd))
	case errors.Is(err, errClosed):
		return fail(exitNoDirectory, "cannot change to directory %s: permission denied", Directory(c.Workspace, e.Spec.Cwd))
	case errors.Is(err, errNoShell):
		return fail(exitNoShell, "this image has no shell")
	case errors.Is(err, syscall.EAGAIN):
		return fail(exitNotStarted, "cannot start the command: "+OutOfProcesses)
	case errors.Is(err, syscall.E2BIG):
		return fail(exitNotStarted, "cannot start the command: it or its environment is too long")
	case err != nil:
		return fail(exitNotStarted, "cannot start the command: %v", err)
	}
	c.Reaper.Wait(e, p)
	return p.ExitCode()
}

var (
	errNoDirectory = errors.New("the working directory does not exist")
	errClosed      = errors.New("the working directory may not be entered")
	errNoShell     = errors.New("the image has no shell")
)

// start starts a program, or a command in the image's shell if argv is empty.
func (c *Commands) start(e *execution.Execution, argv []string, command string, io Streams) (*Logged, error) {
	dir := Directory(c.Workspace, e.Spec.Cwd)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, errNoDirectory
	}
	if unix.Access(dir, unix.X_OK) != nil {
		return nil, errClosed
	}
	if len(argv) == 0 {
		shell := LookPath(c.Image, "bash", "sh")
		if shell == "" {
			return nil, errNoShell
		}
		argv = []string{shell, "-c", command}
	}
	return c.Reaper.StartLogged(e, argv, ExecutionEnv(c.Env, e), dir, io)
}

// Start starts a process that runs beside jobs, whose output goes to the log of its execution. The caller must then call Reaper.Wait. An
// error says to the caller of the farm why it did not start. before is the input of the process that this one replaces; nil: it replaces none.
func (c *Commands) Start(e *execution.Execution, spec farm.ProcessSpec, before *Input) (*Logged, error) {
	argv := slices.Clone(spec.Argv)
	if len(argv) > 0 && !strings.Contains(argv[0], "/") {
		program := LookPath(ExecutionEnv(c.Env, e), argv[0])
		if program == "" {
			return nil, farm.Invalidf("The sandbox has no program %q in its PATH.", execution.Cut(argv[0], 64))
		}
		argv[0] = program
	}
	p, err := c.start(e, argv, spec.Command, Streams{Input: spec.Stdin, Terminal: spec.Terminal, Before: before})
	switch {
	case err == nil:
		return p, nil
	case errors.Is(err, errNoDirectory):
		return nil, farm.Invalidf("The directory %q does not exist in the sandbox.", execution.Cut(Directory(farm.Workspace, e.Spec.Cwd), 256))
	case errors.Is(err, errClosed):
		return nil, farm.Invalidf("The directory %q may not be entered by the sandbox's user.", execution.Cut(Directory(farm.Workspace, e.Spec.Cwd), 256))
	case errors.Is(err, errNoShell):
		return nil, farm.Invalidf("The image of the sandbox has no shell: give argv instead of command.")
	case errors.Is(err, syscall.EAGAIN):
		return nil, farm.Wrap(err, farm.CodeExhausted, "The process was not started: "+OutOfProcesses)
	case errors.Is(err, syscall.ENOMEM):
		return nil, farm.Wrap(err, farm.CodeExhausted, "The process was not started: the sandbox's limit of memory is reached.")
	case errors.Is(err, syscall.E2BIG):
		return nil, farm.Wrap(err, farm.CodeInvalid, "The process was not started: its arguments and environment are too long.")
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission), errors.Is(err, syscall.ENOEXEC), errors.Is(err, syscall.ENOTDIR):
		if len(spec.Argv) == 0 {
			return nil, farm.Wrap(err, farm.CodeInvalid, "The shell of the image cannot be started.")
		}
		return nil, farm.Wrap(err, farm.CodeInvalid, "%q is no program that can be started.", execution.Cut(spec.Argv[0], 64))
	default:
		return nil, err
	}
}

// Directory resolves a working directory, which is absolute or relative to the workspace. The workspace's public name
// (farm.Workspace) always means the workspace.
func Directory(workspace, cwd string) string {
	if rest, err := farm.CleanPath(cwd); err == nil {
		return filepath.Join(workspace, rest)
	}
	if filepath.IsAbs(cwd) {
		return filepath.Clean(cwd)
	}
	return filepath.Join(workspace, cwd)
}

// ExecutionEnv is the environment of a process of an execution: base, the variables of its request and its mark.
func ExecutionEnv(base []string, e *execution.Execution) []string {
	set := maps.Clone(e.Spec.Env)
	if set == nil {
		set = map[string]string{}
	}
	set[execution.EnvName] = e.ID
	return WithEnv(base, set)
}

// appendJSON logs the start or end of a command.
func appendJSON(log *execution.Log, kind agent.FrameType, mark agent.CommandMark) {
	if raw, err := json.Marshal(mark); err == nil { // cannot fail: plain fields only
		log.Append(kind, raw)
	}
}

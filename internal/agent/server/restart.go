package server

import (
	"fmt"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// firstRestartPause and lastRestartPause are the shortest and longest time between the end of a process and its next start. It doubles.
	firstRestartPause, lastRestartPause = 100 * time.Millisecond, 30 * time.Second
	// steadyRun is how long a process runs after which an end is the first failure again.
	steadyRun = time.Minute
	// exitNotStarted is the exit code of a process that could not be started again, as a shell has it.
	exitNotStarted = 126
)

// restarts decides how often and when a process that fails is started again.
type restarts struct {
	limit int // in a row
	inRow int
	pause time.Duration
}

// after is asked when a process has failed after a run of this length. more: start it again after the pause.
func (r *restarts) after(ran time.Duration) (pause time.Duration, more bool) {
	if ran >= steadyRun {
		r.inRow = 0
	}
	if r.inRow >= r.limit {
		return 0, false
	}
	if r.inRow++; r.inRow == 1 {
		r.pause = firstRestartPause
	} else {
		r.pause = min(2*r.pause, lastRestartPause)
	}
	return r.pause, true
}

// runProcess waits for the end of a process that was started, and starts it again as its spec says. The timeout is that of all runs together.
func (s *Server) runProcess(p *liveProcess, spec farm.ProcessSpec) agent.Outcome {
	policy := restarts{limit: spec.MaxRestarts}
	for logged := p.now(); ; {
		began := time.Now()
		out := agent.Outcome{ExitCode: exitNotStarted}
		if logged != nil {
			before := s.kills()
			s.commands.Reaper.Wait(p.Execution, logged)
			out = s.ended(p.Execution, agent.Outcome{ExitCode: logged.ExitCode()}, before)
		}
		if spec.Restart != farm.RestartOnFailure || out.ExitCode == 0 || p.IsStopped() {
			return out
		}
		pause, more := policy.after(time.Since(began))
		if !more {
			return out
		}
		p.wait()
		if logged != nil {
			process.KillTree(logged.PID, "") // what a failed server leaves in its session may hold its port
		}
		if !p.pause(pause, spec.Timeout) {
			process.KillTree(0, p.Mark()) // what has left the session of a run
			return out
		}
		logged = s.startAgain(p, spec)
	}
}

// wait says that no process runs until the next start.
func (p *liveProcess) wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shown.PID = 0
}

// pause waits before the next start; false: the process was stopped meanwhile. timeout bounds all runs together; 0: nothing does.
func (p *liveProcess) pause(pause, timeout time.Duration) bool {
	var over <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(time.Until(p.Created.Add(timeout)))
		defer timer.Stop()
		over = timer.C
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-over:
		p.Stop(execution.StopTimeout)
	case <-p.Stopped():
	}
	if timeout > 0 {
		p.Spec.Timeout = max(time.Until(p.Created.Add(timeout)), time.Millisecond)
	}
	return !p.IsStopped()
}

// startAgain starts the process again, on a terminal of the size that its last one had. If it does not start, stderr says why: nil then.
func (s *Server) startAgain(p *liveProcess, spec farm.ProcessSpec) *process.Logged {
	shown := p.describe()
	spec.Terminal = shown.Terminal
	logged, err := s.commands.Start(p.Execution, spec, p.now().Input)
	if err != nil {
		p.Log.Append(agent.FrameStderr, fmt.Appendf(nil, "cannot start the process again: %v\n", err))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown.Restarts++; err != nil {
		return nil
	}
	if p.logged, p.shown.PID = logged, logged.PID; p.shown.Terminal != nil && *p.shown.Terminal != *spec.Terminal {
		_ = logged.Input.Resize(*p.shown.Terminal) // it was resized meanwhile
	}
	return logged
}

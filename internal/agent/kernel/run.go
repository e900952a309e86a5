package kernel

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// kernelRun is one execution in a kernel.
type kernelRun struct {
	e     *execution.Execution
	begun chan struct{} // closed when the code has started: earlier interrupts would be lost
	reply chan reply

	mu       sync.Mutex // held while pipes are drained
	out, err *process.Pump
	over     bool
	values   values
}

// request starts an execution in a kernel.
type request struct {
	Op        string            `json:"op"`
	ID        string            `json:"id"`
	Code      string            `json:"code"`
	File      string            `json:"file,omitempty"` // that the code is from; empty: none
	Env       map[string]string `json:"env,omitempty"`
	Installed int64             `json:"installed"`
	Cell      *farm.Cell        `json:"cell,omitempty"`
	Data      bool              `json:"data,omitempty"` // values are shown as data, too
}

// reply is how an execution ended in the kernel.
type reply struct {
	ID        string   `json:"id"`
	Status    string   `json:"status"` // ok, error
	Count     int      `json:"execution_count"`
	Name      string   `json:"ename"`
	Value     string   `json:"evalue"`
	Traceback []string `json:"traceback"`
	Exit      *int     `json:"exit"`
}

// finish logs what is in the pipes and discards later output.
func (r *kernelRun) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.out != nil {
		r.out.Finish()
		r.err.Finish()
	}
}

// execute runs an execution in the kernel and waits until it or the kernel ends.
func (ks *Kernels) execute(k *kernel, e *execution.Execution) agent.Outcome {
	run := &kernelRun{e: e, begun: make(chan struct{}), reply: make(chan reply, 1)}
	k.mu.Lock()
	k.current = run
	k.mu.Unlock()
	var answer reply
	defer func() {
		k.mu.Lock()
		k.current = nil
		k.announced = k.announced || answer.Status == statusDead // the outcome says so
		k.mu.Unlock()
	}()
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		e.Watch(execution.Stopper{
			Interrupt: func(syscall.Signal) { ks.interruptKernel(k, run, ended) },
			Kill:      func() { k.stopOnPurpose(ks.cfg.Reaper); process.KillTree(0, e.Mark()) },
		}, ended)
	}()
	if err := k.control.write(request{Op: "execute", ID: e.ID, Code: e.Spec.Code, File: ks.file(e), Env: e.Spec.Env, Installed: ks.cfg.Installed(), Data: e.Spec.Data, Cell: e.Spec.Cell}); err != nil {
		k.end(ks.cfg.Reaper)
	}
	select {
	case answer = <-run.reply:
	case <-k.proc.Done():
		select {
		case answer = <-run.reply: // the kernel may have answered before it ended
		default:
			answer.Status = statusDead
		}
	}
	run.finish()
	close(ended)
	<-watched
	if reason := e.StopReason(); reason == execution.StopTimeout || reason == execution.StopOutput || e.Canceled() {
		process.KillTree(0, e.Mark())
		ks.cfg.Reaper.KillStrays(e.BeginTicks())
	}
	if answer.Status == statusDead {
		return k.deathOutcome(e)
	}
	return answer.outcome()
}

// statusDead is the status of the reply of a kernel that ended without one.
const statusDead = "dead"

// interruptKernel interrupts the code as soon as it has started.
func (ks *Kernels) interruptKernel(k *kernel, run *kernelRun, ended <-chan struct{}) {
	go func() {
		select {
		case <-run.begun:
		case <-ended:
			return
		}
		select {
		case <-ended:
			return
		default:
		}
		ks.cfg.Reaper.Signal(k.proc, syscall.SIGINT)
	}()
}

// run returns the current execution if it has this id.
func (k *kernel) run(id string) *kernelRun {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current == nil || k.current.e.ID != id {
		return nil
	}
	return k.current
}

// outcome is the outcome that the kernel reports.
func (r reply) outcome() agent.Outcome {
	out := agent.Outcome{ExecutionCount: r.Count}
	switch {
	case r.Exit != nil:
		out.ExitCode = *r.Exit
	case r.Status != "ok":
		out.ExitCode = 1
		out.Error = &farm.CodeError{Name: r.Name, Value: r.Value, Traceback: r.Traceback}
		if r.Name == "" {
			out.Error.Name = "Error"
		}
	}
	return out
}

// deathOutcome is the outcome of code whose kernel ended while it ran.
func (k *kernel) deathOutcome(e *execution.Execution) agent.Outcome {
	k.mu.Lock()
	meant := k.onPurpose
	k.mu.Unlock()
	text := fmt.Sprintf("The kernel ended with exit code %d. A new one has been started; variables are gone.", k.proc.ExitCode())
	switch {
	case e.IsStopped():
		text = "The code did not end when it was interrupted, so its kernel was killed. A new one has been started; variables are gone."
	case meant:
		text = "The kernel was restarted while the code ran; variables are gone."
	case k.proc.KilledBy() != 0:
		text = fmt.Sprintf("The kernel was killed by signal %d. A new one has been started; variables are gone.", int(k.proc.KilledBy()))
	}
	out := execution.Failed(farm.ErrorKernelDied, text)
	out.ExitCode, out.Restarted = k.proc.ExitCode(), true
	return out
}

// runFresh runs code in its own process, for languages that have no kernel in the image.
func (ks *Kernels) runFresh(e *execution.Execution, at *slot, interpreter string) agent.Outcome {
	file := filepath.Join(ks.cfg.RunDir, "code-"+rand.Text())
	if err := os.WriteFile(file, []byte(e.Spec.Code), 0o600); err != nil {
		return execution.Failed("AgentError", "the code could not be written to the sandbox: "+err.Error())
	}
	defer func() { _ = os.Remove(file) }()
	env, argv := process.ExecutionEnv(ks.cfg.Env, e), []string{interpreter, file}
	var report *os.File // of an exception of Python
	if at.language == defaultLanguage {
		var err error
		if report, err = os.OpenFile(file+".error", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return execution.Failed("AgentError", "the code could not be prepared: "+err.Error())
		}
		defer func() { _, _ = report.Close(), os.Remove(report.Name()) }()
		env = process.WithEnv(env, map[string]string{"PYTHONPATH": ks.pythonPath(env)})
		argv = []string{interpreter, "-c", freshSource, file, report.Name(), cmp.Or(ks.file(e), file)}
	}
	p, err := ks.cfg.Reaper.StartLogged(e, argv, env, at.cwd, process.Streams{})
	if err != nil {
		return execution.Failed("StartError", notStarted("The code", err))
	}
	ks.cfg.Reaper.Wait(e, p)
	return agent.Outcome{ExitCode: p.ExitCode(), FreshProcess: true, Error: reported(report)}
}

// maxReport bounds the report of an exception: fresh.py cuts its traceback and its text at 1 MiB each.
const maxReport = 3 << 20

// reported reads the exception that fresh.py has reported; nil if there is none.
func reported(report *os.File) *farm.CodeError {
	if report == nil {
		return nil
	}
	raw, _ := io.ReadAll(io.LimitReader(report, maxReport))
	parts := strings.SplitN(string(raw), "\x00", 3) // the text, which may have more of them, is the last
	if len(parts) < 3 {
		return nil
	}
	return &farm.CodeError{Name: parts[0], Value: parts[2], Traceback: strings.Split(strings.TrimRight(parts[1], "\n"), "\n")}
}

// file is the path of the file that the code of an execution is from; empty if there is none.
func (ks *Kernels) file(e *execution.Execution) string {
	if e.Spec.Filename == "" {
		return ""
	}
	return filepath.Join(ks.cfg.Workspace, e.Spec.Filename)
}

// pythonPath lets a Python process import from the workspace, as a kernel does.
func (ks *Kernels) pythonPath(env []string) string {
	for _, kv := range env {
		if old, ok := strings.CutPrefix(kv, "PYTHONPATH="); ok && old != "" {
			return ks.cfg.Workspace + ":" + old
		}
	}
	return ks.cfg.Workspace
}

package kernel

import (
	"encoding/json"
	"fmt"
	"sync"
	"syscall"

	"github.com/go-zeromq/zmq4"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/probe"
	"github.com/sandfarm/sandfarm/internal/agent/process"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// kernelRun is one execution in a kernel.
type kernelRun struct {
	e     *execution.Execution
	msgID string
	begun chan struct{} // closed when the code has started: earlier interrupts would be lost
	once  sync.Once
	reply chan reply
	idle  chan struct{} // other kernels: closed when all output has arrived

	mu       sync.Mutex // held while pipes are drained
	out, err *process.Pump
	over     bool
	values   values
}

// reply is the content of an execute_reply.
type reply struct {
	Status    string   `json:"status"`
	Count     int      `json:"execution_count"`
	Name      string   `json:"ename"`
	Value     string   `json:"evalue"`
	Traceback []string `json:"traceback"`
	Exit      *int     `json:"sandfarm_exit"`
	Begun     bool     `json:"sandfarm_begun"` // its pipes have been sent to the agent
}

func (r *kernelRun) begin() { r.once.Do(func() { close(r.begun) }) }

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
	run := &kernelRun{e: e, begun: make(chan struct{}), reply: make(chan reply, 1), idle: make(chan struct{})}
	content := map[string]any{
		"code": e.Spec.Code, "silent": false, "store_history": true, "user_expressions": map[string]any{},
		"allow_stdin": false, "stop_on_error": false,
	}
	m, err := k.codec.request("execute_request", content, map[string]any{"sandfarm": map[string]any{"id": e.ID, "env": e.Spec.Env, "installed": ks.cfg.Installed()}})
	if err != nil {
		return execution.Failed("AgentError", err.Error())
	}
	run.msgID = m.Header.ID
	k.mu.Lock()
	k.current = run
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		k.current = nil
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
	answer, alive := reply{}, true
	if err := k.send(k.shell, m); err != nil {
		k.end(ks.cfg.Reaper)
	}
	select {
	case answer = <-run.reply:
	case <-k.proc.Done():
		alive = false
	}
	if !alive { // the kernel may have answered before it ended
		select {
		case answer = <-run.reply:
		default:
			answer.Status = "dead"
		}
	}
	rest := run.idle // output uses another channel than the reply, so it may arrive later
	if k.spec.own {
		rest = run.begun
	}
	if alive && (answer.Begun || !k.spec.own) {
		select {
		case <-rest:
		case <-k.proc.Done():
		case <-e.Killed():
		}
	}
	run.finish()
	close(ended)
	<-watched
	if reason := e.StopReason(); reason == execution.StopTimeout || reason == execution.StopOutput || e.Canceled() {
		process.KillTree(0, e.Mark())
		ks.cfg.Reaper.KillStrays(e.BeginTicks())
	}
	if answer.Status == "dead" {
		return k.deathOutcome(e)
	}
	return answer.outcome()
}

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
		if k.spec.interruptByMessage && k.manage != nil {
			if m, err := k.codec.request("interrupt_request", struct{}{}, struct{}{}); err == nil {
				_ = k.send(k.manage, m)
			}
			return
		}
		ks.cfg.Reaper.Signal(k.proc, syscall.SIGINT)
	}()
}

func (k *kernel) send(socket zmq4.Socket, m message) error {
	frames, err := k.codec.pack(m)
	if err != nil {
		return err
	}
	return socket.SendMulti(zmq4.NewMsgFrom(frames...))
}

// run returns the current execution if it matches.
func (k *kernel) run(meant func(*kernelRun) bool) *kernelRun {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current == nil || !meant(k.current) {
		return nil
	}
	return k.current
}

// followShell delivers replies to their execution. It kills a kernel whose channel is broken, because no reply would come.
func (k *kernel) followShell(r *process.Reaper) {
	for {
		m, err := k.receive(k.shell)
		if err != nil {
			k.end(r)
			return
		}
		if m.Header.Type == probe.ModuleName+"_reply" {
			k.deliverAnswer(m)
		}
		if m.Header.Type != "execute_reply" {
			continue
		}
		run := k.run(func(r *kernelRun) bool { return r.msgID == m.Parent.ID })
		var answer reply
		if run == nil || json.Unmarshal(m.Content, &answer) != nil {
			continue
		}
		select {
		case run.reply <- answer:
		default:
		}
	}
}

// receive returns the next well-formed message of a channel; an error means that the channel is closed.
func (k *kernel) receive(socket zmq4.Socket) (message, error) {
	for {
		raw, err := socket.Recv()
		if err != nil {
			return message{}, err
		}
		m, err := k.codec.unpack(raw.Frames)
		if err == nil {
			return m, nil
		}
	}
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

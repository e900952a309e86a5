package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
)

// maxDisplayBytes bounds one displayed value under agent.MaxFrameBytes.
const maxDisplayBytes = 48 << 20

// follow reads the socket of a kernel: the pipes of each execution, displayed values, replies. It kills a kernel that breaks the protocol,
// because the next execution would wait forever.
func (ks *Kernels) follow(k *kernel, at *slot) {
	defer k.control.close()
	defer k.end(ks.cfg.Reaper)
	for {
		m, err := k.control.read()
		if err != nil || ks.take(k, at, m) != nil {
			return
		}
	}
}

// take handles one message of a kernel. An error means that the kernel broke the protocol or is gone.
func (ks *Kernels) take(k *kernel, at *slot, m controlMessage) error {
	switch m.Op {
	case "begin":
		return k.takePipes(m, ks.cfg.Reaper)
	case "display", "clear":
		if run := k.run(m.ID); run != nil {
			run.display(m)
		}
		return k.control.write(shown{Op: "shown", Number: m.Number})
	case "reply":
		var answer reply
		if err := json.Unmarshal(m.Content, &answer); err != nil {
			return err
		}
		if run := k.run(answer.ID); run != nil {
			select {
			case run.reply <- answer:
			default:
			}
		}
	case "answer":
		k.deliverAnswer(m.Number, m.Content)
	case "message":
		if run := k.run(m.ID); run != nil {
			at.say(m, run.e.ID, run.mark())
		} else {
			at.say(m, "", 0)
		}
		if m.ID != "" { // an execution prints on when the message has its place
			return k.control.write(shown{Op: "shown", Number: m.Number})
		}
	}
	return nil
}

// takePipes receives the pipes of an execution.
func (k *kernel) takePipes(m controlMessage, r *process.Reaper) error {
	out, err, ok := k.control.pipes()
	if !ok {
		return errNoPipes
	}
	defer func() { _, _ = unix.Close(out), unix.Close(err) }()
	run := k.run(m.ID)
	if run == nil {
		return nil
	}
	run.mu.Lock()
	defer run.mu.Unlock()
	if run.over || run.out != nil {
		return nil
	}
	first, e := reopenPipe(out)
	if e != nil {
		return e
	}
	second, e := reopenPipe(err)
	if e != nil {
		_ = unix.Close(first)
		return e
	}
	run.out = r.Pump(first, agent.FrameStdout, run.e.Log, nil)
	run.err = r.Pump(second, agent.FrameStderr, run.e.Log, nil)
	close(run.begun)
	return nil
}

// errNoPipes means that a message did not carry the read ends of two pipes.
var errNoPipes = errors.New("take pipes: there are none")

// reopenPipe reopens the read end of a pipe. The kernel may have sent any descriptor, such as one of an infinite device, and
// the sender shares its flags and could make a reader block forever.
func reopenPipe(fd int) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return 0, errNoPipes
	}
	own, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open pipe: %w", err)
	}
	return own, nil
}

// display logs a displayed value after the output before it.
func (r *kernelRun) display(m controlMessage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	if r.out != nil {
		r.out.Drain()
		r.err.Drain()
	}
	var d agent.Display
	switch {
	case m.Op == "display":
		d = agent.Display{Data: m.Data, Metadata: m.Metadata, Result: m.Result}
		d.Number, d.ID = r.values.number(m.DisplayID, m.Update)
		d.Update = m.Update && d.ID != ""
	case m.Wait:
		d.Clear = agent.ClearWait
	default:
		d.Clear = agent.ClearNow
	}
	appendDisplay(r.e.Log, d)
}

// mark separates the output so far from what follows, and returns the number of its last frame.
func (r *kernelRun) mark() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.out != nil && !r.over {
		r.out.Drain()
		r.err.Drain()
	}
	return r.e.Log.Mark()
}

// appendDisplay logs a displayed value. A note replaces a value that does not fit into a frame.
func appendDisplay(log *execution.Log, d agent.Display) {
	raw, err := json.Marshal(d)
	if err != nil {
		return
	}
	if len(raw) > maxDisplayBytes {
		log.Append(agent.FrameStderr, fmt.Appendf(nil, "[a displayed value of %d bytes was left out: at most %d fit]\n", len(raw), maxDisplayBytes))
		return
	}
	log.Append(agent.FrameDisplay, raw)
}

package server

import (
	"encoding/json"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
)

// maxDisplayBytes bounds one displayed value under agent.MaxFrameBytes.
const maxDisplayBytes = 48 << 20

// followControl serves our own Python kernel: the pipes of each execution, and what it displays.
func (k *kernel) followControl(buffers *sync.Pool) {
	defer k.control.close()
	for {
		m, err := k.control.read()
		if err != nil {
			return
		}
		switch m.Op {
		case "begin":
			k.takePipes(m, buffers)
		case "display":
			if run := k.run(func(r *kernelRun) bool { return r.e.id == m.ID }); run != nil {
				run.display(m.Data)
			}
			if k.control.answer(m.Number) != nil {
				return
			}
		}
	}
}

func (k *kernel) takePipes(m controlMessage, buffers *sync.Pool) {
	out, err, ok := k.control.pipes()
	if !ok {
		return
	}
	run := k.run(func(r *kernelRun) bool { return r.e.id == m.ID })
	if run == nil {
		_, _ = unix.Close(out), unix.Close(err)
		return
	}
	run.mu.Lock()
	defer run.mu.Unlock()
	if run.over || run.out != nil {
		_, _ = unix.Close(out), unix.Close(err)
		return
	}
	run.out = newPump(out, agent.FrameStdout, run.e.log, buffers, nil)
	run.err = newPump(err, agent.FrameStderr, run.e.log, buffers, nil)
	run.begin()
}

// display adds a displayed value behind the output before it.
func (r *kernelRun) display(data map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	if r.out != nil {
		r.out.drain()
		r.err.drain()
	}
	appendDisplay(r.e.log, data)
}

// appendDisplay adds a displayed value; what does not fit into a frame is replaced by a note.
func appendDisplay(log *frameLog, data map[string]string) {
	raw, err := json.Marshal(agent.Display{Data: data})
	if err != nil {
		return
	}
	if len(raw) > maxDisplayBytes {
		log.append(agent.FrameStderr, fmt.Appendf(nil, "[a displayed value of %d bytes was left out: at most %d fit]\n", len(raw), maxDisplayBytes))
		return
	}
	log.append(agent.FrameDisplay, raw)
}

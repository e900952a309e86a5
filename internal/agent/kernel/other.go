package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/execution"
	"github.com/sandfarm/sandfarm/internal/agent/process"
)

// askAgain is the interval of requests to a kernel that has not answered yet.
const askAgain = 200 * time.Millisecond

// connectOther connects to a kernel of any language and waits for its first message.
func (k *kernel) connectOther(ctx context.Context, quit <-chan struct{}, r *process.Reaper) error {
	var err error
	if k.shell, err = k.addrs.connect(ctx, k.addrs.Shell, quit, zmq4.NewDealer); err != nil {
		return err
	}
	if k.iopub, err = k.addrs.connect(ctx, k.addrs.IOPub, quit, zmq4.NewSub); err != nil {
		return err
	}
	if err := k.iopub.SetOption(zmq4.OptionSubscribe, ""); err != nil {
		return err
	}
	if k.manage, err = k.addrs.connect(ctx, k.addrs.Control, quit, zmq4.NewDealer); err != nil {
		return err
	}
	heard := make(chan struct{})
	k.wg.Go(func() { k.followIOPub(heard) })
	k.wg.Go(func() { k.followShell(r) })
	k.wg.Go(k.followManage)
	for { // each request makes the kernel publish its status
		m, err := k.codec.request("kernel_info_request", struct{}{}, struct{}{})
		if err != nil {
			return err
		}
		if err := k.send(k.shell, m); err != nil {
			return err
		}
		select {
		case <-heard:
			return nil
		case <-quit:
			return errors.New("the kernel ended while it started")
		case <-time.After(askAgain):
		}
	}
}

func (k *kernel) followManage() {
	for {
		if _, err := k.manage.Recv(); err != nil {
			return
		}
	}
}

// published is the part of iopub messages that is used.
type published struct {
	State string                     `json:"execution_state"`
	Name  string                     `json:"name"`
	Text  string                     `json:"text"`
	Data  map[string]json.RawMessage `json:"data"`

	Transient struct {
		DisplayID string `json:"display_id"`
	} `json:"transient"`
}

// followIOPub logs what the kernel publishes, each message for its execution. It closes heard after the first message.
func (k *kernel) followIOPub(heard chan struct{}) {
	first := true
	for {
		m, err := k.receive(k.iopub)
		if err != nil {
			return
		}
		if first {
			first = false
			close(heard)
		}
		run := k.run(func(r *kernelRun) bool { return r.msgID == m.Parent.ID })
		var p published
		if run == nil || json.Unmarshal(m.Content, &p) != nil {
			continue
		}
		switch m.Header.Type {
		case "stream":
			kind := agent.FrameStdout
			if p.Name == "stderr" {
				kind = agent.FrameStderr
			}
			for text := []byte(p.Text); len(text) > 0; text = text[min(len(text), execution.MaxOutputFrame):] {
				run.e.Log.Append(kind, text[:min(len(text), execution.MaxOutputFrame)])
			}
		case "display_data", "execute_result", "update_display_data":
			run.display(bundle(p.Data), p.Transient.DisplayID, m.Header.Type == "update_display_data")
		case "status":
			run.status(p.State)
		}
	}
}

// status records the start and the end of an execution.
func (r *kernelRun) status(state string) {
	switch state {
	case "busy":
		r.begin()
	case "idle":
		select {
		case <-r.idle:
		default:
			close(r.idle)
		}
	}
}

// bundle converts a MIME bundle to text: strings as they are, lists of strings joined, anything else as JSON.
func bundle(data map[string]json.RawMessage) map[string]string {
	out := make(map[string]string, len(data))
	for mime, raw := range data {
		var text string
		var rows []string
		switch {
		case json.Unmarshal(raw, &text) == nil:
			out[mime] = text
		case json.Unmarshal(raw, &rows) == nil:
			for _, row := range rows {
				out[mime] += row
			}
		default:
			out[mime] = string(raw)
		}
	}
	return out
}

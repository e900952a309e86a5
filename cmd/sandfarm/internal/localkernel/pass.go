package localkernel

import (
	"context"
	"encoding/json"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/zmtp"
)

// take handles a message of a client.
func (k *kernel) take(ctx context.Context, channel string, from *zmtp.Peer, frames [][]byte) {
	m, err := fromFrames(channel, k.cfg.Connection.Key, frames)
	if err != nil {
		k.cfg.Log.Warn("a message is left out", "channel", channel, "error", err)
		return
	}
	h := m.header(partHeader)
	if h.Type == "shutdown_request" {
		k.shutdown(m, from)
		return
	}
	if channel != stdin {
		k.remember(h.ID, from)
	}
	select {
	case k.up <- m:
	case <-ctx.Done():
	}
}

// remember notes who gets the answer to a message.
func (k *kernel) remember(id string, from *zmtp.Peer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, known := k.askers[id]; !known {
		k.order = append(k.order, id)
	}
	k.askers[id] = from
	for len(k.order) > maxAskers {
		delete(k.askers, k.order[0])
		k.order = k.order[1:]
	}
}

// asker finds who sent a message; nil: it is forgotten, or its answer was sent.
func (k *kernel) asker(id string, answered bool) *zmtp.Peer {
	k.mu.Lock()
	defer k.mu.Unlock()
	from := k.askers[id]
	if answered {
		delete(k.askers, id)
	}
	return from
}

// pass passes a message of the kernel on to the clients that it is for.
func (k *kernel) pass(m *message) {
	key := k.cfg.Connection.Key
	switch h := m.header(partHeader); m.channel {
	case iopub:
		if h.Type == "status" && ended(m.parts[partContent]) {
			return // the next message starts it again
		}
		k.iopub.Publish(m.frames(key, "kernel."+h.Type))
	case stdin: // a question goes to the socket of the same client as the cell
		if from := k.asker(m.header(partParent).ID, false); from != nil {
			if to := k.stdin.Find(from.Identity()); to != nil {
				_ = to.Send(m.frames(key, "")) // it is gone: the cell waits until it is interrupted
			}
		}
	default:
		if from := k.asker(m.header(partParent).ID, true); from != nil {
			_ = from.Send(m.frames(key, "")) // the client may be gone
		}
	}
}

// ended reports whether a status says that the kernel is dead.
func ended(content []byte) bool {
	var status struct {
		State string `json:"execution_state"`
	}
	return json.Unmarshal(content, &status) == nil && status.State == "dead"
}

// shutdown does what a client asks for at the end, and ends Run. A restart is the same here: the client starts this program again.
func (k *kernel) shutdown(m *message, from *zmtp.Peer) {
	var asked struct {
		Restart bool `json:"restart"`
	}
	_ = json.Unmarshal(m.parts[partContent], &asked)                                     // the default is to end
	content, _ := json.Marshal(map[string]any{"status": "ok", "restart": asked.Restart}) // it always encodes
	reply := &message{channel: m.channel, parts: [jsonParts][]byte{k.header("shutdown_reply"), m.parts[partHeader], []byte("{}"), content}}
	_ = from.Send(reply.frames(k.cfg.Connection.Key, "")) // the client may be gone
	k.publish("shutdown_reply", m.parts[partHeader], content)
	if asked.Restart {
		k.stop(errRestart)
	} else {
		k.stop(errShutdown)
	}
}

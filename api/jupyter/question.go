package jupyter

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
)

const (
	// busyPause and busyPatience are for messages to comms that must not be lost: a kernel that runs somebody else's code answers later.
	busyPause    = time.Second
	busyPatience = 10 * time.Minute
)

// questions are the messages that the kernel answers between cells.
func known(kind string) (question string, comm bool) {
	switch kind {
	case "comm_open", "comm_msg", "comm_close":
		return kind, true
	case "complete_request", "inspect_request", "is_complete_request", "history_request", "comm_info_request":
		return strings.TrimSuffix(kind, "_request"), false
	default:
		return "", false
	}
}

// replyType is the type of the answer to a message.
func replyType(request string) string { return strings.TrimSuffix(request, "_request") + "_reply" }

// question has the kernel answer a message that is no cell.
func (s *session) question(ctx context.Context, w *work) {
	kind, comm := known(w.header.Type)
	if kind == "" {
		s.fail(w, farm.Invalidf("Messages of the type %s are not known here.", farm.Shorten(w.header.Type)))
		return
	}
	content := w.content
	if comm {
		var err error
		if content, err = withBuffers(w); err != nil {
			s.fail(w, farm.Invalidf("The content of the %s cannot be read.", w.header.Type))
			return
		}
	}
	s.status(w, stateBusy)
	answer, err := s.ask(ctx, relay.Question{Kind: kind, Content: content, Message: w.header.ID}, comm)
	switch {
	case comm:
		s.kernel.pull(ctx) // what it has caused comes before the end
	case err != nil:
		s.reply(w, map[string]any{"status": "error", "ename": "FarmError", "evalue": farm.MessageOf(err), "traceback": []string{}})
	default:
		s.reply(w, answer)
	}
	s.status(w, stateIdle)
}

// ask asks the kernel. With patience it waits for one that is busy.
func (s *session) ask(ctx context.Context, q relay.Question, patient bool) (json.RawMessage, error) {
	k, until := s.kernel, time.Now().Add(busyPatience)
	for {
		answer, err := k.server.cfg.Service.AskKernel(ctx, k.ref.Tenant, k.ref.ID, kernelContext, q)
		if err == nil || !patient || farm.CodeOf(err) != farm.CodeUnavailable || time.Now().After(until) {
			return answer, err
		}
		if err := pause(ctx, busyPause); err != nil {
			return nil, err
		}
	}
}

// withBuffers is the content of a message of a comm with what goes beside it.
func withBuffers(w *work) (json.RawMessage, error) {
	var content map[string]json.RawMessage
	if err := json.Unmarshal(w.content, &content); err != nil {
		return nil, err
	}
	delete(content, "buffers")
	if len(w.buffers) > 0 {
		texts := make([]string, len(w.buffers))
		for i, b := range w.buffers {
			texts[i] = base64.StdEncoding.EncodeToString(b)
		}
		content["buffers"], _ = json.Marshal(texts)
	}
	if len(w.metadata) > 0 && string(w.metadata) != "null" {
		content["metadata"] = w.metadata
	}
	return json.Marshal(content)
}

// expressions evaluates what a cell asks for beside its code.
func (s *session) expressions(ctx context.Context, asked map[string]string) any {
	content, _ := json.Marshal(map[string]any{"expressions": asked})
	raw, err := s.ask(ctx, relay.Question{Kind: "expressions", Content: content}, false)
	var answer struct {
		Values json.RawMessage `json:"values"`
	}
	if farm.CodeOf(err) == farm.CodeTooLarge {
		values := map[string]any{}
		for name := range asked {
			values[name] = map[string]any{"status": "error", "ename": "FarmError", "evalue": farm.MessageOf(err), "traceback": []string{}}
		}
		return values
	}
	if err != nil || json.Unmarshal(raw, &answer) != nil || len(answer.Values) == 0 {
		return map[string]any{}
	}
	return answer.Values
}

// input passes on the answer to a question for input.
func (s *session) input(w *work) {
	defer w.release()
	var content struct {
		Value string `json:"value"`
	}
	k := s.kernel
	k.feeding.Lock()
	asked := k.input
	k.feeding.Unlock()
	if asked == nil || json.Unmarshal(w.content, &content) != nil {
		return
	}
	if _, asker := k.parent(asked.Parent); asker != s {
		return // another client was asked
	}
	ctx, done := s.context()
	defer done()
	if err := k.server.cfg.Service.KernelInput(ctx, k.ref.Tenant, k.ref.ID, kernelContext, relay.Input{Number: asked.Number, Value: content.Value}); err != nil {
		return // the client may answer again
	}
	k.feeding.Lock()
	defer k.feeding.Unlock()
	if k.input == asked {
		k.input = nil
	}
}

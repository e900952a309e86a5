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

const protocolVersion = "5.3"

// status tells all clients that a message is being handled, or that it was.
func (s *session) status(w *work, state string) {
	s.iopub(w, "status", map[string]string{"execution_state": state})
}

// iopub sends what all clients see, unless it is for the session's own.
func (s *session) iopub(w *work, kind string, content any) {
	if !s.seen(w) {
		return
	}
	m := s.kernel.message(channelIOPub, kind, w.header.raw, content)
	if !w.quiet {
		s.kernel.broadcast(m, s)
	}
	s.say(w, m)
}

// say sends the client a message that belongs to work of its own. If it has left, what belongs to a job is made again when it is back, and all
// else is kept.
func (s *session) say(w *work, m *message) {
	if w.job != "" {
		s.own(m)
	} else {
		s.keep(m)
	}
}

// reply answers a message, on its channel.
func (s *session) reply(w *work, content any) {
	s.say(w, s.kernel.message(w.channel, replyType(w.header.Type), w.header.raw, content))
}

// fail answers a message with an error. It concerns no other client: a kernel has many, and each message of one would be several to all.
func (s *session) fail(w *work, err error) {
	w.quiet = true
	s.status(w, stateBusy)
	content := map[string]any{"status": "error", "ename": "FarmError", "evalue": farm.MessageOf(err), "traceback": []string{farm.MessageOf(err)}}
	if w.header.Type == "execute_request" {
		content["execution_count"], content["user_expressions"], content["payload"] = 0, map[string]any{}, []any{}
		s.iopub(w, "error", content)
	}
	s.reply(w, content)
	s.status(w, stateIdle)
	w.release()
}

// control does what a message of the control channel asks for, and answers it. As of info, other clients see nothing of it.
func (s *session) control(w *work, do func(context.Context) error) {
	ctx, done := s.context()
	defer done()
	if err := do(ctx); err != nil {
		s.fail(w, err)
		return
	}
	w.quiet = true
	s.status(w, stateBusy)
	s.reply(w, map[string]any{"status": "ok"})
	s.status(w, stateIdle)
	w.release()
}

// shutdown restarts or ends the kernel.
func (s *session) shutdown(w *work) {
	var content struct {
		Restart bool `json:"restart"`
	}
	ctx, done := s.context()
	defer done()
	_ = w.decode(ctx, &content) // the default is to end
	k := s.kernel
	if err := k.admit(ctx); err != nil {
		s.reply(w, map[string]any{"status": "error", "ename": "FarmError", "evalue": farm.MessageOf(err), "traceback": []string{}})
		w.release()
		return
	}
	s.reply(w, map[string]any{"status": "ok", "restart": content.Restart})
	w.release()
	if content.Restart {
		if k.server.restart(ctx, k.ref.Tenant, k.ref.ID) == nil {
			k.fresh()
		}
		return
	}
	if box, err := k.server.cfg.Service.Sandbox(ctx, k.ref.Tenant, k.ref.ID); err == nil {
		_ = k.server.remove(ctx, k.ref.Tenant, &box)
	}
}

// info answers what the kernel is. The kernel is not busy with that, and so other clients see nothing of it.
func (s *session) info(w *work) {
	k := s.kernel
	w.quiet = true
	s.status(w, stateBusy)
	s.reply(w, map[string]any{
		"status": "ok", "protocol_version": protocolVersion, "implementation": "sandfarm", "implementation_version": k.server.cfg.Version,
		"banner": "A kernel of Sandfarm, in sandbox " + k.ref.ID + ".", "language_info": languageInfo(k.language), "help_links": []any{}, "debugger": false,
		"supported_features": []any{},
	})
	s.status(w, stateIdle)
	w.release()
}

// languageInfo describes a language to notebooks.
func languageInfo(language string) map[string]any {
	switch language {
	case pythonLanguage:
		return map[string]any{
			"name": "python", "version": "3", "mimetype": "text/x-python", "file_extension": ".py", "pygments_lexer": "ipython3", "nbconvert_exporter": "python",
			"codemirror_mode": map[string]any{"name": "ipython", "version": 3},
		}
	default:
		return map[string]any{"name": language, "version": "", "mimetype": "text/plain", "file_extension": ".txt"}
	}
}

const (
	// busyPause and busyTimeout are for messages to comms that must not be lost: a kernel that runs somebody else's code answers later.
	busyPause   = time.Second
	busyTimeout = 10 * time.Minute
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
		if content, err = withBuffers(ctx, w); err != nil {
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

// ask asks the kernel. With a timeout it waits for one that is busy.
func (s *session) ask(ctx context.Context, q relay.Question, patient bool) (json.RawMessage, error) {
	k, until := s.kernel, time.Now().Add(busyTimeout)
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
func withBuffers(ctx context.Context, w *work) (json.RawMessage, error) {
	var content map[string]json.RawMessage
	if err := w.decode(ctx, &content); err != nil {
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
	ctx, done := s.context()
	defer done()
	if asked == nil || w.decode(ctx, &content) != nil {
		return
	}
	if _, asker := k.parent(asked.Parent); asker != s {
		return // another client was asked
	}
	if err := k.server.cfg.Service.KernelInput(ctx, k.ref.Tenant, k.ref.ID, kernelContext, relay.Input{Number: asked.Number, Value: content.Value}); err != nil {
		return // the client may answer again
	}
	k.feeding.Lock()
	defer k.feeding.Unlock()
	if k.input == asked {
		k.input = nil
	}
}

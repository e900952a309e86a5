package jupyter

import (
	"context"
	"encoding/json"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const protocolVersion = "5.3"

// status tells all clients that a message is being handled, or that it was.
func (s *session) status(w *work, state string) {
	s.iopub(w, "status", map[string]string{"execution_state": state})
}

// iopub sends what all clients see, unless the others have seen it.
func (s *session) iopub(w *work, kind string, content any) {
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

// fail answers a message with an error.
func (s *session) fail(w *work, err error) {
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

// control does what a message of the control channel asks for, and answers it.
func (s *session) control(w *work, do func(context.Context) error) {
	ctx, done := s.context()
	defer done()
	s.status(w, stateBusy)
	if err := do(ctx); err != nil {
		s.reply(w, map[string]any{"status": "error", "ename": "FarmError", "evalue": farm.MessageOf(err), "traceback": []string{}})
	} else {
		s.reply(w, map[string]any{"status": "ok"})
	}
	s.status(w, stateIdle)
	w.release()
}

// shutdown restarts or ends the kernel.
func (s *session) shutdown(w *work) {
	var content struct {
		Restart bool `json:"restart"`
	}
	_ = json.Unmarshal(w.content, &content) // the default is to end
	ctx, done := s.context()
	defer done()
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

// info answers what the kernel is.
func (s *session) info(w *work) {
	k := s.kernel
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

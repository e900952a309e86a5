package jupyter

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

const (
	protocolVersion = "5.3"
	// MaxWaiting bounds the messages of a client that wait for their turn.
	MaxWaiting = 1000
	// MaxWaitingBytes bounds their bytes.
	MaxWaitingBytes = 64 << 20
	// replayFor is how long ago a cell may have ended whose end a client may have missed when its connection broke.
	replayFor = 30 * time.Second
	// replayCells bounds how many such cells are remembered.
	replayCells = 16
)

// newID makes an id of a message, as Jupyter's are: a UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	text := hex.EncodeToString(b[:])
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}

// work is one message that waits for its turn.
type work struct {
	message
	hold *budget.Hold
	size int
	job  string // of a cell that was sent before: its output is to be sent once more
	ends time.Time
}

func (w *work) release() {
	if w.hold != nil {
		w.hold.Release()
	}
}

// session is one client of a kernel. It outlives the client's connections: cells go on, and who comes back under the same id gets what it has
// missed.
type session struct {
	kernel *kernel
	id     string

	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // of the caller who connected last, without the end of the request
	socket  *socket
	queue   []*work
	bytes   int
	running bool
	wake    context.CancelFunc // ends the wait for events of the cell that runs; nil: none runs
	rewind  bool               // the output of the cell that runs is to be sent from its beginning
	ended   []*work            // cells that ended a moment ago
	asked   uint64             // the number of the question for input that the client is to answer; 0: none
}

func newSession(k *kernel, id string) *session { return &session{kernel: k, id: id} }

// current is the connection; nil: the client has left.
func (s *session) current() *socket {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.socket
}

// idle reports whether nobody needs the session.
func (s *session) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.socket == nil && !s.running && len(s.queue) == 0
}

// attach gives the session a connection. One that it has ends. What the client may have missed is sent again.
func (s *session) attach(ctx context.Context, at *socket, fresh bool) {
	s.mu.Lock()
	if s.socket != nil {
		s.socket.finish(errReplaced)
	}
	first := s.ctx == nil
	s.ctx, s.socket = context.WithoutCancel(ctx), at
	var again []*work
	if !first {
		limit := s.kernel.server.cfg.Now().Add(-replayFor)
		for _, w := range s.ended {
			if w.ends.After(limit) {
				again = append(again, w)
			}
		}
		s.ended = nil
		if s.wake != nil {
			s.rewind = true
			s.wake()
		}
	}
	own := s.ctx
	s.mu.Unlock()
	s.kernel.mu.Lock()
	s.kernel.listen(own) //nolint:contextcheck // it is made of ctx
	s.kernel.mu.Unlock()
	if first && !fresh {
		again = s.earlier() //nolint:contextcheck // as above
	}
	s.start(again)
}

// detach takes the connection away, if it is still the session's.
func (s *session) detach(at *socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.socket == at {
		s.socket = nil
	}
}

// jobsOf are the newest jobs of a kind of a sandbox.
func jobsOf(sandbox string, kind farm.JobKind) service.JobQuery {
	return service.JobQuery{SandboxID: sandbox, Kinds: []string{string(kind)}, Page: store.Page{Limit: 50}}
}

// earlier are the cells of the session that another process has begun, or this one before it stopped: those that run, and those that ended a
// moment ago.
func (s *session) earlier() []*work {
	ctx, done := s.context()
	defer done()
	cells, err := s.kernel.server.cfg.Service.Cells(ctx, s.kernel.ref.Tenant, s.kernel.ref.ID, s.id)
	if err != nil {
		return nil // the client sees no old output, as without this
	}
	limit := s.kernel.server.cfg.Now().Add(-replayFor)
	var out []*work
	for _, c := range cells {
		if c.Job.FinishedAt != nil && c.Job.FinishedAt.Before(limit) {
			continue
		}
		w := &work{job: c.Job.ID, message: message{channel: channelShell, content: json.RawMessage("{}")}}
		w.header = header{ID: c.Message, Type: "execute_request", Session: s.id}
		w.header.raw, _ = json.Marshal(map[string]string{
			"msg_id": c.Message, "msg_type": "execute_request", "session": s.id, "username": "", "version": protocolVersion, "date": stamp(c.Job.CreatedAt),
		})
		out = append(out, w)
	}
	return out
}

// take handles a message of the client: at once, or after those before it.
func (s *session) take(w *work) {
	switch w.header.Type {
	case "kernel_info_request":
		s.kernel.mu.Lock()
		ready := s.kernel.ready
		s.kernel.mu.Unlock()
		if ready {
			s.info(w)
			return
		}
	case "interrupt_request":
		s.control(w, func(ctx context.Context) error {
			return s.kernel.server.interrupt(ctx, s.kernel.ref.Tenant, s.kernel.ref.ID)
		})
		return
	case "shutdown_request":
		s.shutdown(w)
		return
	case "input_reply":
		s.input(w)
		return
	}
	s.mu.Lock()
	full := len(s.queue) >= MaxWaiting || s.bytes+w.size > MaxWaitingBytes
	s.mu.Unlock()
	if full {
		s.fail(w, farm.Errorf(farm.CodeExhausted, "%d messages of this client wait for their turn, the most that may.", MaxWaiting))
		return
	}
	s.start(nil, w)
}

// start adds work, first to the beginning and then to the end of the queue, and has it done.
func (s *session) start(first []*work, last ...*work) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(append(first, s.queue...), last...)
	for _, w := range append(first, last...) {
		s.bytes += w.size
	}
	if s.running || len(s.queue) == 0 {
		return
	}
	s.running = true
	s.kernel.server.work.Go(s.run)
}

// next takes the next message; nil: there is none.
func (s *session) next() *work {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		s.running = false
		return nil
	}
	w := s.queue[0]
	s.queue = s.queue[1:]
	s.bytes -= w.size
	return w
}

// run does the work in order, until there is none.
func (s *session) run() {
	for {
		w := s.next()
		if w == nil {
			time.AfterFunc(keptSession, func() { s.kernel.server.leave(s) })
			return
		}
		ctx, done := s.context()
		s.one(ctx, w)
		done()
		w.release()
	}
}

// context is the context of work: it ends when the server stops, and what it is charged is its own.
func (s *session) context() (context.Context, context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, done := context.WithCancel(s.ctx)
	stop := context.AfterFunc(s.kernel.server.life, done) //nolint:contextcheck // the server stops, not the caller
	ctx, hold := budget.Renew(ctx)
	return ctx, func() {
		stop()
		done()
		hold.Release()
	}
}

// one does the work of one message.
func (s *session) one(ctx context.Context, w *work) {
	if err := s.kernel.awaitReady(ctx); err != nil {
		if ctx.Err() == nil {
			s.fail(w, farm.Errorf(farm.CodeUnavailable, "The kernel has ended."))
		}
		return
	}
	s.kernel.begin(ctx)
	s.kernel.note(w, s)
	switch {
	case w.job != "":
		s.replay(ctx, w)
	case w.header.Type == "execute_request":
		s.cell(ctx, w)
	case w.header.Type == "kernel_info_request":
		s.info(w)
	default:
		s.question(ctx, w)
	}
}

// drop ends all cells that wait for their turn, as aborted.
func (s *session) drop() {
	s.mu.Lock()
	dropped := s.queue
	s.queue, s.bytes = nil, 0
	s.mu.Unlock()
	for _, w := range dropped {
		s.aborted(w)
	}
}

// aborted answers a message that is not done.
func (s *session) aborted(w *work) {
	if w.header.Type == "execute_request" && w.job == "" {
		s.status(w, stateBusy)
		s.reply(w, map[string]any{"status": "aborted", "execution_count": nil, "ename": "Aborted", "evalue": "", "traceback": []string{}})
		s.status(w, stateIdle)
	}
	w.release()
}

// status tells all clients that a message is being handled, or that it was.
func (s *session) status(w *work, state string) {
	s.iopub(w, "status", map[string]string{"execution_state": state})
}

// iopub sends what all clients see.
func (s *session) iopub(w *work, kind string, content any) {
	s.send(s.kernel.message(channelIOPub, kind, w.header.raw, content))
}

// send sends a message of iopub. The client's own connection is waited for, others are not.
func (s *session) send(m *message) {
	s.kernel.broadcast(m, s)
	s.own(m)
}

// own sends a message to the session's own client.
func (s *session) own(m *message) {
	if at := s.current(); at != nil {
		at.put(m)
	}
}

// reply answers a message, on its channel.
func (s *session) reply(w *work, content any) {
	s.own(s.kernel.message(w.channel, replyType(w.header.Type), w.header.raw, content))
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
	s.reply(w, map[string]any{"status": "ok", "restart": content.Restart})
	w.release()
	if content.Restart {
		if k.server.restart(ctx, k.ref.Tenant, k.ref.ID) == nil {
			k.tell("restarting", nil)
			k.tell(stateIdle, nil)
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

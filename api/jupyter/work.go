package jupyter

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// MaxWaiting bounds the messages of a client that wait for their turn.
	MaxWaiting = 1000
	// MaxWaitingBytes bounds their bytes.
	MaxWaitingBytes = 64 << 20
	// replayFor is how long before a client left a cell's end counts as possibly undelivered.
	replayFor = 30 * time.Second
	// replayCells bounds how many ended cells are kept.
	replayCells = 16
	// earlierFor and earlierCells bound which ended cells a client gets whose session this process does not know.
	earlierFor, earlierCells = 24 * time.Hour, 4
	// keptCode is the longest code that is kept beside its job, for clients that come back.
	keptCode = 4 << 10
	// keptEnded is keptCode for a cell that has ended, and the longest header that is kept of it as it came. Nobody is charged for these cells, of which a
	// kernel may have replayCells for each of its MaxSessions.
	keptEnded = 1 << 10
)

// work is one message that waits for its turn.
type work struct {
	message
	hold *budget.Hold
	size int
	// weight is the size of the message for budget.Core.
	weight int
	cell   *executeContent // of an execute_request that can be read
	job    string          // of a cell that was submitted
	// refusal is why the farm did not accept a cell.
	refusal error
	counted bool      // against requests_per_minute
	timeout time.Time // until when it waits for that
	early   bool      // the cell was submitted before its turn
	again   bool      // the cell's output was sent before
	quiet   bool      // what is being sent is for the session's own client: the others have it, or it does not concern them
	sent    int       // how many events they have got
	last    string    // the id of the last of them; "": the events are read from the beginning
	endSent bool      // they have got the end
	ends    time.Time
}

func (w *work) release() {
	if w.hold != nil {
		w.hold.Release()
	}
}

// decode decodes the content, a large one on a core of its tenant's.
func (w *work) decode(ctx context.Context, into any) error {
	leave, err := budget.Core(ctx, w.weight)
	if err != nil {
		return err
	}
	defer leave()
	return json.Unmarshal(w.content, into)
}

// submitted reports whether the work is a cell whose job is all that is left to do.
func (w *work) submitted() bool { return w.job != "" && w.cell != nil && len(w.cell.Expressions) == 0 }

// take handles a message of the client: at once, or after those before it.
func (s *session) take(w *work) {
	switch w.header.Type {
	case "kernel_info_request":
		if s.kernel.ready.Load() {
			s.info(w)
			return
		}
	case "interrupt_request":
		s.control(w, func(ctx context.Context) error {
			if err := s.kernel.admit(ctx); err != nil {
				return err
			}
			return s.kernel.server.interrupt(ctx, s.kernel.ref.Tenant, s.kernel.ref.ID)
		})
		return
	case "shutdown_request":
		s.shutdown(w)
		return
	case "input_reply":
		s.input(w)
		return
	case "execute_request":
		ctx, done := s.context()
		var cell executeContent
		if w.decode(ctx, &cell) == nil {
			w.cell = &cell
		}
		done()
	}
	if err := s.park(w); err != nil {
		s.fail(w, err)
		return
	}
	s.order.Lock()
	defer s.order.Unlock()
	s.mu.Lock()
	full := len(s.queue) >= MaxWaiting || s.bytes+w.size > MaxWaitingBytes
	s.mu.Unlock()
	if full {
		s.fail(w, farm.Errorf(farm.CodeExhausted, "%d messages of this client wait for their turn, the most that may.", MaxWaiting))
		return
	}
	if w.cell != nil {
		s.early(w)
	}
	s.start(nil, w)
}

// park charges a message for the time until its turn, which may be long.
func (s *session) park(w *work) (err error) {
	ctx, done := s.context()
	defer done()
	w.hold, err = w.hold.Park(ctx)
	return err
}

// early submits a cell before its turn, so that it outlives this process: if all that comes before it is submitted too, its place in the
// sandbox's FIFO is the right one. A cell for which the farm has no room now waits here.
func (s *session) early(w *work) {
	if w.cell == nil || w.cell.Code == "" || !s.placed() {
		return
	}
	ctx, done := s.context()
	defer done()
	if s.kernel.admit(ctx) != nil {
		return // it waits for its turn, and then for the quota
	}
	w.counted = true
	s.kernel.note(w, s) // it may run, and say something to widgets, before its turn
	forget := s.kernel.place(w.header.ID)
	s.submit(ctx, w)
	if w.early = w.job != ""; !w.early {
		forget()
	}
	if w.refusal != nil && farm.CodeOf(w.refusal) == farm.CodeExhausted {
		w.refusal = nil
	}
}

// placed reports whether all that waits for its turn has its place in the sandbox's FIFO, or does nothing in the sandbox.
func (s *session) placed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	placed := s.current == nil || s.current.submitted()
	for _, before := range s.queue {
		placed = placed && (before.submitted() || before.header.Type == "kernel_info_request")
	}
	return placed
}

// submit makes a cell a job.
func (s *session) submit(ctx context.Context, w *work) {
	k, content := s.kernel, w.cell
	timeout, language, kernel := k.server.cfg.Service.Bounds().TimeoutMaxSeconds, k.language, kernelContext
	out, err := k.server.cfg.Service.Execute(ctx, service.Call{
		Tenant: k.ref.Tenant, Cell: &farm.Cell{
			Session: s.id, Message: w.header.ID, Input: content.AllowStdin, Stops: content.stops(), Silent: content.Silent, NoHistory: content.unkept(),
		},
	}, k.ref.ID, wire.ExecuteRequest{Code: content.Code, Language: &language, Context: &kernel, TimeoutSeconds: &timeout})
	if err != nil {
		w.refusal = err
		return
	}
	w.job, w.content = out.Job.ID, nil
}

// start adds work, first to the beginning and then to the end of the queue, and has it done, once the sandbox has started.
func (s *session) start(first []*work, last ...*work) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = slices.Concat(first, s.queue, last)
	for _, w := range last {
		s.bytes += w.size
	}
	if s.running || len(s.queue) == 0 || !s.kernel.ready.Load() {
		return
	}
	s.running = true
	s.kernel.server.work.Go(s.run)
}

// next takes the next message if it is counted against the quota or need not be. nil: there is none.
func (s *session) next() (w *work, taken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = nil
	if len(s.queue) == 0 {
		s.running = false
		return nil, false
	}
	w = s.queue[0]
	if !w.counted && !w.free() {
		return w, false
	}
	s.queue = s.queue[1:]
	s.bytes -= w.size
	w.size = 0
	s.current, s.rewind = w, false
	return w, true
}

// run does the work in order, until there is none.
func (s *session) run() {
	for {
		w, taken := s.next()
		if w == nil {
			s.linger()
			return
		}
		if !taken {
			s.count(w)
			continue
		}
		ctx, done := s.context()
		s.one(ctx, w)
		done()
		w.release()
	}
}

// one does the work of one message.
func (s *session) one(ctx context.Context, w *work) {
	s.kernel.mu.Lock()
	over := s.kernel.over
	s.kernel.mu.Unlock()
	if over {
		s.fail(w, farm.Errorf(farm.CodeUnavailable, "The kernel has ended."))
		return
	}
	if w.job == "" && w.refusal == nil { // its client may have left long ago
		w.refusal = s.kernel.server.cfg.Check(ctx, access.CallerOf(ctx))
	}
	s.kernel.begin(ctx)
	s.kernel.note(w, s)
	switch w.header.Type {
	case "execute_request":
		s.cell(ctx, w)
	case "kernel_info_request":
		s.info(w)
	default:
		if w.refusal != nil {
			s.fail(w, w.refusal)
			return
		}
		s.question(ctx, w)
	}
}

// earlier are the cells of the session that another process was given, or this one before it stopped: those that have not ended, those that ended
// a moment ago, and the last ones before.
func (s *session) earlier() []*work {
	ctx, done := s.context()
	defer done()
	cells, err := s.kernel.server.cfg.Service.Cells(ctx, s.kernel.ref.Tenant, s.kernel.ref.ID, s.id)
	if err != nil {
		return nil // the client sees no old output, as without this
	}
	now := s.kernel.server.cfg.Now()
	var out []*work
	old := 0
	for _, c := range slices.Backward(cells) {
		if end := c.Job.FinishedAt; end != nil && end.Before(now.Add(-replayFor)) {
			if old++; old > earlierCells || end.Before(now.Add(-earlierFor)) {
				continue
			}
		}
		out = append(out, s.known(c))
	}
	slices.Reverse(out)
	return out
}

// known is the work of a cell that is a job already.
func (s *session) known(c service.Cell) *work {
	content := &executeContent{Code: c.Code, Silent: c.Silent, StopOnError: &c.Stops, AllowStdin: c.Input}
	if c.Cut || len(c.Code) > keptCode {
		content.Code = ""
	}
	w := &work{job: c.Job.ID, cell: content, early: true, again: c.Job.StartedAt != nil, message: message{channel: channelShell}}
	if c.Job.FinishedAt != nil {
		w.sent, w.endSent = math.MaxInt, true
	}
	w.header = executeHeader(c.Message, s.id, c.Job.CreatedAt)
	return w
}

// executeHeader is the header of a request to execute that no client of this process has sent.
func executeHeader(id, session string, at time.Time) header {
	h := header{ID: id, Type: "execute_request", Session: session}
	h.raw, _ = json.Marshal(map[string]string{ // texts always encode
		"msg_id": id, "msg_type": h.Type, "session": session, "username": "", "version": protocolVersion, "date": stamp(at),
	})
	return h
}

// drop ends messages that wait for their turn, as aborted.
func (s *session) drop(which func(*work) bool) {
	s.mu.Lock()
	var kept, dropped []*work
	for _, w := range s.queue {
		if which(w) {
			dropped = append(dropped, w)
			s.bytes -= w.size
		} else {
			kept = append(kept, w)
		}
	}
	s.queue = kept
	s.mu.Unlock()
	for _, w := range dropped {
		s.aborted(w)
	}
}

// Which work drop may end: all, work that is not a job, and cells that are not a job. A cell that is a job ends with its job.
func everything(*work) bool { return true }
func here(w *work) bool     { return w.job == "" }
func cellHere(w *work) bool { return w.job == "" && w.header.Type == "execute_request" }

// aborted answers a message that is not done.
func (s *session) aborted(w *work) {
	if w.job != "" {
		defer s.kernel.place(w.header.ID)()
	}
	if w.header.Type == "execute_request" {
		w.quiet = w.job == ""
		s.status(w, stateBusy)
		s.reply(w, map[string]any{"status": "aborted", "execution_count": nil, "ename": "Aborted", "evalue": "", "traceback": []string{}})
		s.status(w, stateIdle)
	}
	w.release()
}

const (
	// quotaTimeout is how long a message waits for requests_per_minute before it is refused.
	quotaTimeout = 10 * time.Minute
	// minQuotaPause and maxQuotaPause bound the time between two tries.
	minQuotaPause, maxQuotaPause = time.Second, time.Minute
)

// More counts further requests of a tenant against requests_per_minute, as access.Gate.More does.
type More func(ctx context.Context, tenant string, requests int) (admitted int, err error)

// admit counts one request of the kernel's tenant. The error is CodeExhausted, with the quota.
func (k *kernel) admit(ctx context.Context) error {
	_, err := k.server.cfg.More(ctx, k.ref.Tenant, 1)
	return err
}

// free reports whether the work is no request to the farm: it is answered here, or its job was counted.
func (w *work) free() bool {
	switch w.header.Type {
	case "execute_request":
		return w.job != "" || w.cell == nil || w.cell.Code == "" && len(w.cell.Expressions) == 0
	case "kernel_info_request":
		return true
	default:
		kind, _ := known(w.header.Type)
		return kind == ""
	}
}

// count counts a message whose turn it is. One beyond the quota waits, twice as long as until the next request is allowed: a notebook leaves half
// of what the quota allows to its tenant's other requests, such as the one that interrupts it.
func (s *session) count(w *work) {
	ctx, done := s.context()
	defer done()
	now := s.kernel.server.cfg.Now()
	if w.timeout.IsZero() {
		w.timeout = now.Add(quotaTimeout)
	}
	err := s.kernel.admit(ctx)
	refusal, ok := errors.AsType[*farm.Error](err)
	if err == nil || !ok || refusal.Quota == nil || refusal.Quota.Never || !now.Before(w.timeout) {
		s.mu.Lock()
		defer s.mu.Unlock()
		w.counted, w.refusal = true, err
		return
	}
	_ = pause(ctx, min(max(2*refusal.Quota.RetryAfter, minQuotaPause), maxQuotaPause)) // the next try notices the end
}

// dropUncounted ends the cells of a session that waits for the quota: nothing of it runs that an interrupt could end.
func (s *session) dropUncounted() {
	s.mu.Lock()
	waits := s.current == nil && len(s.queue) > 0 && !s.queue[0].counted && !s.queue[0].free()
	s.mu.Unlock()
	if waits {
		s.drop(cellHere)
	}
}

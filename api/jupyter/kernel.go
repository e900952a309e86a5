package jupyter

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
	"github.com/sandfarm/sandfarm/internal/store"
)

const (
	// MaxSessions bounds the clients of a kernel, those that have left a moment ago included.
	MaxSessions = 64
	// keptSession is how long a session is kept whose client has left and that runs nothing.
	keptSession = 10 * time.Minute
	// maxRate and maxBurst bound the messages of all clients of a tenant, in a second and at once. A widget that is dragged sends 60 a second.
	maxRate, maxBurst = 500, 2 * MaxWaiting
	// startPoll is how often the sandbox of waiting clients is read; the clients then get its position in the queue.
	startPoll = 2 * time.Second
)

// kernel is what the sessions of one sandbox share in this process.
type kernel struct {
	server   *Server
	ref      farm.Ref
	id       string // the session of messages that no client caused
	language string
	rate     *rate.Limiter // of its tenant
	ready    atomic.Bool   // the sandbox has started or ended: until then all work waits

	mu       sync.Mutex
	sessions map[string]*session
	over     bool // the sandbox has ended
	ending   sync.Once
	count    int  // of executions, as far as this process knows
	asked    bool // a restart was asked for and not noticed by a cell

	listening bool // what the kernel says beside its cells is read
	parents   parents

	feeding  sync.Mutex        // held while what the kernel says is sent
	heard    uint64            // the number of its last message that was read
	caughtUp bool              // the messages from before the first client have been read
	tried    bool              // begin was called
	streams  map[string]*place // cells whose output is being sent, by the ids of their messages
	input    *relay.Message    // the question for input that waits for its answer; nil: none
	running  string            // the job that may run since before this process listened; "": none
	others   []string          // jobs that are no cells, whose output is to be shown
	shows    bool              // one of them is being shown
}

// connections is how many WebSockets a kernel has in this process.
func (s *Server) connections(ref farm.Ref) int {
	s.mu.Lock()
	k := s.kernels[ref]
	s.mu.Unlock()
	if k == nil {
		return 0
	}
	n := 0
	for _, session := range k.all() {
		n += len(session.connections())
	}
	return n
}

// join returns the session of a client with a kernel, and makes it if there is none. The caller calls its joined.
func (s *Server) join(ctx context.Context, tenant string, box *wire.Sandbox, id string) (*session, error) {
	language := s.languageOf(ctx, box.Labels[labelKernel])
	ref := farm.Ref{Tenant: tenant, ID: box.ID}
	var dropped *session
	defer func() {
		if dropped != nil {
			dropped.forget()
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kernels[ref]
	if k == nil {
		if s.rates[tenant] == nil {
			s.rates[tenant] = rate.NewLimiter(maxRate, maxBurst)
		}
		k = &kernel{server: s, ref: ref, id: newID(), language: language, rate: s.rates[tenant], sessions: map[string]*session{}}
		s.kernels[ref] = k
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.sessions[id]
	if known != nil {
		known.join()
		return known, nil
	}
	if len(k.sessions) >= MaxSessions {
		if dropped = k.dropIdle(); dropped == nil {
			return nil, farm.Errorf(farm.CodeExhausted, "The kernel has %d clients, the most that it may have.", MaxSessions)
		}
	}
	if started(box) {
		k.ready.Store(true) // attach resumes what waits in other sessions
	}
	made := newSession(ctx, k, id)
	made.join()
	k.sessions[id] = made
	return made, nil
}

// dropIdle takes away a session whose client has left; nil: there is none. k.mu is held, and later the caller forgets the session without it.
func (k *kernel) dropIdle() *session {
	for id, session := range k.sessions {
		if session.idle() {
			delete(k.sessions, id)
			return session
		}
	}
	return nil
}

// leave forgets a session, unless its client has come back or it runs cells.
func (s *Server) leave(session *session) {
	if s.dropped(session) {
		session.forget()
	}
}

// dropped takes a session away, if leave is to forget it.
func (s *Server) dropped(session *session) bool {
	k := session.kernel
	s.mu.Lock()
	defer s.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sessions[session.id] != session || !session.idle() {
		return false
	}
	delete(k.sessions, session.id)
	if len(k.sessions) == 0 && s.kernels[k.ref] == k {
		delete(s.kernels, k.ref)
	}
	return true
}

// all are the sessions.
func (k *kernel) all() []*session {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := make([]*session, 0, len(k.sessions))
	for _, session := range k.sessions {
		out = append(out, session)
	}
	return out
}

// broadcast sends a message to the clients of all sessions but one, whose client gets it anyway. One that has no room for it is closed.
func (k *kernel) broadcast(m *message, but *session) {
	for _, other := range k.all() {
		if other == but {
			continue
		}
		for _, at := range other.connections() {
			at.offer(m)
		}
	}
}

// tell sends the state of the kernel to all its clients.
func (k *kernel) tell(state string, metadata map[string]any) {
	raw, _ := json.Marshal(metadata)
	if metadata == nil {
		raw = nil
	}
	m := k.message(channelIOPub, "status", nil, map[string]any{"execution_state": state})
	m.metadata = raw
	k.broadcast(m, nil)
}

// message makes a message of the kernel.
func (k *kernel) message(channel, kind string, parent json.RawMessage, content any) *message {
	body, ok := content.(json.RawMessage)
	if !ok {
		body, _ = json.Marshal(content) // our own types always encode
	}
	h := header{ID: newID(), Type: kind, Session: k.id}
	h.raw, _ = json.Marshal(map[string]string{
		"msg_id": h.ID, "msg_type": kind, "session": k.id, "username": "sandfarm", "date": stamp(k.server.cfg.Now()), "version": protocolVersion,
	})
	return &message{channel: channel, header: h, parent: parent, content: body}
}

// end sends all clients that the kernel is dead. When it returns they have got it, whichever call was first.
func (k *kernel) end() { k.ending.Do(k.tellEnd) }

// tellEnd is end's work.
func (k *kernel) tellEnd() {
	k.mu.Lock()
	k.over = true
	k.parents = parents{} // sessions are kept for a while
	k.ready.Store(true)
	k.mu.Unlock()
	k.server.mu.Lock()
	if k.server.kernels[k.ref] == k {
		delete(k.server.kernels, k.ref)
	}
	k.server.mu.Unlock()
	k.tell(stateDead, nil)
	for _, session := range k.all() {
		session.drop(everything)
		for _, at := range session.connections() {
			at.finish(errEnded)
		}
	}
}

// gone ends a kernel whose sandbox has ended, or is none of Jupyter's any more.
func (s *Server) gone(ref farm.Ref) {
	s.mu.Lock()
	k := s.kernels[ref]
	s.mu.Unlock()
	if k != nil {
		k.end()
	}
}

// abort cancels the cells of all sessions that wait for their turn.
func (s *Server) abort(ctx context.Context, ref farm.Ref) error {
	if err := s.cfg.Service.AbortCells(ctx, ref.Tenant, ref.ID); err != nil {
		return err
	}
	s.mu.Lock()
	k := s.kernels[ref]
	s.mu.Unlock()
	if k == nil {
		return nil
	}
	for _, session := range k.all() {
		session.drop(here)
	}
	return nil
}

// look reads the sandbox. It ends the kernel if that has ended.
func (k *kernel) look(ctx context.Context) (wire.Sandbox, error) {
	box, err := k.server.cfg.Service.Sandbox(ctx, k.ref.Tenant, k.ref.ID)
	if err == nil && (stateOf(&box) == "" || stateOf(&box) == stateDead) || farm.CodeOf(err) == farm.CodeNotFound && err != nil {
		k.end()
		return box, errEnded
	}
	return box, err
}

// started reports whether the sandbox of a kernel can run cells.
func started(box *wire.Sandbox) bool { return stateOf(box) == stateIdle || stateOf(box) == stateBusy }

// awaitStart looks whether the sandbox has started. If it has not, clients are told how long that may take, until the next look is due.
func (k *kernel) awaitStart(ctx context.Context) {
	ctx, hold := budget.Renew(ctx)
	defer hold.Release()
	box, err := k.look(ctx)
	switch {
	case errors.Is(err, errEnded):
		return
	case err == nil && started(&box):
		k.ready.Store(true)
		return
	case err == nil:
		k.tell(stateStarting, k.waiting(ctx))
	}
	_ = pause(ctx, startPoll) // the caller notices the end
}

// resume has all sessions do the work that has waited for the start.
func (k *kernel) resume() {
	for _, session := range k.all() {
		session.start(nil)
	}
}

// waiting says where a sandbox is that waits for room.
func (k *kernel) waiting(ctx context.Context) map[string]any {
	jobs, err := k.server.cfg.Service.Jobs(ctx, k.ref.Tenant, service.JobQuery{
		SandboxID: k.ref.ID, Kinds: []string{string(farm.KindCreate)}, Page: store.Page{Limit: 1},
	})
	if err != nil || len(jobs.Items) == 0 || jobs.Items[0].Position == 0 {
		return nil
	}
	out := map[string]any{"position": jobs.Items[0].Position}
	if e := jobs.Items[0].EstimateSeconds; e != nil {
		out["estimate_seconds"] = *e
	}
	return map[string]any{"sandfarm": out}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

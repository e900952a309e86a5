package jupyter

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
)

const (
	// feedWait is how long one question for messages of the kernel waits for some.
	feedWait = 50 * time.Second
	// feedPause is the time between two tries to reach the sandbox.
	feedPause = 5 * time.Second
	// pullTimeout bounds a question for what there is now.
	pullTimeout = 5 * time.Second
	// maxParents and maxParentBytes bound the headers of clients' messages that are remembered for what the kernel says later. They are not
	// charged: a kernel has them as long as it has clients.
	maxParents, maxParentBytes = 1000, 64 << 10
	// maxHeld and maxHeldBytes bound the messages that wait for the output before them, of each cell. Those beyond overtake it, and so do
	// those for which there is no memory.
	maxHeld, maxHeldBytes = 1000, 1 << 20
	// heldBytes is what a message takes beside its content.
	heldBytes = 256
	// maxPrompt bounds the prompt of a question that is remembered for a client that comes back.
	maxPrompt = 4 << 10
)

// listen waits for the start of the sandbox, for all sessions, and then reads what the kernel says beside its cells, as long as anybody listens. k.mu is
// held.
func (k *kernel) listen(ctx context.Context) {
	if k.listening {
		return
	}
	k.listening = true
	ctx, done := context.WithCancel(ctx)
	stop := context.AfterFunc(k.server.life, done) //nolint:contextcheck // the server stops, not the caller
	k.server.work.Go(func() {
		defer done()
		defer stop()
		k.feed(ctx)
	})
}

// feed is listen's work.
func (k *kernel) feed(ctx context.Context) {
	for resumed := false; k.listens(ctx); {
		if !k.ready.Load() {
			k.awaitStart(ctx)
			continue
		}
		if !resumed {
			k.resume()
			resumed = true
		}
		if err := k.read(ctx, feedWait); err != nil {
			if _, err := k.look(ctx); !errors.Is(err, errEnded) {
				_ = pause(ctx, feedPause)
			}
		}
	}
}

// listens reports whether feed is to continue: until the sandbox has started while a client is connected, then while one may come back.
func (k *kernel) listens(ctx context.Context) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	anybody := false
	for _, s := range k.sessions {
		anybody = anybody || k.ready.Load() || len(s.connections()) > 0
	}
	k.listening = anybody && !k.over && ctx.Err() == nil
	return k.listening
}

// talks reports whether the kernel has said anything beside its cells.
func (k *kernel) talks() bool {
	k.feeding.Lock()
	defer k.feeding.Unlock()
	return k.heard > 0
}

// begin finds out what the kernel said before this process listened, once: clients do not get it.
func (k *kernel) begin(ctx context.Context) {
	k.feeding.Lock()
	tried := k.tried
	k.tried = true
	k.feeding.Unlock()
	if !tried {
		k.pull(ctx)
	}
}

// pull sends what the kernel has said up to now.
func (k *kernel) pull(ctx context.Context) {
	ctx, done := context.WithTimeout(ctx, pullTimeout)
	defer done()
	for {
		k.feeding.Lock()
		before := k.heard
		k.feeding.Unlock()
		if k.read(ctx, 0) != nil {
			return
		}
		k.feeding.Lock()
		same := k.heard == before
		k.feeding.Unlock()
		if same {
			return
		}
	}
}

// read asks once for messages, and sends them.
func (k *kernel) read(ctx context.Context, wait time.Duration) error {
	ctx, hold := budget.Renew(ctx)
	defer hold.Release()
	k.feeding.Lock()
	after, caughtUp := k.heard, k.caughtUp
	k.feeding.Unlock()
	if !caughtUp {
		wait = 0
	}
	list, err := k.server.cfg.Service.KernelMessages(ctx, k.ref.Tenant, k.ref.ID, kernelContext, after, wait)
	all := make([]said, len(list))
	for i, m := range list { // before the lock: it may wait
		leave, err := budget.Core(ctx, len(m.Content))
		if err != nil {
			return err
		}
		all[i] = split(m)
		leave()
	}
	k.feeding.Lock()
	defer k.feeding.Unlock()
	for _, m := range all {
		if m.Seq <= k.heard { // it was read meanwhile
			continue
		}
		k.heard = m.Seq
		_, asker := k.parent(m.Parent)
		heard := k.caughtUp || asker != nil // a client of this process caused it, however early
		if at := k.streams[m.Parent]; heard && at != nil && m.Execution != "" && (m.After > at.sent || len(at.held) > 0) && at.hold(ctx, m) {
			continue
		} else if !heard && m.Kind == "input_request" {
			k.remember(m.Message)
		} else if !heard && m.Kind == kindExecution {
			k.running = m.Execution
		} else if heard { // what was said before there was a client is of no use: clients ask for the widgets that there are
			k.pass(m)
		}
	}
	if err == nil && len(list) == 0 {
		k.caughtUp = true
		if k.running != "" {
			k.other(k.running)
			k.running = ""
		}
	}
	return err
}

// place is how much of the output of a cell was sent, and what the kernel said after more of it.
type place struct {
	sent   uint64 // number of the last frame
	held   []said
	bytes  int64        // of held
	charge *budget.Hold // for them; it lasts as long as the client does not read
}

// hold keeps a message for later, if there is room for it.
func (at *place) hold(ctx context.Context, m said) bool {
	n := sizeOf(m)
	if len(at.held) >= maxHeld || at.bytes+n > maxHeldBytes {
		return false
	}
	if at.charge == nil {
		at.charge = budget.Lasting(ctx)
	}
	if !at.charge.Grow(n) {
		return false
	}
	at.held = append(at.held, m)
	at.bytes += n
	return true
}

// next takes the first message whose place is reached.
func (at *place) next() (m said, ok bool) {
	if len(at.held) == 0 || at.held[0].After > at.sent {
		return m, false
	}
	m = at.held[0]
	at.held[0] = said{} // the array stays
	at.held = at.held[1:]
	return m, true
}

// passed gives back what a message took that was passed on.
func (at *place) passed(m said) {
	at.bytes -= sizeOf(m)
	at.charge.Keep(at.bytes)
}

// sizeOf is what a message takes while it is held.
func sizeOf(m said) int64 {
	n := len(m.Content) + len(m.metadata) + heldBytes
	for _, b := range m.buffers {
		n += len(b)
	}
	return int64(n)
}

// place makes the messages of a cell keep their place among its output, until done is called. It may be called again before.
func (k *kernel) place(id string) (done func()) {
	k.feeding.Lock()
	defer k.feeding.Unlock()
	if k.streams == nil {
		k.streams = map[string]*place{}
	}
	if k.streams[id] == nil {
		k.streams[id] = &place{}
	}
	return func() {
		k.reached(id, math.MaxUint64)
		k.feeding.Lock()
		defer k.feeding.Unlock()
		delete(k.streams, id)
		if k.input != nil && k.input.Parent == id {
			k.input = nil
		}
	}
}

// reached says that the output of a cell was sent up to a frame, and sends what the kernel said then.
func (k *kernel) reached(id string, frame uint64) {
	k.feeding.Lock()
	defer k.feeding.Unlock()
	at := k.streams[id]
	if at == nil {
		return
	}
	at.sent = max(at.sent, frame)
	for m, ok := at.next(); ok; m, ok = at.next() {
		k.pass(m)
		at.passed(m)
	}
}

// remember keeps a question for input. Code may choose a prompt of any length, of which the beginning is kept.
func (k *kernel) remember(m relay.Message) {
	if len(m.Content) > maxPrompt {
		var question struct {
			Prompt   string `json:"prompt"`
			Password bool   `json:"password"`
		}
		_ = json.Unmarshal(m.Content, &question)
		question.Prompt = strings.ToValidUTF8(strings.Clone(question.Prompt[:min(len(question.Prompt), maxPrompt)]), "")
		m.Content, _ = json.Marshal(question)
	}
	k.input = &m
}

// askAgain repeats the question for input that a cell waits for, for a client that has come back.
func (k *kernel) askAgain(w *work) {
	k.feeding.Lock()
	defer k.feeding.Unlock()
	if k.input != nil && k.input.Parent == w.header.ID {
		k.pass(said{Message: *k.input})
	}
}

// pass sends one message of the kernel to the clients that it is for.
func (k *kernel) pass(m said) {
	parent, asker := k.parent(m.Parent)
	switch m.Kind {
	case "ended":
		var why struct {
			Asked bool `json:"asked"`
		}
		_ = json.Unmarshal(m.Content, &why)
		if why.Asked {
			k.renewed()
		} else {
			k.restarted()
		}
	case kindExecution:
		k.other(m.Execution)
	case "input_request":
		k.remember(m.Message)
		if asker != nil {
			asker.own(k.message(channelStdin, m.Kind, parent, m.Content)) // if it has left, it is asked again when it is back
		}
	case "comm_open", "comm_msg", "comm_close", "stream", "display_data", "update_display_data", "clear_output":
		out := k.message(channelIOPub, m.Kind, parent, m.Content)
		out.metadata, out.buffers = m.metadata, m.buffers
		for _, s := range k.all() {
			s.keep(out)
		}
	}
}

// said is a message of a kernel, whose buffers and metadata are beside its content. The kernel chose it, and may have any number of keys and buffers.
type said struct {
	relay.Message
	metadata json.RawMessage
	buffers  [][]byte
}

// split takes the buffers and the metadata out of the content of a message. Of the rest, that of a comm has the fields that Jupyter's protocol has, and no
// others.
func split(m relay.Message) said {
	own := said{Message: m}
	var all struct {
		CommID   json.RawMessage `json:"comm_id,omitempty"`
		Target   json.RawMessage `json:"target_name,omitempty"`
		Module   json.RawMessage `json:"target_module,omitempty"`
		Data     json.RawMessage `json:"data,omitempty"`
		Metadata json.RawMessage `json:"metadata,omitempty"`
		Buffers  json.RawMessage `json:"buffers,omitempty"`
	}
	switch m.Kind {
	case "comm_open", "comm_msg", "comm_close", "display_data", "update_display_data":
	default:
		return own
	}
	if json.Unmarshal(m.Content, &all) != nil {
		return own
	}
	own.buffers = buffersOf(all.Buffers)
	if m.Kind == "display_data" || m.Kind == "update_display_data" {
		return own
	}
	own.metadata = all.Metadata
	all.Metadata, all.Buffers = nil, nil
	own.Content, _ = json.Marshal(all)
	return own
}

// buffersOf decodes the first MaxBuffers of a list; none if one of these is no text.
func buffersOf(list json.RawMessage) (out [][]byte) {
	var texts [MaxBuffers]*string // package json skips the others
	if len(list) == 0 || json.Unmarshal(list, &texts) != nil {
		return nil
	}
	for _, text := range texts {
		if text == nil {
			break
		}
		b, _ := base64.StdEncoding.DecodeString(*text) // what is wrong is empty
		out = append(out, b)
	}
	return out
}

// parents remembers the headers of the newest messages of clients.
type parents struct {
	known map[string]asked
	order []string
	bytes int // of known
}

type asked struct {
	header json.RawMessage
	by     *session
}

// note remembers a message of a client.
func (k *kernel) note(w *work, by *session) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := &k.parents
	if p.known == nil {
		p.known = map[string]asked{}
	}
	before, ok := p.known[w.header.ID]
	if !ok {
		p.order = append(p.order, w.header.ID)
	}
	p.known[w.header.ID] = asked{w.header.raw, by}
	p.bytes += len(w.header.raw) - len(before.header)
	for len(p.order) > maxParents || p.bytes > maxParentBytes {
		p.bytes -= len(p.known[p.order[0]].header)
		delete(p.known, p.order[0])
		p.order = p.order[1:]
	}
}

// parent is the header of a message by its id, and the session that sent it; nil: none of this process.
func (k *kernel) parent(id string) (json.RawMessage, *session) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if a, ok := k.parents.known[id]; ok {
		return a.header, a.by
	}
	if id == "" || farm.ValidID(farm.JobPrefix, id) {
		return nil, nil
	}
	raw, _ := json.Marshal(map[string]string{"msg_id": id, "msg_type": "execute_request", "session": "", "username": "", "version": protocolVersion})
	return raw, nil
}

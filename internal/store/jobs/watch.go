package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

// subscribeTimeout bounds the wait for Redis to confirm a subscription; a healthy one answers in a millisecond.
const subscribeTimeout = 5 * time.Second

// Watch is a subscription to the changes of a job.
type Watch struct {
	hub   *hub
	topic *topic
	wake  chan struct{}
	end   bool   // fires for the end of the job only; guarded by the hub's mutex, like last
	last  string // of the messages that fired it: that of the end of the job, if it came
	once  sync.Once
}

// more is the message of a change that is not the end of a job. Any other message may be one.
const more = "more"

// maxWaiting is how many messages of Redis a process has not looked at yet; more are dropped by the client.
const maxWaiting = 1024

// OnlyEnd has the watch fire only when the job may have ended. A caller that waits for the end would read the record for each line of output.
func (w *Watch) OnlyEnd() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.end = true
}

// NewJobID is an id for a job that this process will watch. All these ids begin alike, and one subscription covers them: Watch sends nothing.
func (s *Store) NewJobID() string {
	own := s.hub.own
	return own + farm.NewID(farm.JobPrefix)[len(own):]
}

// ownDigits is how many characters of an id the jobs have in common that one process names: so many that no two processes are likely to have
// the same, and then each only wakes up for the other's jobs, too.
const ownDigits = 4

// Watch subscribes to a job: the watch fires for every event and state that is written after Watch returned. All watches of a process
// share one connection.
func (s *Store) Watch(ctx context.Context, jobID string) (*Watch, error) {
	return s.hub.watch(ctx, jobID)
}

// C fires after changes, and after a reconnect, since changes may have been missed. One signal may stand for several changes: read all new
// events, then wait again.
func (w *Watch) C() <-chan struct{} { return w.wake }

// ended is the record of the job as the message of its end has it; nil if there was none, or if the record is too long for one.
func (w *Watch) ended() map[string]string {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	var list []any
	if !strings.HasPrefix(w.last, "[") || json.Unmarshal([]byte(w.last), &list) != nil {
		return nil
	}
	return db.Pairs(list)
}

// Close ends the subscription.
func (w *Watch) Close() { w.once.Do(func() { w.hub.drop(w) }) }

// hub shares the one subscription connection of a process among its watches. A pattern covers the jobs that this process names; others have
// a subscription each while they are watched.
type hub struct {
	listen db.Subscribe
	prefix string
	own    string // how the ids of NewJobID begin

	mu     sync.Mutex
	sub    db.Subscription // made by the first watch
	all    confirmation    // of the pattern for own
	topics map[string]*topic
	closed bool
	wg     sync.WaitGroup
}

// topic is the channel of a job, guarded by the hub's mutex.
type topic struct {
	channel string
	watches map[*Watch]struct{}
	own     bool // covered by the hub's pattern
	confirmation
}

// confirmation tells whether a subscription has been confirmed.
type confirmation struct {
	ready chan struct{} // closed by the first confirmation
	done  bool
}

// first reports whether this is the first confirmation.
func (c *confirmation) first() bool {
	if c.done {
		return false
	}
	c.done = true
	close(c.ready)
	return true
}

func newHub(listen db.Subscribe, prefix string) *hub {
	return &hub{
		listen: listen, prefix: prefix, own: farm.NewID(farm.JobPrefix)[:len(farm.JobPrefix)+ownDigits],
		all: confirmation{ready: make(chan struct{})}, topics: map[string]*topic{},
	}
}

func (h *hub) watch(ctx context.Context, jobID string) (*Watch, error) {
	ctx, cancel := context.WithTimeout(ctx, subscribeTimeout)
	defer cancel()
	w, ready, err := h.join(ctx, h.prefix+jobID)
	if err != nil {
		return nil, err
	}
	select {
	case <-ready:
		return w, nil
	case <-ctx.Done():
		w.Close()
		return nil, db.Wrap("watch job", fmt.Errorf("wait for the subscription: %w", context.Cause(ctx)))
	}
}

func (h *hub) join(ctx context.Context, channel string) (*Watch, <-chan struct{}, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, nil, fmt.Errorf("watch job: store is closed")
	}
	if h.sub == nil {
		// The subscription outlives the first watcher's context. The bare prefix keeps the connection in use.
		h.sub = h.listen(context.WithoutCancel(ctx), h.prefix)
		messages := h.sub.Messages(maxWaiting)
		h.wg.Go(func() { h.pump(messages) })
		// If this fails, the client tries it again on a new connection, and the watch waits for that.
		_ = h.sub.PSubscribe(context.WithoutCancel(ctx), escape.Replace(h.prefix+h.own)+"*")
	}
	t := h.topics[channel]
	switch {
	case t != nil:
	case strings.HasPrefix(channel, h.prefix+h.own):
		t = &topic{channel: channel, watches: map[*Watch]struct{}{}, own: true, confirmation: confirmation{ready: h.all.ready}}
		h.topics[channel] = t
	default:
		t = &topic{channel: channel, watches: map[*Watch]struct{}{}, confirmation: confirmation{ready: make(chan struct{})}}
		h.topics[channel] = t
		if err := h.sub.Subscribe(context.WithoutCancel(ctx), channel); err != nil {
			// The client remembers the channel and would subscribe to it again after a reconnect, without a watcher.
			delete(h.topics, channel)
			_ = h.sub.Unsubscribe(context.WithoutCancel(ctx), channel)
			return nil, nil, db.Wrap("watch job", err)
		}
	}
	w := &Watch{hub: h, topic: t, wake: make(chan struct{}, 1)}
	t.watches[w] = struct{}{}
	return w, t.ready, nil
}

func (h *hub) drop(w *Watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := w.topic
	delete(t.watches, w)
	if len(t.watches) > 0 || h.topics[t.channel] != t {
		return
	}
	delete(h.topics, t.channel)
	if !h.closed && !t.own {
		// An error means that the connection is down; the client forgets the channel anyway.
		_ = h.sub.Unsubscribe(context.Background(), t.channel) //nolint:forbidigo // Close has no context; the write is bounded by the client's timeout
	}
}

// escape escapes what has a meaning in a pattern of Redis.
var escape = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`, "^", `\^`)

// pump wakes the watches. A second confirmation of a subscription means that the connection is new, or that the first one belonged to an
// earlier subscription. Either way changes may have been missed, so it counts as one.
func (h *hub) pump(messages <-chan any) {
	for m := range messages {
		switch m := m.(type) {
		case *redis.Message:
			h.fire(m.Channel, m.Payload)
		case *redis.Subscription:
			h.confirmed(m.Kind, m.Channel)
		}
	}
}

func (h *hub) confirmed(kind, channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch kind {
	case "subscribe":
		if t := h.topics[channel]; t != nil && !t.own && !t.first() {
			t.fire("")
		}
	case "psubscribe":
		if h.all.first() {
			return
		}
		for _, t := range h.topics {
			if t.own {
				t.fire("")
			}
		}
	}
}

func (h *hub) fire(channel, message string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[channel]; t != nil {
		t.fire(message)
	}
}

// fire wakes the watches of a topic; "" is a change of any kind. The caller holds the hub's mutex.
func (t *topic) fire(message string) {
	for w := range t.watches {
		if w.end && message == more {
			continue
		}
		if w.end && message != "" {
			w.last = message
		}
		select {
		case w.wake <- struct{}{}:
		default: // a signal is waiting already
		}
	}
}

func (h *hub) close() error {
	h.mu.Lock()
	h.closed = true
	sub := h.sub
	h.sub = nil
	h.mu.Unlock()
	var err error
	if sub != nil {
		err = sub.Close()
	}
	h.wg.Wait()
	return err
}

package service

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
)

const (
	// watchPoll is how long one question for changes waits for some. Each reads the sandbox's record once.
	watchPoll = 50 * time.Second
)

// Watching says what is watched.
type Watching struct {
	Path      string
	Recursive bool
	Ignore    []string // patterns of names, as of a shell
}

// FileWatch is one reader of the changes of a tree. If the worker between them ends, it continues through another one. It is not safe for
// concurrent use.
type FileWatch struct {
	s           *Service
	tenant, box string
	what        Watching
	id          string // by which the agent knows the watch
	last        uint64 // the newest event that was read
	batches     chan fileBatch
	given       bool          // the caller has events that read does not know to be sent
	sent        chan struct{} // tells read that they are
	end         context.CancelFunc
	hold        *budget.Hold // what read has: the caller gives back what it holds itself
	reading     sync.WaitGroup
}

type fileBatch struct {
	events []wire.Event
	err    error
}

// WatchFiles watches a directory, all below it, or one file, from the event after on (empty: from now on). It is watched when WatchFiles returns.
func (s *Service) WatchFiles(ctx context.Context, tenant, sandboxID string, what Watching, after string) (*FileWatch, error) {
	if len(what.Ignore) > farm.MaxIgnored {
		return nil, farm.Invalidf("ignore has %d patterns; at most %d are allowed", len(what.Ignore), farm.MaxIgnored)
	}
	w := &FileWatch{s: s, tenant: tenant, box: sandboxID, what: what, batches: make(chan fileBatch), sent: make(chan struct{})}
	a, err := s.fsAgent(ctx, tenant, sandboxID, &w.what.Path)
	if err != nil {
		return nil, err
	}
	if after != "" {
		id, seq, _ := strings.Cut(after, ".")
		if w.last, err = strconv.ParseUint(seq, 10, 63); err != nil || !farm.ValidID(farm.WatchPrefix, id) {
			return nil, farm.Invalidf("%q is not the id of an event of a watch", farm.Shorten(after))
		}
		w.id = id
	}
	ctx, w.hold = budget.Renew(ctx)
	ctx, w.end = context.WithCancel(ctx)
	first, err := w.begin(ctx, a)
	if err != nil {
		w.Close()
		return nil, err
	}
	w.reading.Go(func() { w.read(ctx, first) })
	return w, nil
}

// begin starts a watch unless the caller's id names one that still runs, and returns the first event for the caller.
func (w *FileWatch) begin(ctx context.Context, a relay.Agent) ([]wire.Event, error) {
	var out []wire.Event
	if w.id != "" {
		_, err := a.Watched(ctx, w.id, w.last, 0)
		if err == nil || farm.CodeOf(err) != farm.CodeNotFound {
			return nil, err
		}
	}
	lost := w.id != ""
	w.id, w.last = farm.NewID(farm.WatchPrefix), 0
	started, err := a.Watch(ctx, w.id, w.what.Path, w.what.Recursive, false, w.what.Ignore)
	if err != nil {
		return nil, err
	}
	if lost {
		dropped, err := w.event(0, string(relay.FileDropped), wire.ChangesDropped{Reason: "the farm no longer has what happened since the last event"})
		if err != nil {
			return nil, err
		}
		out = append(out, dropped)
	}
	ready, err := w.event(0, "ready", wire.WatchReady{Path: w.what.Path, Directories: started.Directories})
	return append(out, ready), err
}

func (w *FileWatch) event(seq uint64, name string, data any) (wire.Event, error) {
	raw, err := json.Marshal(data)
	if err != nil {
		return wire.Event{}, fmt.Errorf("encode change: %w", err)
	}
	return wire.Event{ID: w.id + "." + strconv.FormatUint(seq, 10), Name: name, Data: raw}, nil
}

// Close ends the reader. The agent keeps what happens for a minute, in case the caller comes again.
func (w *FileWatch) Close() {
	w.end()
	w.reading.Wait()
	w.hold.Release()
}

// Next returns the next events, or none if nothing came within timeout. io.EOF: the server stops. They stay charged until the next call.
func (w *FileWatch) Next(ctx context.Context, timeout time.Duration) ([]wire.Event, error) {
	if w.given {
		select {
		case w.sent <- struct{}{}:
			w.given = false
		case <-ctx.Done():
			return nil, io.EOF
		}
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case b := <-w.batches:
		w.given = b.err == nil
		return b.events, b.err
	case <-timer.C:
		return nil, nil
	case <-w.s.draining:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, io.EOF
	}
}

// read reads events, an answer when the caller has sent the one before: it may be slow.
func (w *FileWatch) read(ctx context.Context, events []wire.Event) {
	for {
		if len(events) > 0 {
			select {
			case w.batches <- fileBatch{events: events}:
			case <-ctx.Done():
				return
			}
			select {
			case <-w.sent:
			case <-ctx.Done():
				return
			}
		}
		budget.Keep(ctx, 0) // it is sent
		var err error
		if events, err = w.more(ctx); err != nil {
			select {
			case w.batches <- fileBatch{err: err}:
			case <-ctx.Done():
			}
			return
		}
	}
}

// more asks for events until there are some, over as many workers as it takes. After an answer without events it pauses: the agent, which waits for
// some, is in the sandbox.
func (w *FileWatch) more(ctx context.Context) ([]wire.Event, error) {
	broken := time.Time{} // since when the sandbox is not reached
	for {
		a, err := w.s.agent(ctx, w.tenant, w.box)
		var got relay.FileEvents
		if err == nil {
			got, err = a.Watched(ctx, w.id, w.last, watchPoll)
		}
		switch now := time.Now(); {
		case err == nil:
			broken = time.Time{}
			if events, err := w.events(got); err != nil || len(events) > 0 {
				return events, err
			}
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case farm.CodeOf(err) == farm.CodeNotFound && a != (relay.Agent{}): // its process ended, or it has forgotten the watch
			events, err := w.begin(ctx, a)
			if err == nil || farm.CodeOf(err) != farm.CodeUnavailable {
				return events, err
			}
		case farm.CodeOf(err) != farm.CodeUnavailable && farm.CodeOf(err) != farm.CodeExhausted:
			return nil, err
		case broken.IsZero():
			broken = now
		case now.Sub(broken) > outputTimeout:
			return nil, err
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
	}
}

// events makes the events of an answer.
func (w *FileWatch) events(got relay.FileEvents) ([]wire.Event, error) {
	var out []wire.Event
	add := func(seq uint64, name string, data any) error {
		e, err := w.event(seq, name, data)
		out = append(out, e)
		return err
	}
	if got.Lost && (len(got.Events) > 0 || w.last > 0) {
		first := uint64(1) // without events: the caller's number is of an event that has not happened
		if w.last = 0; len(got.Events) > 0 {
			first = got.Events[0].Seq
		}
		if err := add(first-1, string(relay.FileDropped), wire.ChangesDropped{Reason: "more happened than was read in time"}); err != nil {
			return nil, err
		}
	}
	for _, e := range got.Events {
		var data any = wire.ChangesDropped{Reason: e.Reason}
		if e.Kind != relay.FileDropped {
			change := wire.FileChange{Path: e.Path, Type: "file", Metadata: e.Kind == relay.FileChanged && e.Metadata}
			if e.Type == "dir" {
				change.Type = "dir"
			}
			if e.Kind == relay.FileRenamed {
				change.From = &e.From
			}
			data = change
		}
		if err := add(e.Seq, string(e.Kind), data); err != nil {
			return nil, err
		}
		w.last = e.Seq
	}
	return out, nil
}

// Watcher watches a directory for a caller who asks for its changes when it likes (WatcherChanges), until it is ended or many others are begun in
// the sandbox.
func (s *Service) Watcher(ctx context.Context, tenant, sandboxID string, what Watching) (id string, err error) {
	a, err := s.fsAgent(ctx, tenant, sandboxID, &what.Path)
	if err != nil {
		return "", err
	}
	id = farm.NewID(farm.WatchPrefix)
	_, err = a.Watch(ctx, id, what.Path, what.Recursive, true, what.Ignore)
	return id, err
}

// WatcherChanges returns what has changed since it was called before: some hundred changes at most, then call it again.
func (s *Service) WatcherChanges(ctx context.Context, tenant, sandboxID, id string) (relay.FileEvents, error) {
	a, err := s.watcherAgent(ctx, tenant, sandboxID, id)
	if err != nil {
		return relay.FileEvents{}, err
	}
	return a.Polled(ctx, id)
}

// EndWatcher ends a watcher. One that has ended is no error.
func (s *Service) EndWatcher(ctx context.Context, tenant, sandboxID, id string) error {
	a, err := s.watcherAgent(ctx, tenant, sandboxID, id)
	if err != nil {
		return err
	}
	return a.EndWatch(ctx, id)
}

// watcherAgent is agent for a watcher, whose id may be malformed.
func (s *Service) watcherAgent(ctx context.Context, tenant, sandboxID, id string) (relay.Agent, error) {
	a, err := s.agent(ctx, tenant, sandboxID)
	if err == nil && !farm.ValidID(farm.WatchPrefix, id) {
		err = farm.NotFoundf("The sandbox has no watcher %q.", farm.Shorten(id))
	}
	return a, err
}

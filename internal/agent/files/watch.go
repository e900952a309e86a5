package files

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// MaxWatches is how many trees are watched at once.
	MaxWatches = 16
	// MaxWatchedDirs is how many directories one of them may have.
	MaxWatchedDirs = 8192
	// WindowEvents is how many events of a watch are kept for a reader that comes, or comes again.
	WindowEvents = 4096
	// watchLife is how long a watch lives without a reader.
	watchLife = time.Minute
	// pollEvents is how many events one answer has, and pollPause the time between two answers. Both bound the rate.
	pollEvents = 256
	pollPause  = 50 * time.Millisecond
	// maxPoll bounds how long an answer without events is delayed.
	maxPoll = time.Minute
)

// watches are the trees that are watched. The zero value is usable.
type watches struct {
	mu   sync.Mutex
	byID map[string]*watch
}

// watch is one tree with the window of its newest events.
type watch struct {
	tree    *watchedTree
	started agent.WatchStarted
	polled  bool // its reader asks when it likes, and it keeps where the reader is

	mu      sync.Mutex
	events  []agent.FileEvent // the oldest first; their numbers have no gaps
	next    uint64            // of the next event
	sent    uint64            // the last event that any reader was sent
	changed map[change]uint64 // the newest event of a path, if it says that the path changed
	more    chan struct{}     // closed when there is another event
	readers int
	left    time.Time // when the last reader left
	asked   time.Time // of the last answer with events
	polls   uint64    // the last event that the reader of a polled one has
}

// put begins to watch. An id that is known is not begun again.
func (s *watches) put(_ http.ResponseWriter, r *http.Request) (any, error) {
	p, err := pathOf(r, "path")
	if err != nil {
		return nil, err
	}
	ignore := r.URL.Query()["ignore"]
	if len(ignore) > farm.MaxIgnored {
		return nil, farm.Invalidf("ignore names %d patterns; at most %d are allowed", len(ignore), farm.MaxIgnored)
	}
	for _, pattern := range ignore {
		if _, err := filepath.Match(pattern, ""); err != nil || len(pattern) > farm.MaxNameBytes {
			return nil, farm.Invalidf("ignore is not a pattern of a name: %q", farm.Shorten(pattern))
		}
	}
	t := &watchedTree{top: p, recursive: r.URL.Query().Get("recursive") == "true", ignore: ignore, limit: MaxWatchedDirs}
	var of info
	if err := unix.Stat(p, &of.st); err != nil {
		return nil, Problem(err, p)
	}
	if !of.isDir() {
		t.top, t.only, t.recursive = filepath.Dir(p), filepath.Base(p), false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := r.PathValue("id")
	if s.byID[id] != nil {
		return s.byID[id].started, nil
	}
	if err := s.room(); err != nil {
		return nil, err
	}
	w := &watch{tree: t, next: 1, polled: r.URL.Query().Get("polled") == "true", more: make(chan struct{}), changed: map[change]uint64{}, left: time.Now()}
	t.tell = w.add
	switch err := t.start(); {
	case errors.Is(err, errTooMany):
		return nil, farm.Errorf(farm.CodeTooLarge, "%s has more than %d directories, or more than the kernel watches for one user: watch a smaller tree, or ignore names", farm.Shorten(p), MaxWatchedDirs)
	case errors.Is(err, unix.EMFILE):
		return nil, farm.Errorf(farm.CodeExhausted, "The kernel has no more instances of inotify for the sandbox's user: its own programs use them all.")
	case err != nil:
		return nil, Problem(err, p)
	}
	if s.byID == nil {
		s.byID = map[string]*watch{}
	}
	s.byID[id] = w
	w.started.Directories = len(t.dirs)
	go t.read()
	return w.started, nil
}

// room makes room for one more watch: one without a reader goes.
func (s *watches) room() error {
	if len(s.byID) < MaxWatches {
		return nil
	}
	oldest := ""
	for id, w := range s.byID {
		if since, idle := w.idle(); idle {
			if before, _ := s.byID[oldest].idle(); oldest == "" || since.Before(before) {
				oldest = id
			}
		}
	}
	if oldest == "" {
		return farm.Errorf(farm.CodeExhausted, "%d directories are watched in the sandbox, the most that it does. End one of them.", MaxWatches)
	}
	s.byID[oldest].end()
	delete(s.byID, oldest)
	return nil
}

// idle reports since when a watch has no reader.
func (w *watch) idle() (since time.Time, idle bool) {
	if w == nil {
		return time.Time{}, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.left, w.readers == 0
}

func (w *watch) end() { _ = w.tree.file.Close() }

// expire ends the watches that were not read for a while. A polled one stays: only one that takes its place ends it (see room).
func (s *watches) expire(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, w := range s.byID {
		if since, idle := w.idle(); idle && !w.polled && now.Sub(since) > watchLife {
			w.end()
			delete(s.byID, id)
		}
	}
}

func (s *watches) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byID)
}

func (s *watches) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.byID {
		w.end()
	}
}

// remove ends a watch.
func (s *watches) remove(_ http.ResponseWriter, r *http.Request) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := r.PathValue("id")
	if w := s.byID[id]; w != nil {
		w.end()
		delete(s.byID, id)
	}
	return struct{}{}, nil
}

// change is what changed in a path.
type change struct {
	path     string
	metadata bool
}

// add keeps an event. A change of a path that changed in the same way in an event that was not sent yet adds nothing.
func (w *watch) add(e agent.FileEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	what := change{e.Path, e.Metadata}
	if e.Kind == agent.FileChanged && w.changed[what] > w.sent {
		return
	}
	e.Seq = w.next
	w.next++
	if len(w.events) >= WindowEvents {
		w.events = slices.Delete(w.events, 0, WindowEvents/4) // not one by one: that would move all of them each time
	}
	w.events = append(w.events, e)
	switch {
	case e.Kind != agent.FileChanged:
		delete(w.changed, change{e.Path, false})
		delete(w.changed, change{e.Path, true})
	case len(w.changed) >= WindowEvents:
		clear(w.changed)
		fallthrough
	default:
		w.changed[what] = e.Seq
	}
	close(w.more)
	w.more = make(chan struct{})
}

// get answers with the events after a number, when there are some, or with those of a polled watch, without a number.
func (s *watches) get(_ http.ResponseWriter, r *http.Request) (any, error) {
	after, err := number(r, "after", 0)
	if err != nil {
		return nil, err
	}
	wait, err := number(r, "wait", 0)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	w := s.byID[r.PathValue("id")]
	if w != nil && w.polled && r.URL.Query().Has("after") { // it keeps where its one reader is, and waits for nothing
		w = nil
	}
	if w != nil {
		w.mu.Lock()
		w.readers++
		w.mu.Unlock()
	}
	s.mu.Unlock()
	if w == nil {
		return nil, farm.NotFoundf("Nothing is watched under this name.")
	}
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.readers--
		w.left = time.Now()
	}()
	ctx, done := context.WithTimeout(r.Context(), min(time.Duration(wait)*time.Millisecond, maxPoll))
	defer done()
	if w.polled {
		return w.poll(), nil
	}
	return w.wait(ctx, uint64(after)), nil //nolint:gosec // not negative
}

// poll returns the next events that the reader of a polled watch has not got.
func (w *watch) poll() agent.FileEvents {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == w.polls+1 {
		return agent.FileEvents{Events: []agent.FileEvent{}}
	}
	out := w.from(w.polls)
	if n := len(out.Events); n > 0 {
		w.polls = out.Events[n-1].Seq
	}
	return out
}

// wait returns the events after a number, at the latest when ctx is done.
func (w *watch) wait(ctx context.Context, after uint64) agent.FileEvents {
	for {
		w.mu.Lock()
		if pause := pollPause - time.Since(w.asked); w.next > after+1 && pause > 0 {
			w.mu.Unlock()
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
			w.mu.Lock()
		}
		if w.next > after+1 || after >= w.next {
			out := w.from(after)
			w.mu.Unlock()
			return out
		}
		more := w.more
		w.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			return agent.FileEvents{Events: []agent.FileEvent{}}
		}
	}
}

// from returns the events after a number. The caller holds mu.
func (w *watch) from(after uint64) agent.FileEvents {
	out := agent.FileEvents{Events: []agent.FileEvent{}}
	if after >= w.next { // of a watch before this one
		out.Lost, after = true, 0
	}
	first := w.next - uint64(len(w.events))
	if after+1 < first {
		out.Lost, after = true, first-1
	}
	begin := int(after + 1 - first) //nolint:gosec // within the window
	end := min(len(w.events), begin+pollEvents)
	out.Events = append(out.Events, w.events[begin:end]...)
	if n := len(out.Events); n > 0 {
		w.sent = max(w.sent, out.Events[n-1].Seq)
		w.asked = time.Now()
	}
	return out
}

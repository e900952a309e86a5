package index

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	smallMax = 64 << 20 // downloads up to this size are finished even without readers
	// lingerMax is how long a larger download continues without readers: installers read the end of a file first, and then
	// the rest.
	lingerMax = 10 * time.Second
)

// join returns the flight of a file and counts the caller as a reader, who must call leave. anew skips the cache.
func (x *Index) join(ctx context.Context, want wanted, anew bool) (*flight, error) {
	id := want.id
	if anew {
		id += " anew"
	}
	x.mu.Lock()
	if f := x.joinExisting(id); f != nil {
		x.mu.Unlock()
		return f, nil
	}
	x.mu.Unlock()
	if r, ok := x.refused.get(id); ok && time.Now().UnixNano() < r.until {
		return nil, r.err
	}
	flightCtx, end, err := x.begin(ctx)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	if f := x.joinExisting(id); f != nil { // another request was faster
		x.mu.Unlock()
		end()
		return f, nil
	}
	f := newFlight(want)
	f.readers = 1
	x.flights[id] = f
	x.mu.Unlock()
	go func() {
		defer end()
		x.run(flightCtx, f, id, anew)
	}()
	return f, nil
}

// joinExisting joins a flight in the table; nil if there is none. The caller holds the mutex.
func (x *Index) joinExisting(id string) *flight {
	f := x.flights[id]
	switch {
	case f == nil:
		return nil
	case f.retained:
		x.count.hits.Add(1)
	default:
		x.count.coalesced.Add(1)
	}
	f.readers++
	return f
}

// leave removes a reader.
func (x *Index) leave(f *flight) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	f.readers--
	f.left = time.Now()
	return x.settle(f)
}

// settle releases the space of a flight when no reader is left. The caller holds the mutex.
func (x *Index) settle(f *flight) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.over {
		return nil
	}
	if f.readers > 0 {
		if f.stored && f.window == nil {
			x.spare[f] = struct{}{}
		}
		return nil
	}
	delete(x.spare, f)
	return x.release(f)
}

// release frees the space of a flight. The caller holds both mutexes.
func (x *Index) release(f *flight) error {
	if f.reserved > 0 {
		x.spoolRoom.Release(f.reserved)
		x.spooled.Add(-f.reserved)
		f.reserved = 0
	}
	if f.window != nil {
		f.window.ring = nil
		f.window.memory.Release()
	}
	if f.spool == nil {
		return nil
	}
	err := f.spool.Close()
	f.spool = nil
	return err
}

// run fetches a file for its readers and stores it in the cache.
func (x *Index) run(ctx context.Context, f *flight, id string, anew bool) {
	if f.want.key != "" && !anew {
		if size := x.cache.size(ctx, f.want.key); size > 0 && (f.want.size == 0 || f.want.size == size) {
			f.size, f.cached = size, true
			x.known.put(f.want.key, f.size, 1)
			x.used(ctx, f.want.key)
			x.remove(f, id)
			close(f.ready)
			return
		}
	}
	err := x.download(ctx, f)
	if err == nil {
		x.store(ctx, f, id)
		return
	}
	if cause := context.Cause(ctx); cause != nil {
		err = farm.Wrap(cause, farm.CodeUnavailable, "The download of %s was aborted.", f.want.name)
	}
	if f.window != nil {
		f.window.settleStream(err)
	}
	f.change(func() { f.err = err })
	if errors.Is(err, errMismatch) {
		x.refused.put(id, refusal{err: err, until: time.Now().Add(time.Minute).UnixNano()}, 1)
	}
	x.remove(f, id)
	if !f.isReady() {
		close(f.ready)
	}
	if !errors.Is(err, errAbandoned) {
		x.warn(ctx, "package was not downloaded", "file", f.want.name, "error", err)
	}
}

// store puts a downloaded file into the cache. Without a cache it is retained for a while.
func (x *Index) store(ctx context.Context, f *flight, id string) {
	// The download is complete: Close waits for this, but not forever.
	putCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(closeTimeout, cancel) })
	defer stop()
	if f.window != nil {
		if !f.window.settleStream(nil) {
			x.remove(f, id)                            // first: a reader that finds it lost may begin anew
			f.change(func() { f.err = lostWindow(f) }) // readers within the window are not affected
			return
		}
		x.known.put(f.want.key, f.size, 1)
		x.added(putCtx, f.size)
		f.change(func() { f.stored = true })
		x.remove(f, id)
		return
	}
	if f.want.key != "" && x.cache.put(putCtx, f.want.key, io.NewSectionReader(f.spool, 0, f.size), f.size) {
		x.known.put(f.want.key, f.size, 1)
		x.added(putCtx, f.size)
		f.change(func() { f.stored = true })
		x.remove(f, id)
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.retain(f, id)
}

// remove removes a flight from the table.
func (x *Index) remove(f *flight, id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removeLocked(f, id)
}

// removeLocked is remove for callers that hold the mutex.
func (x *Index) removeLocked(f *flight, id string) {
	if x.flights[id] == f {
		delete(x.flights, id)
	}
	f.over = true
	_ = x.settle(f) // closing an unlinked file loses nothing
}

// errLost means that a file has passed and the cache did not store it.
var errLost = errors.New("the file is not stored")

// lostWindow is the error of a reader that fell behind the window of a file that the cache did not store.
func lostWindow(f *flight) error {
	return farm.Wrap(errLost, farm.CodeUnavailable, "The file %s was not cached, and its beginning is gone. Try again.", f.want.name)
}

// flight is one file that is being fetched: looked up in the cache, or else downloaded to a spool file that all readers read while it
// grows. The spool file is unlinked, so it does not outlive the process.
type flight struct {
	want  wanted
	ready chan struct{} // closed when source and size are known, or the fetch has failed

	// Written before ready is closed.
	cached bool  // the cache has it: read it there
	size   int64 // of the whole

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when one of the following changes
	spool   *os.File
	window  *window // replaces the spool file of a large file; set before ready is closed
	written int64
	whole   bool // complete, and its hash is right
	stored  bool // the cache has it: read it there
	err     error

	// Guarded by the Index's mutex.
	readers  int
	left     time.Time // when the last reader left
	over     bool      // no longer in the table of flights
	reserved int64     // space reserved for it
	retained bool      // complete, and kept for later requests since no cache has it
}

func newFlight(want wanted) *flight {
	return &flight{want: want, ready: make(chan struct{}), changed: make(chan struct{}), left: time.Now()}
}

// isReady reports whether ready is closed.
func (f *flight) isReady() bool {
	select {
	case <-f.ready:
		return true
	default:
		return false
	}
}

// change modifies the state that readers wait for, and wakes them.
func (f *flight) change(set func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set()
	close(f.changed)
	f.changed = make(chan struct{})
}

// readAt reads from off, and waits for data. The last byte is available only if the hash is right.
func (f *flight) readAt(ctx context.Context, p []byte, off int64) (int, error) {
	for {
		f.mu.Lock()
		limit, err, whole, changed, spool := f.written, f.err, f.whole, f.changed, f.spool
		if !whole {
			limit--
		}
		if f.window != nil && off < limit && off >= f.written-windowSize {
			n := f.window.copyOut(p[:min(int64(len(p)), limit-off)], off)
			f.mu.Unlock()
			return n, nil
		}
		f.mu.Unlock()
		switch {
		case f.window != nil && off < limit:
			return 0, errPassed
		case off < limit && spool == nil:
			return 0, errPassed
		case off < limit:
			n, err := spool.ReadAt(p[:min(int64(len(p)), limit-off)], off)
			if n > 0 || err == nil {
				return n, nil
			}
			if errors.Is(err, os.ErrClosed) { // its space was needed, and the cache has it
				continue
			}
			return 0, fmt.Errorf("read spool file: %w", err)
		case whole:
			return 0, io.EOF
		case err != nil:
			return 0, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// newSpool makes an unlinked file for a download.
func newSpool(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "sandfarm-index-*")
	if err != nil {
		return nil, fmt.Errorf("make spool file: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, fmt.Errorf("hide spool file: %w", errors.Join(err, f.Close()))
	}
	return f, nil
}

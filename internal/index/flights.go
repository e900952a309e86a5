package index

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	smallMax = 64 << 20 // downloads up to this size that linger are finished
	// lingerMax is how long larger ones linger: installers read the end of a file first, and then the rest.
	lingerMax = 10 * time.Second
)

// join returns the flight of a file and counts the caller as a reader, who must call leave; nil, with the size of the file, if the cache has it. anew
// skips the cache.
func (x *Index) join(ctx context.Context, want wanted, anew bool) (*flight, int64, error) {
	id, cached := want.id, want.key != "" && !anew
	if anew {
		id += " anew"
	}
	x.mu.Lock()
	f := x.joinExisting(id)
	x.mu.Unlock()
	if f != nil {
		return f, 0, nil
	}
	if r, ok := x.refused.get(id); ok && time.Now().UnixNano() < r.until {
		return nil, 0, r.err
	}
	if cached {
		if size := x.cache.size(ctx, want.key); size > 0 && (want.size == 0 || want.size == size) {
			x.known.put(want.key, size, 1)
			x.used(ctx, want.key)
			x.count.hits.Add(1)
			return nil, size, nil
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if f := x.joinExisting(id); f != nil { // another request was faster
		return f, 0, nil
	}
	if size, ok := x.known.get(want.key); ok && cached && x.cache.use() { // and has already ended
		x.count.hits.Add(1)
		return nil, size, nil
	}
	f = newFlight(want, id)
	f.enter()
	x.flights[id] = f
	return f, 0, nil
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
	f.enter()
	return f
}

// leave removes a reader.
func (x *Index) leave(f *flight) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.exit(&f.work) {
		x.forget(f)
	}
	return x.tidy(f)
}

// forget removes a flight from the table. The caller holds the mutex.
func (x *Index) forget(f *flight) {
	if x.flights[f.id] == f {
		delete(x.flights, f.id)
	}
}

// tidy releases the space of a flight that is over when no reader is left. The caller holds the mutex.
func (x *Index) tidy(f *flight) error {
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
func (x *Index) run(ctx context.Context, f *flight, place *budget.Place) {
	err := x.download(ctx, f)
	place.Leave()
	if err == nil {
		x.store(ctx, f)
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
		x.refused.put(f.id, refusal{err: err, until: time.Now().Add(time.Minute).UnixNano()}, 1)
	}
	x.remove(f)
	if !f.isReady() {
		close(f.ready)
	}
	if !errors.Is(err, errAbandoned) {
		x.warn(ctx, "package was not downloaded", "file", f.want.name, "error", err)
	}
}

// store puts a downloaded file into the cache. Without a cache, and when many files are being stored, it is retained for a while.
func (x *Index) store(ctx context.Context, f *flight) {
	// The download is complete: Close waits for this, but not forever.
	putCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(closeTimeout, cancel) })
	defer stop()
	if f.window != nil {
		if !f.window.settleStream(nil) {
			x.remove(f)                                // first: a reader that finds it lost may begin anew
			f.change(func() { f.err = lostWindow(f) }) // readers within the window are not affected
			return
		}
		x.known.put(f.want.key, f.size, 1)
		x.added(putCtx, f.size)
		f.change(func() { f.stored = true })
		x.remove(f)
		return
	}
	if f.want.key != "" && x.putSpool(putCtx, f) {
		x.known.put(f.want.key, f.size, 1)
		x.added(putCtx, f.size)
		f.change(func() { f.stored = true })
		x.remove(f)
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.retain(f)
}

// putSpool puts a spool file into the cache, unless as many are being put already as may be.
func (x *Index) putSpool(ctx context.Context, f *flight) bool {
	place := tryAcquire(tenantOf(ctx), x.storeSlots)
	if place == nil {
		return false
	}
	defer place.Leave()
	return x.cache.put(ctx, f.want.key, io.NewSectionReader(f.spool, 0, f.size), f.size)
}

// remove removes a flight from the table: it is over.
func (x *Index) remove(f *flight) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removeLocked(f)
}

// removeLocked is remove for callers that hold the mutex.
func (x *Index) removeLocked(f *flight) {
	x.forget(f)
	f.over = true
	_ = x.tidy(f) // closing an unlinked file loses nothing
}

// errLost means that a file has passed and the cache did not store it.
var errLost = errors.New("the file is not stored")

// lostWindow is the error of a reader that fell behind the window of a file that the cache did not store.
func lostWindow(f *flight) error {
	return farm.Wrap(errLost, farm.CodeUnavailable, "The file %s was not cached, and its beginning is gone. Try again.", f.want.name)
}

// flight is one file that is being downloaded to a spool file that all readers read while it grows. The spool file is unlinked, so it does not
// outlive the process.
type flight struct {
	work
	want  wanted
	id    string        // in the table
	ready chan struct{} // closed when the size is known, or the download has failed

	size int64 // of the whole; written before ready is closed

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when one of the following changes
	spool   *os.File
	window  *window // replaces the spool file of a large file; set before ready is closed
	written int64
	whole   bool // complete, and its hash is right
	stored  bool // the cache has it: read it there
	err     error

	// Guarded by the Index's mutex.
	over     bool  // no longer in the table of flights
	reserved int64 // space reserved for it
	retained bool  // complete, and kept for later requests since no cache has it
}

func newFlight(want wanted, id string) *flight {
	return &flight{work: newWork(), want: want, id: id, ready: make(chan struct{}), changed: make(chan struct{})}
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

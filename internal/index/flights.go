package index

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	smallMax = 64 << 20 // files up to this size are finished when nobody waits for them any more
	// lingerMax is how long a larger download goes on without a reader: installers read the end of a file first and
	// come back for the rest.
	lingerMax = 10 * time.Second
)

// join gives the flight of a file, and counts the caller as a reader: leave must follow. anew skips the cache.
func (x *Index) join(ctx context.Context, want wanted, anew bool) (*flight, error) {
	id := want.id
	if anew {
		id += " anew"
	}
	x.mu.Lock()
	if f := x.board(id); f != nil {
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
	if f := x.board(id); f != nil { // another one was faster
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
		x.fly(flightCtx, f, id, anew)
	}()
	return f, nil
}

// board joins a flight that is in the table; nil when there is none. The mutex is held.
func (x *Index) board(id string) *flight {
	f := x.flights[id]
	switch {
	case f == nil:
		return nil
	case f.parked:
		x.count.hits.Add(1)
	default:
		x.count.coalesced.Add(1)
	}
	f.readers++
	return f
}

// leave takes a reader off.
func (x *Index) leave(f *flight) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	f.readers--
	f.left = time.Now()
	return x.settle(f)
}

// settle closes the spool file when nobody can read it any more. The mutex is held.
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

// release gives the room of a flight back. Both mutexes are held.
func (x *Index) release(f *flight) error {
	if f.reserved > 0 {
		x.spoolRoom.Release(f.reserved)
		x.spooled.Add(-f.reserved)
		f.reserved = 0
	}
	if f.window != nil {
		f.window.ring = nil
	}
	if f.spool == nil {
		return nil
	}
	err := f.spool.Close()
	f.spool = nil
	return err
}

// fly brings a file to its readers and into the cache.
func (x *Index) fly(ctx context.Context, f *flight, id string, anew bool) {
	if f.want.key != "" && !anew {
		if size := x.cache.size(ctx, f.want.key); size > 0 && (f.want.size == 0 || f.want.size == size) {
			f.size, f.cached = size, true
			x.known.put(f.want.key, f.size, 1)
			x.land(f, id)
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
		err = farm.Wrap(cause, farm.CodeUnavailable, "The download of %s was ended.", f.want.name)
	}
	if f.window != nil {
		f.window.settleStream(err)
	}
	f.change(func() { f.err = err })
	if errors.Is(err, errMismatch) {
		x.refused.put(id, refusal{err: err, until: time.Now().Add(time.Minute).UnixNano()}, 1)
	}
	x.land(f, id)
	if !f.isReady() {
		close(f.ready)
	}
	if !errors.Is(err, errAbandoned) {
		x.warn(ctx, "package was not downloaded", "file", f.want.name, "error", err)
	}
}

// store puts a file that has arrived into the cache. Without one it is kept at hand for a while.
func (x *Index) store(ctx context.Context, f *flight, id string) {
	// The bytes are here: the end of the index waits for them, but not for ever.
	putCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(closeTimeout, cancel) })
	defer stop()
	if f.window != nil {
		if f.window.settleStream(nil) {
			x.known.put(f.want.key, f.size, 1)
			x.added(putCtx, f.size)
			f.change(func() { f.stored = true })
		} else {
			f.change(func() { f.err = lostWindow(f) }) // readers within the window do not see it
		}
		x.land(f, id)
		return
	}
	if f.want.key != "" && x.cache.put(putCtx, f.want.key, io.NewSectionReader(f.spool, 0, f.size), f.size) {
		x.known.put(f.want.key, f.size, 1)
		x.added(putCtx, f.size)
		f.change(func() { f.stored = true })
		x.land(f, id)
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.park(f, id)
}

// land takes a flight out of the table.
func (x *Index) land(f *flight, id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(f, id)
}

// drop is land with the mutex held.
func (x *Index) drop(f *flight, id string) {
	if x.flights[id] == f {
		delete(x.flights, id)
	}
	f.over = true
	_ = x.settle(f) // a spool file without a name: closing it loses nothing
}

// lostWindow is what a reader gets that is behind the window of a file that the cache did not take.
func lostWindow(f *flight) error {
	return farm.Errorf(farm.CodeUnavailable, "The file %s is no longer at hand, since the cache did not take it. Try again.", f.want.name)
}

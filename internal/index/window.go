package index

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// streamOver is the size above which a file goes through a window in memory into the cache, and not through a spool file.
	streamOver = 32 << 20
	// windowSize is how much of such a file is in memory.
	windowSize = 8 << 20
	// stallTimeout is how long the download of a large file waits for its only reader to progress, or for a first reader.
	stallTimeout = 10 * time.Second
	// slowTimeout is how long it waits in total for one of several readers, and for all readers of a tenant while another tenant reads.
	slowTimeout = 5 * time.Second
	// loneTimeout is how long it waits for an only reader while other downloads wait for it.
	loneTimeout = 2 * time.Minute
	paceTick    = 100 * time.Millisecond
	// cacheTimeouts is how many times the timeout of reads the cache may take nothing: it uploads a part before it reads the next.
	cacheTimeouts = 4
)

// errPassed means that an offset is no longer in the window or the spool file.
var errPassed = errors.New("the window has passed")

// errNotStored is the read error of the cache if a download fails.
var errNotStored = errors.New("the file did not arrive whole")

// errCacheStalled is the error of a cache that takes no byte for too long.
var errCacheStalled = errors.New("the cache took nothing for too long")

// window is the part of a large file that is in memory while the file is streamed into the cache. The download is never further ahead
// of its slowest reader, unless that reader delays the others. Guarded by its flight's mutex.
type window struct {
	ring    []byte
	memory  *budget.Hold // of the ring
	readers map[*content]*follower
	reading map[string]int           // readers by tenant, with those that do not follow
	waited  map[string]time.Duration // how long the download waited for a tenant's followers while another tenant read
	begun   time.Time                // when it last had room without a reader
	moved   chan struct{}            // receives when a reader progressed or left
	put     *io.PipeWriter
	stored  chan bool     // whether the cache stored the file
	storing bool          // the cache takes the file, as far as is known
	giveUp  func()        // ends the call of the cache
	timeout time.Duration // how long the cache may take nothing
	kept    []byte        // the last byte, until the hash is verified
}

// follower is a reader that follows the window from the start of the file.
type follower struct {
	off    int64
	moved  time.Time     // when it last progressed, or the download did not wait for it
	waited time.Duration // how long the download waited for it
	held   time.Duration // how long it did so while other downloads waited for a slot
}

func newWindow() *window {
	return &window{
		ring: make([]byte, windowSize), readers: map[*content]*follower{}, reading: map[string]int{}, waited: map[string]time.Duration{},
		begun: time.Now(), moved: make(chan struct{}, 1), stored: make(chan bool, 1),
	}
}

// copyIn puts bytes into the ring at an offset of the file.
func (w *window) copyIn(p []byte, off int64) {
	for len(p) > 0 {
		n := copy(w.ring[off%windowSize:], p)
		p, off = p[n:], off+int64(n)
	}
}

// copyOut takes bytes of the ring, as many as lie in one piece.
func (w *window) copyOut(p []byte, off int64) int { return copy(p, w.ring[off%windowSize:]) }

// signal wakes the download.
func (w *window) signal() {
	select {
	case w.moved <- struct{}{}:
	default:
	}
}

// follow records the position of a reader. A reader behind the window is not waited for.
func (f *flight) follow(c *content, off int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if off < f.written-windowSize {
		delete(f.window.readers, c)
	} else if r := f.window.readers[c]; r == nil {
		f.window.readers[c] = &follower{off: off, moved: time.Now()}
	} else if off > r.off {
		r.off, r.moved = off, time.Now()
	}
	f.window.signal()
}

// enterWindow counts a reader, who must call leaveWindow.
func (f *flight) enterWindow(c *content) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.window.reading[tenantOf(c.ctx)]++
}

// leaveWindow removes a reader.
func (f *flight) leaveWindow(c *content) {
	f.mu.Lock()
	defer f.mu.Unlock()
	tenant := tenantOf(c.ctx)
	if f.window.reading[tenant]--; f.window.reading[tenant] == 0 {
		delete(f.window.reading, tenant)
	}
	delete(f.window.readers, c)
	f.window.signal()
}

// pace waits until the slowest reader leaves room for n more bytes in the window.
func (x *Index) pace(ctx context.Context, f *flight, n int, size int64) error {
	tick := time.NewTicker(paceTick)
	defer tick.Stop()
	last := time.Now()
	for f.full(n, time.Since(last), x.slotless.Load() > 0) {
		last = time.Now()
		select {
		case <-f.window.moved:
		case <-tick.C:
			if x.abandoned(f, size) {
				return errAbandoned
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// full reports whether n more bytes would overtake a reader, and gives up on readers that take too long. waited is the time since the
// last call; others says that other downloads wait for this one to end.
func (f *flight) full(n int, waited time.Duration, others bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.written + int64(n) - windowSize
	if next <= 0 {
		f.window.begun = time.Now()
	}
	if len(f.window.readers) == 0 {
		return next > 0 && time.Since(f.window.begun) < stallTimeout // installers read the end of a file first, and then the rest
	}
	full, shared := false, len(f.window.reading) > 1
	var counted []string // tenants
	for c, r := range f.window.readers {
		if r.off >= next {
			r.moved = time.Now() // the download does not wait for it, but may have waited itself for upstream or for the cache
			continue
		}
		if r.waited += waited; others {
			r.held += waited
		}
		tenant := tenantOf(c.ctx)
		if shared && !slices.Contains(counted, tenant) {
			counted = append(counted, tenant)
			f.window.waited[tenant] += waited
		}
		// A reader that is given up continues in the cache. If the file is not stored, it could not continue at all.
		slow := len(f.window.readers) > 1 && r.waited > slowTimeout || shared && f.window.waited[tenant] > slowTimeout ||
			f.window.storing && r.held > loneTimeout
		if slow || time.Since(r.moved) > stallTimeout {
			delete(f.window.readers, c)
			continue
		}
		full = true
	}
	return full
}

// stream begins to put a file into the cache while it arrives. Until settleStream the cache does not have it.
func (x *Index) stream(ctx context.Context, f *flight) {
	r, w := io.Pipe()
	f.window = newWindow()
	f.window.put, f.window.timeout = w, cacheTimeouts*x.cfg.Timeout
	f.window.storing = f.want.key != "" && x.cache.use()
	putCtx, giveUp := context.WithCancelCause(ctx)
	f.window.giveUp = func() {
		giveUp(errCacheStalled)
		_ = w.CloseWithError(errors.Join(errNotStored, errCacheStalled)) // never fails
	}
	storing := f.window.storing
	go func() {
		defer giveUp(nil)
		ok := storing && x.cache.putStream(putCtx, f.want.key, r, f.size)
		if errors.Is(context.Cause(putCtx), errCacheStalled) {
			x.cache.failed(ctx, "put", errCacheStalled)
		}
		if !ok {
			f.change(func() { f.window.storing = false })
		}
		_ = r.CloseWithError(errors.New("the cache does not take the file")) // never fails
		f.window.stored <- ok
	}()
}

// feed passes bytes to the cache, except for the last one: with it the cache would have a file whose hash is not verified. Errors
// of the cache do not end the download, and one that takes nothing for too long is given up.
func (w *window) feed(p []byte) {
	if len(p) == 0 {
		return
	}
	stalled := time.AfterFunc(w.timeout, w.giveUp)
	defer stalled.Stop()
	_, _ = w.put.Write(w.kept)
	_, _ = w.put.Write(p[:len(p)-1])
	w.kept = append(w.kept[:0], p[len(p)-1])
}

// settleStream ends the stream to the cache and reports whether it stored the file. err is the error of the download. A cache that does not come to its
// end for too long is given up.
func (w *window) settleStream(err error) bool {
	stalled := time.AfterFunc(w.timeout, w.giveUp)
	defer stalled.Stop()
	if err != nil {
		_ = w.put.CloseWithError(errors.Join(errNotStored, err)) // never fails
	} else {
		_, _ = w.put.Write(w.kept)
		_ = w.put.Close()
	}
	return <-w.stored
}

// reserve reserves space for a download. It discards retained files if it must, and otherwise waits.
func (x *Index) reserve(ctx context.Context, f *flight, n int64) error {
	if n > x.spoolMax {
		return farm.Errorf(farm.CodeUnavailable, "There is no room on this worker's disk for %s: it has %d MiB, and %d are for downloads (index.spool_mb).",
			f.want.name, n>>20, x.spoolMax>>20)
	}
	if !x.tryReserve(n) {
		ctx, cancel := context.WithTimeout(ctx, x.cfg.Timeout)
		defer cancel()
		if err := x.spoolRoom.Acquire(ctx, n); err != nil {
			return noRoom(f)
		}
	}
	x.spooled.Add(n)
	f.reserved += n
	return nil
}

// grow reserves more space for a file of unknown size. It does not wait, since other downloads might wait for the same space.
func (x *Index) grow(f *flight, n int64) error {
	if f.written+n <= f.reserved {
		return nil
	}
	n = max(n, 1<<20)
	if !x.tryReserve(n) {
		return noRoom(f)
	}
	x.spooled.Add(n)
	f.reserved += n
	return nil
}

func (x *Index) tryReserve(n int64) bool {
	if x.spoolRoom.TryAcquire(n) {
		return true
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for len(x.retained) > 0 {
		x.discard(x.retained[0])
		if x.spoolRoom.TryAcquire(n) {
			return true
		}
	}
	for f := range x.spare {
		delete(x.spare, f)
		f.mu.Lock()
		_ = x.release(f) // a spool file without a name: closing it loses nothing
		f.mu.Unlock()
		if x.spoolRoom.TryAcquire(n) {
			return true
		}
	}
	return false
}

func noRoom(f *flight) error {
	return farm.Errorf(farm.CodeUnavailable, "Too many packages are being downloaded at the moment for %s as well. Try again later.", f.want.name)
}

// isStored reports whether the cache has the file.
func (f *flight) isStored() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stored
}

// awaitStored waits until the cache has the file.
func (f *flight) awaitStored(ctx context.Context) error {
	for {
		f.mu.Lock()
		stored, err, changed := f.stored, f.err, f.changed
		f.mu.Unlock()
		if stored || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

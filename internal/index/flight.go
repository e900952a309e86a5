package index

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// flight is one file on its way: looked for in the cache, else downloaded to a spool file that all its readers read from
// while it grows. The spool file has no name, so nothing of it outlives the process.
type flight struct {
	want  wanted
	ready chan struct{} // closed when it is known where the file comes from and how large it is, or that it does not come

	// Written before ready is closed.
	cached bool  // it is in the cache: read it there
	size   int64 // of the whole

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when something below changes
	spool   *os.File
	window  *window // in place of the spool file for a large one; set before ready is closed
	written int64
	whole   bool // all is there, and its hash is right
	stored  bool // the cache has it: read it there
	err     error

	// Guarded by the Index's mutex.
	readers  int
	left     time.Time // when the last reader went
	over     bool      // no longer in the table of flights
	reserved int64     // room taken for it
	parked   bool      // whole, and kept for later requests since no cache holds it
}

func newFlight(want wanted) *flight {
	return &flight{want: want, ready: make(chan struct{}), changed: make(chan struct{}), left: time.Now()}
}

// isReady tells whether ready is closed.
func (f *flight) isReady() bool {
	select {
	case <-f.ready:
		return true
	default:
		return false
	}
}

// change sets what readers wait for, and wakes them.
func (f *flight) change(set func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set()
	close(f.changed)
	f.changed = make(chan struct{})
}

// readAt reads from off, and waits until there is something. The last byte is there only when the hash is right.
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
			if errors.Is(err, os.ErrClosed) { // it was stored meanwhile
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

// newSpool makes the file that a download lies in.
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

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

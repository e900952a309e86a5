package index

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	pagesMemory  = 32 << 20 // pages in memory, in bytes
	absentKept   = 4096     // projects that upstream does not have
	knownKept    = 1 << 16  // files known to be in the cache
	pagesAtOnce  = 32       // pages that are read from upstream at once, and as many from the cache
	largeAtOnce  = 4        // of them, pages over pageLarge: each may need four times its size in memory, and half a KiB a file
	filesAtOnce  = 64       // files that are read from upstream at once
	partsAtOnce  = 32       // ranges from the middle of files, for callers that cannot wait for the download
	absentFor    = time.Minute
	closeTimeout = 10 * time.Second // for downloaded files that are being put into the cache
)

// errClosed is the cause of requests that end because the index is closed.
var errClosed = errors.New("the package index is closed")

// Index serves packages. Its methods may be called concurrently.
type Index struct {
	cfg       Config
	log       *slog.Logger
	count     counters
	pypi, npm *upstream
	cache     *guard

	pages      *lru[*page]
	keeping    sync.Mutex      // pages are written to the cache one at a time
	absent     *lru[time.Time] // until when a project is not asked for again
	staleUntil *lru[time.Time] // until when an old page is served without asking again
	known      *lru[int64]     // sizes of files in the cache
	marked     *lru[time.Time] // when the use of a file in the cache was recorded
	refused    *lru[refusal]
	lookups    singleflight.Group // pages in the cache
	refreshes  singleflight.Group // pages upstream
	pageSlots  *semaphore.Weighted
	readSlots  *semaphore.Weighted // pages from the cache: a slow upstream does not hold these up
	bigSlots   *semaphore.Weighted // pages over pageLarge, wherever from
	fileSlots  *semaphore.Weighted
	slotless   atomic.Int64        // downloads that wait for one of fileSlots
	partSlots  *semaphore.Weighted // ranges of files that are being downloaded
	trimming   sync.Mutex
	spoolMax   int64               // space for downloads in bytes, on disk and in windows
	spoolRoom  *semaphore.Weighted // the free part of it
	spooled    atomic.Int64        // the reserved part of it
	paced      pace                // of warnings

	mu       sync.Mutex
	flights  map[string]*flight
	retained []*retained
	spare    map[*flight]struct{} // in the cache, with spool files that are still read: the readers can continue in the cache
	sharing  map[*page]*shared    // large pages that are being sent
	grown    int64                // bytes put into the cache since the last trim
	closed   bool
	running  map[*context.CancelCauseFunc]struct{}
	wg       sync.WaitGroup
}

var _ http.Handler = (*Index)(nil)

// New makes an Index. It calls neither upstream nor the cache.
func New(cfg Config) (*Index, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure package index: %w", err)
	}
	x := &Index{
		cfg: cfg, log: cfg.Logger,
		pages: newLRU[*page](pagesMemory), absent: newLRU[time.Time](absentKept), staleUntil: newLRU[time.Time](absentKept),
		known: newLRU[int64](knownKept), marked: newLRU[time.Time](knownKept), refused: newLRU[refusal](absentKept),
		pageSlots: semaphore.NewWeighted(pagesAtOnce), readSlots: semaphore.NewWeighted(pagesAtOnce),
		bigSlots: semaphore.NewWeighted(largeAtOnce), fileSlots: semaphore.NewWeighted(filesAtOnce),
		partSlots: semaphore.NewWeighted(partsAtOnce), sharing: map[*page]*shared{},
		flights: map[string]*flight{}, spare: map[*flight]struct{}{}, running: map[*context.CancelCauseFunc]struct{}{},
	}
	x.spoolMax = cfg.spoolBytes()
	x.spoolRoom = semaphore.NewWeighted(x.spoolMax)
	x.cache = &guard{cache: cfg.Cache, timeout: cfg.Timeout, log: cfg.Logger, count: &x.count}
	var err error
	if x.pypi, err = newUpstream("package index", cfg.PyPIURL, cfg, &x.count); err != nil {
		return nil, fmt.Errorf("configure package index: %w", err)
	}
	if x.npm, err = newUpstream("npm registry", cfg.NpmURL, cfg, &x.count); err != nil {
		return nil, fmt.Errorf("configure package index: %w", err)
	}
	return x, nil
}

// begin returns a context for work that outlives its request. Close cancels it and waits until end is called.
func (x *Index) begin(ctx context.Context) (_ context.Context, end func(), err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return nil, nil, farm.Wrap(errClosed, farm.CodeUnavailable, "The package index is being closed.")
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	key := &cancel
	x.running[key] = struct{}{}
	x.wg.Add(1)
	return ctx, func() {
		cancel(context.Canceled)
		x.mu.Lock()
		delete(x.running, key)
		x.mu.Unlock()
		x.wg.Done()
	}, nil
}

// Close aborts downloads and waits for them. Complete files are still put into the cache. Later requests are rejected.
func (x *Index) Close() error {
	x.mu.Lock()
	x.closed = true
	for cancel := range x.running {
		(*cancel)(errClosed)
	}
	x.mu.Unlock()
	x.wg.Wait()
	x.mu.Lock()
	for len(x.retained) > 0 {
		x.discard(x.retained[0])
	}
	x.mu.Unlock()
	if x.cfg.Client == nil {
		x.pypi.client.CloseIdleConnections()
		x.npm.client.CloseIdleConnections()
	}
	return nil
}

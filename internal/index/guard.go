package index

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	cacheOpenTimeout = 5 * time.Second  // an object store on the same network answers within some milliseconds
	cachePutTimeout  = 30 * time.Minute // some GiB over a slow line
	cacheRest        = 5 * time.Second  // how long a failed cache is not used: waiting for it would delay every request
	cacheWarnEvery   = time.Minute
)

// guard stops using a cache that fails, for a while, and logs one warning a minute.
type guard struct {
	cache   Cache // nil: there is none
	timeout time.Duration
	log     *slog.Logger
	count   *counters

	mu     sync.Mutex
	rest   time.Time // until when it is not used
	warned time.Time
}

// use reports whether the cache should be called.
func (g *guard) use() bool {
	if g.cache == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Now().After(g.rest)
}

// failed records an error of the cache, unless the caller has left or the value does not exist.
func (g *guard) failed(ctx context.Context, doing string, err error) {
	if err == nil || ctx.Err() != nil || farm.CodeOf(err) == farm.CodeNotFound {
		return
	}
	g.count.cacheErrors.Add(1)
	g.mu.Lock()
	now := time.Now()
	g.rest = now.Add(cacheRest)
	warn := now.Sub(g.warned) >= cacheWarnEvery
	if warn {
		g.warned = now
	}
	g.mu.Unlock()
	if warn {
		g.log.WarnContext(ctx, "cache of packages does not work; they are fetched from upstream", "doing", doing, "error", err)
	}
}

// get opens a value; false if there is none, or no cache.
func (g *guard) get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, int64, bool) {
	if !g.use() {
		return nil, 0, false
	}
	callCtx, watch := newStall(ctx, min(cacheOpenTimeout, g.timeout))
	r, size, err := g.cache.Get(callCtx, key, offset, length)
	if err != nil {
		watch.end()
		g.failed(ctx, "get", err)
		return nil, 0, false
	}
	watch.pause()
	watch.every = g.timeout
	return &watched{ReadCloser: r, ctx: callCtx, watch: watch, count: func(int) {}}, size, true
}

// size returns the size of a value; 0 if there is none.
func (g *guard) size(ctx context.Context, key string) int64 {
	r, size, ok := g.get(ctx, key, 0, 1)
	if !ok {
		return 0
	}
	r.Close()
	return size
}

// remove removes a value that is wrong.
func (g *guard) remove(ctx context.Context, key string) {
	callCtx, cancel := context.WithTimeout(ctx, min(cacheOpenTimeout, g.timeout))
	defer cancel()
	g.failed(ctx, "delete", g.cache.Delete(callCtx, key))
}

// put stores a value and reports whether that worked.
func (g *guard) put(ctx context.Context, key string, r io.Reader, size int64) bool {
	if !g.use() {
		return false
	}
	callCtx, cancel := context.WithTimeout(ctx, cachePutTimeout)
	defer cancel()
	return g.putStream(callCtx, key, r, size)
}

// putStream stores a value that is still being downloaded. An error of the reader is not counted as one of the cache.
func (g *guard) putStream(callCtx context.Context, key string, r io.Reader, size int64) bool {
	if err := g.cache.Put(callCtx, key, r, size); err != nil {
		if !errors.Is(err, errNotStored) {
			g.failed(callCtx, "put", err)
		}
		return false
	}
	return true
}

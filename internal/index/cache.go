package index

import (
	"container/list"
	"context"
	"crypto/sha1" //nolint:gosec // old npm packages have no better hash; it guards against damage
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Cache stores what an Index has read. All keys begin with "index/" and are separated by slashes. Its methods are called
// concurrently, each with its own deadline. An error other than CodeNotFound means that the cache is down: the index then works
// without it for a while.
type Cache interface {
	// Get opens a value from offset; length 0 means to the end. It also returns the size of the whole value. CodeNotFound
	// if there is none. The reader lives as long as ctx.
	Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, int64, error)
	// Put stores size bytes of r, completely or not at all. An error of r must abort it. An existing value is replaced.
	Put(ctx context.Context, key string, r io.Reader, size int64) error
	// Delete removes values; a missing one counts as removed.
	Delete(ctx context.Context, keys ...string) error
	// List calls fn for each value whose key begins with prefix, until fn fails.
	List(ctx context.Context, prefix string, fn func(key string, size int64, modified time.Time) error) error
}

// lru keeps values up to a total cost and evicts the least recently used. A value that alone costs more is not kept.
type lru[V any] struct {
	mu    sync.Mutex
	room  int64
	used  int64
	order *list.List // of *entry[V], the last used first
	byKey map[string]*list.Element
}

type entry[V any] struct {
	key   string
	value V
	cost  int64
}

func newLRU[V any](room int64) *lru[V] {
	return &lru[V]{room: room, order: list.New(), byKey: map[string]*list.Element{}}
}

func (l *lru[V]) get(key string) (V, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.byKey[key]
	if !ok {
		var zero V
		return zero, false
	}
	l.order.MoveToFront(e)
	return e.Value.(*entry[V]).value, true
}

func (l *lru[V]) put(key string, value V, cost int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(key)
	if cost > l.room {
		return
	}
	l.byKey[key] = l.order.PushFront(&entry[V]{key: key, value: value, cost: cost})
	for l.used += cost; l.used > l.room; {
		l.drop(l.order.Back().Value.(*entry[V]).key)
	}
}

func (l *lru[V]) remove(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(key)
}

func (l *lru[V]) drop(key string) {
	if e, ok := l.byKey[key]; ok {
		l.used -= e.Value.(*entry[V]).cost
		l.order.Remove(e)
		delete(l.byKey, key)
	}
}

// Dir is a Cache in a directory of this host, for image builds: they run before there is an object store. Several
// processes may share it.
type Dir struct{ path string }

var _ Cache = (*Dir)(nil)

// NewDir makes a Cache in a directory, which is created by the first Put.
func NewDir(path string) *Dir { return &Dir{path: path} }

// file returns the path of a key. Keys are ours, but a mistake must not escape the directory.
func (d *Dir) file(key string) (string, error) {
	if !filepath.IsLocal(key) || strings.HasSuffix(key, tempSuffix) {
		return "", fmt.Errorf("find %q in the package cache: it is not a key", key)
	}
	return filepath.Join(d.path, filepath.FromSlash(key)), nil
}

// tempSuffix ends the names of files that are being written.
const tempSuffix = ".part"

// Get opens a value.
func (d *Dir) Get(_ context.Context, key string, offset, length int64) (io.ReadCloser, int64, error) {
	path, err := d.file(key)
	if err != nil {
		return nil, 0, err
	}
	f, err := os.Open(path) //nolint:gosec // a name of ours below the cache's directory
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, farm.NotFoundf("%s is not in the package cache", key)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("open cached package: %w", err)
	}
	info, err := f.Stat()
	if err == nil {
		_, err = f.Seek(offset, io.SeekStart)
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("read cached package: %w", err), f.Close())
	}
	if length <= 0 {
		length = info.Size()
	}
	return section{io.LimitReader(f, length), f}, info.Size(), nil
}

// section is a range of a file.
type section struct {
	io.Reader
	io.Closer
}

// Put writes a value to a temporary file and renames it.
func (d *Dir) Put(_ context.Context, key string, r io.Reader, size int64) (err error) {
	path, err := d.file(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("make package cache: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "*"+tempSuffix)
	if err != nil {
		return fmt.Errorf("write package cache: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	n, err := io.Copy(f, r)
	if err == nil && n != size {
		err = fmt.Errorf("it has %d bytes, want %d", n, size)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write package cache: %w", err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write package cache: %w", err)
	}
	return nil
}

// Delete removes values.
func (d *Dir) Delete(_ context.Context, keys ...string) error {
	var errs []error
	for _, key := range keys {
		path, err := d.file(key)
		if err == nil {
			err = os.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// List calls fn for each value below a prefix.
func (d *Dir) List(ctx context.Context, prefix string, fn func(key string, size int64, modified time.Time) error) error {
	err := filepath.WalkDir(d.path, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasSuffix(path, tempSuffix) {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		relative, err := filepath.Rel(d.path, path)
		if err != nil {
			return err
		}
		key := filepath.ToSlash(relative)
		info, err := e.Info()
		if err != nil || !strings.HasPrefix(key, prefix) {
			return nil // it was removed meanwhile
		}
		return fn(key, info.Size(), info.ModTime())
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// newHash makes the hash of an algorithm that files are checked with; nil for others. md5 does not count as a hash.
func newHash(algorithm string) hash.Hash {
	switch algorithm {
	case "sha256":
		return sha256.New()
	case "sha512":
		return sha512.New()
	case "sha384":
		return sha512.New384()
	case "sha1":
		return sha1.New() //nolint:gosec // see above
	}
	return nil
}

// bestHash picks the hash that a file is checked with and known by; "" when there is none.
func bestHash(hashes map[string]string) (algorithm, value string) {
	for _, algorithm := range []string{"sha256", "sha512", "sha384", "sha1"} {
		if value := hashes[algorithm]; value != "" {
			return algorithm, value
		}
	}
	return "", ""
}

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

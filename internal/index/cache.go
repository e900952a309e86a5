package index

import (
	"context"
	"io"
	"time"
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

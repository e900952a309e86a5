package index

import (
	"context"
	"io"
	"time"
)

// Cache is where an Index keeps what it has read. All keys begin with "index/" and are separated by slashes. Its methods
// are called at the same time, each with a deadline of its own. An error other than CodeNotFound means that it is down:
// the index then works without it for a while.
type Cache interface {
	// Get opens a value from offset; length 0 means to the end. It also gives the size of the whole value. CodeNotFound
	// when there is none. The reader lives as long as ctx.
	Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, int64, error)
	// Put keeps size bytes of r: whole or not at all. A value with the key is replaced.
	Put(ctx context.Context, key string, r io.Reader, size int64) error
	// Delete removes values; one that is missing counts as removed.
	Delete(ctx context.Context, keys ...string) error
	// List calls fn for each value whose key begins with prefix, until fn fails.
	List(ctx context.Context, prefix string, fn func(key string, size int64, modified time.Time) error) error
}

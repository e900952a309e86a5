package index

import (
	"context"
	"hash/fnv"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// usedPrefix begins the keys of marks: the time of a mark is when a file was last used, accurate to usedEvery. An object store
	// does not know when an object was read.
	usedPrefix = farm.IndexPrefix + "used/"
	// usedEvery is how often the use of a file is recorded.
	usedEvery = time.Hour
)

// markOf is the key of the mark of a value.
func markOf(key string) string { return usedPrefix + strings.TrimPrefix(key, farm.IndexPrefix) }

// used records in the background that a file of the cache is used, so that Trim keeps it.
func (x *Index) used(ctx context.Context, key string) {
	now := x.cfg.Now()
	if at, ok := x.marked.get(key); ok && now.Sub(at) < usedEvery {
		return
	}
	x.marked.put(key, now, 1)
	markCtx, end, err := x.begin(ctx)
	if err != nil {
		return // closing
	}
	go func() {
		defer end()
		if !x.cache.put(markCtx, markOf(key), strings.NewReader("."), 1) {
			x.marked.remove(key)
		}
	}()
}

// uses are the times of marks by the hash of the value's key: a cache may have a million of them.
type uses map[uint64]time.Time

func hashOf(key string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key)) // never fails
	return h.Sum64()
}

// add takes a listed key if it is that of a mark.
func (u uses) add(key string, modified time.Time) bool {
	if !strings.HasPrefix(key, usedPrefix) {
		return false
	}
	u[hashOf(farm.IndexPrefix+strings.TrimPrefix(key, usedPrefix))] = modified
	return true
}

// last returns when a value was last used, and forgets its mark: those that are left have no value.
func (u uses) last(key string, modified time.Time) time.Time {
	h := hashOf(key)
	used, ok := u[h]
	if !ok {
		return modified
	}
	delete(u, h)
	if used.After(modified) {
		return used
	}
	return modified
}

// orphan reports whether a key is that of a mark whose value is gone.
func (u uses) orphan(key string) bool {
	_, left := u[hashOf(farm.IndexPrefix+strings.TrimPrefix(key, usedPrefix))]
	return left
}

package index

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// trimTimeout bounds one trim; listing a million values takes minutes.
const trimTimeout = 30 * time.Minute

// deleteAtOnce is how many values one call removes.
const deleteAtOnce = 500

// kept is a value in the cache.
type kept struct {
	key  string
	size int64     // as it counts, see farm.StoredBytes
	used time.Time // when it was last used
}

// oldest is a heap of values with the one on top that was used last.
type oldest []kept

func (o oldest) Len() int { return len(o) }
func (o oldest) Less(i, j int) bool {
	return cmp.Or(o[i].used.Compare(o[j].used), cmp.Compare(o[i].key, o[j].key)) > 0
}
func (o oldest) Swap(i, j int) { o[i], o[j] = o[j], o[i] }

// Push and Pop are for package heap.
func (o *oldest) Push(v any) { *o = append(*o, v.(kept)) }

// Pop removes the last element.
func (o *oldest) Pop() any {
	last := (*o)[len(*o)-1]
	*o = (*o)[:len(*o)-1]
	return last
}

// Trim reduces the cache to CacheMB and removes first what was not used for longest. Each value and each mark counts farm.ObjectBytes more than it has,
// for the blocks that the object store keeps of the smallest object. The index calls it as the cache grows. It needs
// memory for the removed values, and some bytes for each file that was used since it was stored.
func (x *Index) Trim(ctx context.Context) error {
	if x.cfg.Cache == nil {
		return nil
	}
	x.trimming.Lock()
	defer x.trimming.Unlock()
	ctx, cancel := context.WithTimeout(ctx, trimTimeout)
	defer cancel()
	excess := -int64(x.cfg.CacheMB) << 20
	marks := uses{}
	err := x.cfg.Cache.List(ctx, farm.IndexPrefix, func(key string, size int64, modified time.Time) error {
		marks.add(key, modified)
		excess += farm.StoredBytes(size)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list cache of packages: %w", err)
	}
	if excess <= 0 {
		return nil
	}
	var going oldest
	var bytes int64
	err = x.cfg.Cache.List(ctx, farm.IndexPrefix, func(key string, size int64, modified time.Time) error {
		if strings.HasPrefix(key, usedPrefix) {
			return nil
		}
		size = farm.StoredBytes(size)
		if _, marked := marks[hashOf(key)]; marked {
			size += farm.StoredBytes(1) // its mark goes with it
		}
		heap.Push(&going, kept{key, size, marks.last(key, modified)})
		for bytes += size; bytes-going[0].size >= excess; {
			bytes -= heap.Pop(&going).(kept).size
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list cache of packages: %w", err)
	}
	keys := make([]string, 0, 2*len(going))
	for _, k := range going {
		keys = append(keys, k.key, markOf(k.key))
		x.known.remove(k.key)
		x.marked.remove(k.key)
	}
	if len(marks) > 0 { // their values were removed by other means
		err = x.cfg.Cache.List(ctx, usedPrefix, func(key string, _ int64, _ time.Time) error {
			if marks.orphan(key) {
				keys = append(keys, key)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("list cache of packages: %w", err)
		}
	}
	for at := 0; at < len(keys); at += deleteAtOnce {
		if err := x.cfg.Cache.Delete(ctx, keys[at:min(at+deleteAtOnce, len(keys))]...); err != nil {
			return fmt.Errorf("trim cache of packages: %w", err)
		}
	}
	x.count.trimmed.Add(int64(len(going)))
	x.log.InfoContext(ctx, "trimmed the cache of packages", "values", len(going), "bytes", bytes)
	return nil
}

// added records that the cache has grown by a value or a mark, and trims it each time it grew by a twentieth, at least by some MiB.
func (x *Index) added(ctx context.Context, bytes int64) {
	x.mu.Lock()
	x.grown += farm.StoredBytes(bytes)
	due := x.grown >= max(int64(x.cfg.CacheMB)<<20/20, min(64<<20, int64(x.cfg.CacheMB)<<20))
	if due {
		x.grown = 0
	}
	x.mu.Unlock()
	if due {
		x.background(ctx, func(ctx context.Context) {
			if err := x.Trim(ctx); err != nil {
				x.cache.failed(ctx, "trim", err)
			}
		})
	}
}

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
	place := tryAcquire(tenantOf(ctx), x.storeSlots)
	if place == nil {
		return // the next use is recorded
	}
	x.marked.put(key, now, 1)
	x.background(ctx, func(ctx context.Context) {
		defer place.Leave()
		if !x.cache.put(ctx, markOf(key), strings.NewReader("."), 1) {
			x.marked.remove(key)
			return
		}
		x.added(ctx, 1)
	})
}

// uses are the times of marks by the hash of the value's key: a cache may have a million of them.
type uses map[uint64]time.Time

func hashOf(key string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key)) // never fails
	return h.Sum64()
}

// add takes a listed key if it is that of a mark.
func (u uses) add(key string, modified time.Time) {
	if strings.HasPrefix(key, usedPrefix) {
		u[hashOf(farm.IndexPrefix+strings.TrimPrefix(key, usedPrefix))] = modified
	}
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

const (
	retainFor = 2 * time.Minute // how long a file without a cache is retained: installers read one in several requests
	retainMax = 2 << 30         // total bytes of such files
	// retainedFiles is how many there are at most, since each is an open file.
	retainedFiles = 256
)

// retained is a complete file that no cache has, kept for a while.
type retained struct {
	flight *flight
	timer  *time.Timer
}

// retain keeps a complete file in the table. The caller holds the mutex.
func (x *Index) retain(f *flight) {
	if x.closed || f.size > retainMax {
		x.removeLocked(f)
		return
	}
	p := &retained{flight: f}
	p.timer = time.AfterFunc(retainFor, func() { x.expire(p) })
	f.retained = true
	x.retained = append(x.retained, p)
	for len(x.retained) > retainedFiles || x.retainedBytes() > retainMax {
		x.discard(x.retained[0])
	}
}

func (x *Index) retainedBytes() (n int64) {
	for _, p := range x.retained {
		n += p.flight.size
	}
	return n
}

// expire removes a retained file that was not used for a while.
func (x *Index) expire(p *retained) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !slices.Contains(x.retained, p) {
		return
	}
	if idle := time.Since(p.flight.left); p.flight.readers > 0 || idle < retainFor {
		p.timer.Reset(retainFor)
		return
	}
	x.discard(p)
}

// discard removes a retained file. The caller holds the mutex.
func (x *Index) discard(p *retained) {
	p.timer.Stop()
	x.retained = slices.DeleteFunc(x.retained, func(q *retained) bool { return q == p })
	x.removeLocked(p.flight)
}

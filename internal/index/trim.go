package index

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
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
	size int64
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

// Trim reduces the cache to CacheMB and removes first what was not used for longest. The index calls it as the cache grows. It needs
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
		if !marks.add(key, modified) {
			excess += size
		}
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

// added records that the cache has grown, and trims it each time it grew by a twentieth, at least by some MiB.
func (x *Index) added(ctx context.Context, bytes int64) {
	x.mu.Lock()
	x.grown += bytes
	due := x.grown >= max(int64(x.cfg.CacheMB)<<20/20, min(64<<20, int64(x.cfg.CacheMB)<<20))
	if due {
		x.grown = 0
	}
	x.mu.Unlock()
	if !due {
		return
	}
	trimCtx, end, err := x.begin(ctx)
	if err != nil {
		return // closing
	}
	go func() {
		defer end()
		if err := x.Trim(trimCtx); err != nil {
			x.cache.failed(trimCtx, "trim", err)
		}
	}()
}

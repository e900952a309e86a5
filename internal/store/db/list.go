package db

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Fetch reads the hashes of ids in batches and skips those that are gone, or for which read gives ErrDocumentGone.
func Fetch[T any](ctx context.Context, d *DB, tenant string, kind Kind, ids []string, read func(context.Context, map[string]string) (*T, error)) ([]*T, error) {
	found, err := FetchSized(ctx, d, tenant, kind, ids, read)
	out := make([]*T, len(found))
	for i := range found {
		out[i] = found[i].Item
	}
	return out, err
}

// Sized is a record and how many bytes its hash has, with what read has put into it.
type Sized[T any] struct {
	Item  *T
	Bytes int
}

// FetchSized is Fetch with the sizes of the records.
func FetchSized[T any](ctx context.Context, d *DB, tenant string, kind Kind, ids []string, read func(context.Context, map[string]string) (*T, error)) ([]Sized[T], error) {
	const stretch = 500 // bounds the memory of one reply
	out := make([]Sized[T], 0, len(ids))
	for len(ids) > 0 {
		part := ids[:min(stretch, len(ids))]
		ids = ids[len(part):]
		pipe := d.Redis.Pipeline()
		cmds := make([]*redis.MapStringStringCmd, len(part))
		for i, id := range part {
			cmds[i] = pipe.HGetAll(ctx, d.Key(tenant, kind, id))
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, Wrap("read records", err)
		}
		for _, cmd := range cmds {
			if len(cmd.Val()) == 0 {
				continue
			}
			item, err := read(ctx, cmd.Val())
			if errors.Is(err, ErrDocumentGone) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("read records: %w", err)
			}
			bytes := 0
			for _, value := range cmd.Val() {
				bytes += len(value)
			}
			out = append(out, Sized[T]{item, bytes})
		}
	}
	return out, nil
}

// Bounds of lists.
const (
	PageDefault = 50
	maxScan     = 2000 // records looked at in one call; a list whose filter drops most of them gives a short page and a cursor
	scanWhole   = 400  // the same, where each record is read and decoded as a whole to see whether it is wanted
	ScanStretch = 200
	scanSpare   = 2       // entries beyond the limit that are looked at first, since a list is rarely without one that is not wanted
	pageBytes   = 1 << 20 // of the records of a page and of their documents; then it is short too, but never empty for this reason
	loadFirst   = 25      // records that are loaded before it is known how large those of the list are
	loadWeight  = 6       // how often a record is in memory at once, as documentWeight of package blob
)

// Page asks for a part of a list, by default the newest first.
type Page struct {
	Limit  int    // 0: 50
	Cursor string // of the page before; "": from the newest, or with Oldest from the oldest
	Oldest bool   // the oldest first; for lists of sandboxes only
}

// TimeRange picks records by when they were created. Both ends are exclusive; the zero time leaves an end open.
type TimeRange struct {
	After  time.Time
	Before time.Time
}

// OrderSlack is how far the times of creation may deviate from the order of an index: the clocks of API processes differ.
const OrderSlack = 5 * time.Minute

// Contains reports whether a time is in the range.
func (r TimeRange) Contains(t time.Time) bool {
	return (r.After.IsZero() || t.After(r.After)) && (r.Before.IsZero() || t.Before(r.Before))
}

// Passed reports whether nothing that stands behind a record of this time, in a list from the newest, can be in the range.
func (r TimeRange) Passed(t time.Time) bool {
	return !r.After.IsZero() && !t.IsZero() && t.Before(r.After.Add(-OrderSlack))
}

// Listing is how scan reads the records of an index.
type Listing[T any] struct {
	Index string
	From  string // an index with the same scores that has all records that are wanted; "": Index. Cursors are those of Index
	Load  func(ctx context.Context, ids []string) ([]Sized[T], error)
	ID    func(*T) string
	Want  func(*T) bool

	Passed func(*T) bool // nothing behind this record is wanted
	Whole  bool          // see scanWhole

	// Complete reads the documents of a record that is wanted, and returns how many bytes they have. Nil: there are none.
	Complete func(context.Context, *T) (int, error)

	// Prune drops ids whose records are not wanted, by less than the whole records; end says that nothing behind these ids is wanted. Nil: it
	// keeps all.
	Prune func(ctx context.Context, ids []string) (kept []string, end bool, err error)
}

// Scan reads an index from its newest entry, or its oldest, loads the records and keeps those that are wanted. The cursor is the sequence number of the
// last entry that was looked at, so new records do not shift the pages.
func Scan[T any](ctx context.Context, d *DB, l Listing[T], p Page) ([]*T, string, error) {
	limit := p.Limit
	if limit <= 0 {
		limit = PageDefault
	}
	index, from := cmp.Or(l.From, l.Index), "+inf"
	if p.Oldest {
		from = "-inf"
	}
	if p.Cursor != "" {
		n, ok := parseCursor(l.Index, p.Cursor)
		if !ok {
			return nil, "", farm.Invalidf("%q is not a cursor of this list. Start again without a cursor.", Clip(p.Cursor))
		}
		from = "(" + strconv.FormatInt(n, 10)
	}
	out := make([]*T, 0, min(limit, ScanStretch))
	var last int64
	size, load := pageSize{}, loadFirst
	bound := maxScan
	if l.Whole {
		bound = scanWhole
	}
	for seen := 0; seen < bound; {
		stretch := min(ScanStretch, limit+scanSpare)
		if seen > 0 {
			stretch = min(ScanStretch, max(2*(limit-len(out)), 10))
		}
		var entries []redis.Z
		var err error
		if p.Oldest {
			entries, err = d.Redis.ZRangeByScoreWithScores(ctx, index, &redis.ZRangeBy{Min: from, Max: "+inf", Count: int64(stretch)}).Result()
		} else {
			entries, err = d.Redis.ZRevRangeByScoreWithScores(ctx, index, &redis.ZRangeBy{Min: "-inf", Max: from, Count: int64(stretch)}).Result()
		}
		if err != nil {
			return nil, "", Wrap("read index", err)
		}
		if len(entries) == 0 {
			return out, "", nil
		}
		ids := make([]string, len(entries))
		scores := make(map[string]int64, len(entries))
		for i, entry := range entries {
			ids[i], _ = entry.Member.(string)
			scores[ids[i]] = int64(entry.Score)
		}
		last = scores[ids[len(ids)-1]]
		kept, end := ids, len(entries) < stretch
		if l.Prune != nil {
			var passed bool
			if kept, passed, err = l.Prune(ctx, ids); err != nil {
				return nil, "", err
			}
			end = end || passed
		}
		for len(kept) > 0 {
			part := kept[:min(load, len(kept))]
			kept = kept[len(part):]
			items, err := l.Load(ctx, part)
			if err != nil {
				return nil, "", err
			}
			load = next(items)
			for i, each := range items {
				item := each.Item
				end = end || !p.Oldest && l.Passed(item)
				if !l.Want(item) {
					continue
				}
				switch err := size.add(ctx, each.Bytes, func() (int, error) { return l.complete(ctx, item) }); {
				case farm.CodeOf(err) == farm.CodeExhausted && len(out) > 0: // there is no memory for more
					return out, cursor(l.Index, scores[l.ID(out[len(out)-1])]), nil
				case err != nil:
					return nil, "", err
				}
				if out = append(out, item); len(out) == limit || size.bytes >= pageBytes {
					at := scores[l.ID(item)]
					if end && (at == last || len(kept) == 0 && i == len(items)-1) {
						return out, "", nil // nothing that is wanted is behind it
					}
					return out, cursor(l.Index, at), nil
				}
			}
		}
		if end {
			return out, "", nil
		}
		seen += len(entries)
		from = "(" + strconv.FormatInt(last, 10)
	}
	return out, cursor(l.Index, last), nil
}

func (l Listing[T]) complete(ctx context.Context, item *T) (int, error) {
	if l.Complete == nil {
		return 0, nil
	}
	return l.Complete(ctx, item)
}

// pageSize is how large a page is so far.
type pageSize struct {
	bytes int // of its records and their documents
	free  int // of its records that are not charged: budget.SmallBytes at most
}

// add counts a record of some bytes. It charges the request for it (budget.Charge) and then completes it, which charges for the documents.
func (s *pageSize) add(ctx context.Context, record int, complete func() (documents int, err error)) error {
	if s.free+record <= budget.SmallBytes {
		s.free += record
	} else if err := budget.Charge(ctx, int64(record)*loadWeight); err != nil {
		return err
	}
	documents, err := complete()
	s.bytes += record + documents
	return err
}

// next says how many records may be loaded at once after these: some hundred small ones, but not a hundred of 40 KiB.
func next[T any](loaded []Sized[T]) int {
	sum := 0
	for _, each := range loaded {
		sum += each.Bytes
	}
	if sum == 0 {
		return loadFirst
	}
	return min(max(pageBytes*len(loaded)/sum, 1), ScanStretch)
}

// cursorCheck is how many characters at the end of a cursor depend on the list and the number, so that no other text is taken for one.
const cursorCheck = 5

// cursor is a place in an index.
func cursor(index string, n int64) string {
	check := crc32.ChecksumIEEE(strconv.AppendInt([]byte(index+" "), n, 36)) % 60_466_176 // 36 to the power of cursorCheck
	return strconv.FormatInt(n, 36) + fmt.Sprintf("%0*s", cursorCheck, strconv.FormatUint(uint64(check), 36))
}

// parseCursor is the reverse of cursor. ok is false for every other text.
func parseCursor(index, text string) (n int64, ok bool) {
	if len(text) <= cursorCheck {
		return 0, false
	}
	n, err := strconv.ParseInt(text[:len(text)-cursorCheck], 36, 64)
	return n, err == nil && n > 0 && n < 1<<53 && cursor(index, n) == text
}

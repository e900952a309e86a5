package store

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// activityTTL is how long the farm's activity is kept after its last change: the hour that it tells of, and a while for clocks that differ.
const activityTTL = farm.ActivityKept + 10*time.Minute

// NoteActivity replaces what a worker says of the minutes of the last hour. One field holds it, of a few KiB at most.
func (s *Store) NoteActivity(ctx context.Context, workerID string, minutes []farm.Minute) error {
	doc, err := encode("activity", minutes)
	if err != nil {
		return err
	}
	_, err = s.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.HSet(ctx, s.Farm(FarmActivity, ""), workerID, doc)
		pipe.Expire(ctx, s.Farm(FarmActivity, ""), activityTTL)
		return nil
	})
	return wrap("note activity", err)
}

// Activity lists the minutes of the last hour in which jobs ended, the oldest first, of all workers together, with those that have stopped.
func (s *Store) Activity(ctx context.Context) ([]farm.Minute, error) {
	fields, err := s.rdb.HGetAll(ctx, s.Farm(FarmActivity, "")).Result()
	if err != nil {
		return nil, wrap("read activity", err)
	}
	oldest := farm.MinuteOf(s.now().Add(-farm.ActivityKept))
	all := map[int64]farm.Minute{}
	var stale []string
	for worker, doc := range fields {
		var minutes []farm.Minute
		_ = json.Unmarshal([]byte(doc), &minutes) // of another release: it counts as none
		minutes = slices.DeleteFunc(minutes, func(m farm.Minute) bool { return m.At <= oldest })
		if len(minutes) == 0 {
			stale = append(stale, worker)
		}
		for _, m := range minutes {
			all[m.At] = m.Plus(all[m.At])
		}
	}
	if len(stale) > 0 {
		if err := s.rdb.HDel(ctx, s.Farm(FarmActivity, ""), stale...).Err(); err != nil {
			return nil, wrap("remove old activity", err)
		}
	}
	out := make([]farm.Minute, 0, len(all))
	for _, m := range all {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b farm.Minute) int { return int(a.At - b.At) })
	return out, nil
}

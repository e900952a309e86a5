package nodes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

// HeartbeatTTL is how long a worker counts as alive after its last heartbeat. Workers send one every few seconds.
const HeartbeatTTL = 10 * time.Second

// Heartbeat registers a worker, or renews its registration.
func (s *Store) Heartbeat(ctx context.Context, w farm.Worker) error {
	_, err := s.Beat(ctx, w)
	return err
}

// Beat is Heartbeat, and returns the number of the heartbeat that was stored before; 0: there was no registration, or it had expired. A number
// below that of the worker's last heartbeat means that Redis has lost data since, or was away.
func (s *Store) Beat(ctx context.Context, w farm.Worker) (before uint64, err error) {
	if w.SeenAt.IsZero() {
		w.SeenAt = s.Now().UTC()
	}
	data, err := db.Encode("worker", w)
	if err != nil {
		return 0, err
	}
	pipe := s.Redis.Pipeline()
	old := pipe.SetArgs(ctx, s.Farm(db.FarmWorker, w.ID), data, redis.SetArgs{TTL: HeartbeatTTL, Get: true})
	added := pipe.SAdd(ctx, s.Farm(db.FarmWorkers, ""), w.ID)
	_, _ = pipe.Exec(ctx) // its error is that of a command, and redis.Nil is none
	if err := old.Err(); err != nil && !errors.Is(err, redis.Nil) {
		return 0, db.Wrap("write heartbeat", err)
	}
	if err := added.Err(); err != nil {
		return 0, db.Wrap("write heartbeat", err)
	}
	var last farm.Worker
	if json.Unmarshal([]byte(old.Val()), &last) != nil {
		return 0, nil // none, or that of another release
	}
	return last.Beat, nil
}

// Workers lists the live workers, sorted by id.
func (s *Store) Workers(ctx context.Context) ([]farm.Worker, error) {
	ids, err := s.Redis.SMembers(ctx, s.Farm(db.FarmWorkers, "")).Result()
	if err != nil {
		return nil, db.Wrap("list workers", err)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	pipe := s.Redis.Pipeline()
	cmds := make([]*redis.StringCmd, len(ids))
	for i, id := range ids {
		cmds[i] = pipe.Get(ctx, s.Farm(db.FarmWorker, id))
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, db.Wrap("read workers", err)
	}
	var out []farm.Worker
	for i, cmd := range cmds {
		text, err := cmd.Result()
		if errors.Is(err, redis.Nil) {
			// If a heartbeat came between the two reads, the next one registers it again.
			if err := s.Redis.SRem(ctx, s.Farm(db.FarmWorkers, ""), ids[i]).Err(); err != nil {
				return nil, db.Wrap("remove worker", err)
			}
			continue
		}
		if err != nil {
			return nil, db.Wrap("read worker", err)
		}
		var w farm.Worker
		if err := json.Unmarshal([]byte(text), &w); err != nil {
			s.Log.WarnContext(ctx, "registration of a worker cannot be read; it counts as dead", "worker_id", ids[i], "error", err)
			continue
		}
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b farm.Worker) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// Alive reports whether a worker's heartbeat has not expired.
func (s *Store) Alive(ctx context.Context, workerID string) (bool, error) {
	n, err := s.Redis.Exists(ctx, s.Farm(db.FarmWorker, workerID)).Result()
	return n == 1, db.Wrap("read heartbeat", err)
}

// RemoveWorker unregisters a worker at once, so that no job waits for its heartbeat to expire.
func (s *Store) RemoveWorker(ctx context.Context, workerID string) error {
	pipe := s.Redis.Pipeline()
	pipe.Del(ctx, s.Farm(db.FarmWorker, workerID))
	pipe.SRem(ctx, s.Farm(db.FarmWorkers, ""), workerID)
	if _, err := pipe.Exec(ctx); err != nil {
		return db.Wrap("remove worker", err)
	}
	return s.noteStopped(ctx, workerID)
}

// OfferedImages lists the images of all live workers, each name once, sorted.
func (s *Store) OfferedImages(ctx context.Context) ([]farm.Image, error) {
	workers, err := s.Workers(ctx)
	if err != nil {
		return nil, err
	}
	var images []farm.Image
	known := map[string]bool{}
	for _, w := range workers {
		for _, image := range w.Images {
			if !known[image.Name] {
				known[image.Name] = true
				images = append(images, image)
			}
		}
	}
	slices.SortFunc(images, func(a, b farm.Image) int { return cmp.Compare(a.Name, b.Name) })
	return images, nil
}

// activityTTL is how long the farm's activity is kept after its last change: the hour that it tells of, and a while for clocks that differ.
const activityTTL = farm.ActivityKept + 10*time.Minute

// NoteActivity replaces what a worker says of the minutes of the last hour. One field holds it, of a few KiB at most.
func (s *Store) NoteActivity(ctx context.Context, workerID string, minutes []farm.Minute) error {
	doc, err := db.Encode("activity", minutes)
	if err != nil {
		return err
	}
	_, err = s.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.HSet(ctx, s.Farm(db.FarmActivity, ""), workerID, doc)
		pipe.Expire(ctx, s.Farm(db.FarmActivity, ""), activityTTL)
		return nil
	})
	return db.Wrap("note activity", err)
}

// Activity lists the minutes of the last hour in which jobs ended, the oldest first, of all workers together, with those that have stopped.
func (s *Store) Activity(ctx context.Context) ([]farm.Minute, error) {
	fields, err := s.Redis.HGetAll(ctx, s.Farm(db.FarmActivity, "")).Result()
	if err != nil {
		return nil, db.Wrap("read activity", err)
	}
	oldest := farm.MinuteOf(s.Now().Add(-farm.ActivityKept))
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
		if err := s.Redis.HDel(ctx, s.Farm(db.FarmActivity, ""), stale...).Err(); err != nil {
			return nil, db.Wrap("remove old activity", err)
		}
	}
	out := make([]farm.Minute, 0, len(all))
	for _, m := range all {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b farm.Minute) int { return int(a.At - b.At) })
	return out, nil
}

// liveTries is how often a change of the authorities is tried when others change them at the same time.
const liveTries = 20

// LiveAuthorities reads the authorities of the live path; nil: there are none.
func (s *Store) LiveAuthorities(ctx context.Context) ([]byte, error) {
	doc, err := s.Redis.Get(ctx, s.Index(db.SlotLive, db.IndexAuthorities)).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return doc, db.Wrap("read authorities", err)
}

// ChangeLiveAuthorities replaces the authorities by what change makes of them, and returns them. Nil keeps them. change is called again when
// another process was faster.
func (s *Store) ChangeLiveAuthorities(ctx context.Context, change func(list []byte) ([]byte, error)) (list []byte, err error) {
	for range liveTries {
		before, err := s.LiveAuthorities(ctx)
		if err != nil {
			return nil, err
		}
		after, err := change(before)
		if err != nil || after == nil {
			return before, err
		}
		r, err := s.Run(ctx, "change authorities", "live_replace", db.SlotLive, before, after)
		if err != nil {
			return nil, err
		}
		if r.Text(0) == "ok" {
			return after, nil
		}
	}
	return nil, farm.Errorf(farm.CodeUnavailable, "the authorities were changed by others %d times in a row: try again", liveTries)
}

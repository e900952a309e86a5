package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
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
		w.SeenAt = s.now().UTC()
	}
	data, err := encode("worker", w)
	if err != nil {
		return 0, err
	}
	pipe := s.rdb.Pipeline()
	old := pipe.SetArgs(ctx, s.Farm(FarmWorker, w.ID), data, redis.SetArgs{TTL: HeartbeatTTL, Get: true})
	added := pipe.SAdd(ctx, s.Farm(FarmWorkers, ""), w.ID)
	_, _ = pipe.Exec(ctx) // its error is that of a command, and redis.Nil is none
	if err := old.Err(); err != nil && !errors.Is(err, redis.Nil) {
		return 0, wrap("write heartbeat", err)
	}
	if err := added.Err(); err != nil {
		return 0, wrap("write heartbeat", err)
	}
	var last farm.Worker
	if json.Unmarshal([]byte(old.Val()), &last) != nil {
		return 0, nil // none, or that of another release
	}
	return last.Beat, nil
}

// Workers lists the live workers, sorted by id.
func (s *Store) Workers(ctx context.Context) ([]farm.Worker, error) {
	ids, err := s.rdb.SMembers(ctx, s.Farm(FarmWorkers, "")).Result()
	if err != nil {
		return nil, wrap("list workers", err)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	pipe := s.rdb.Pipeline()
	cmds := make([]*redis.StringCmd, len(ids))
	for i, id := range ids {
		cmds[i] = pipe.Get(ctx, s.Farm(FarmWorker, id))
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, wrap("read workers", err)
	}
	var out []farm.Worker
	for i, cmd := range cmds {
		text, err := cmd.Result()
		if errors.Is(err, redis.Nil) {
			// If a heartbeat came between the two reads, the next one registers it again.
			if err := s.rdb.SRem(ctx, s.Farm(FarmWorkers, ""), ids[i]).Err(); err != nil {
				return nil, wrap("remove worker", err)
			}
			continue
		}
		if err != nil {
			return nil, wrap("read worker", err)
		}
		var w farm.Worker
		if err := json.Unmarshal([]byte(text), &w); err != nil {
			s.log.WarnContext(ctx, "registration of a worker cannot be read; it counts as dead", "worker_id", ids[i], "error", err)
			continue
		}
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b farm.Worker) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// Alive reports whether a worker's heartbeat has not expired.
func (s *Store) Alive(ctx context.Context, workerID string) (bool, error) {
	n, err := s.rdb.Exists(ctx, s.Farm(FarmWorker, workerID)).Result()
	return n == 1, wrap("read heartbeat", err)
}

// RemoveWorker unregisters a worker at once, so that no job waits for its heartbeat to expire.
func (s *Store) RemoveWorker(ctx context.Context, workerID string) error {
	pipe := s.rdb.Pipeline()
	pipe.Del(ctx, s.Farm(FarmWorker, workerID))
	pipe.SRem(ctx, s.Farm(FarmWorkers, ""), workerID)
	if _, err := pipe.Exec(ctx); err != nil {
		return wrap("remove worker", err)
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

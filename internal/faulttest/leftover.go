package faulttest

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// goneWithWork are the kinds of keys of a tenant that nothing may have when all its jobs and sandboxes have ended. The
// list of queues that held jobs back, "holds", is put in order by the next job that waits.
func goneWithWork() []string {
	return []string{"line", "osj", "stops", "out", "held", "act", "cp", "open", "openboxes", "due"}
}

// leftKeys are the keys of work that has ended: in the queues, and of the kinds of goneWithWork.
func (f *Farm) leftKeys() (left []string) {
	ctx := f.t.Context()
	for scan := f.redis.Scan(ctx, 0, "*", 1000).Iterator(); scan.Next(ctx); {
		key := scan.Val()
		switch {
		case strings.HasPrefix(key, "asynq:{") && slices.Contains([]string{"pending", "active", "lease", "retry", "archived"}, key[strings.LastIndexByte(key, ':')+1:]):
			left = append(left, key)
		case strings.HasPrefix(key, "sf:{default}:"):
			kind, _, _ := strings.Cut(strings.TrimPrefix(key, "sf:{default}:"), ":")
			if slices.Contains(goneWithWork(), kind) {
				left = append(left, key)
			}
		}
	}
	slices.Sort(left)
	return left
}

// leftRecords are entries for sandboxes and jobs that have ended in the keys that stay: reservations of nodes and devices, claimed members of
// the pool, drains, and documents that nothing removes. All sandboxes must have been closed.
func (f *Farm) leftRecords() (left []string) {
	ctx := f.t.Context()
	members := f.members()
	for _, pattern := range []string{"sf:{room}:node:*", "sf:*gpus:*"} {
		for scan := f.redis.Scan(ctx, 0, pattern, 1000).Iterator(); scan.Next(ctx); {
			for _, field := range f.redis.HKeys(ctx, scan.Val()).Val() {
				if _, pooled := members[field]; !pooled && field != "#" { // that field says that devices may be leased
					left = append(left, scan.Val()+" "+field)
				}
			}
		}
	}
	for id, state := range members {
		if state == "claimed" {
			left = append(left, "claimed member "+id)
		}
	}
	if n := f.redis.HLen(ctx, "sf:{nodes}:drains").Val(); n > 0 {
		left = append(left, "sf:{nodes}:drains")
	}
	for _, id := range f.redis.ZRangeArgs(ctx, redis.ZRangeArgs{Key: "sf:{default}:docs", Start: "+inf", Stop: "+inf", ByScore: true}).Val() {
		left = append(left, "documents of "+id)
	}
	slices.Sort(left)
	return left
}

// members are the states of the members of the warm pool, by the ids of their sandboxes.
func (f *Farm) members() map[string]string {
	ctx, prefix := f.t.Context(), "sf:{pool}:m:"
	found := map[string]string{}
	for scan := f.redis.Scan(ctx, 0, prefix+"*", 1000).Iterator(); scan.Next(ctx); {
		found[strings.TrimPrefix(scan.Val(), prefix)] = f.redis.HGet(ctx, scan.Val(), "state").Val()
	}
	return found
}

// leftObjects are the staged objects. MinIO has a folder for each object.
func (f *Farm) leftObjects() (left []string) {
	err := filepath.WalkDir(filepath.Join(f.Stored(), "staging"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "xl.meta" {
			left = append(left, strings.TrimPrefix(filepath.Dir(path), f.Stored()+"/"))
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // an object may be removed meanwhile
		f.t.Errorf("list staged objects: %v", err)
	}
	return left
}

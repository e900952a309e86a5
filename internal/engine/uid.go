package engine

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"strconv"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// The user ids of sandboxes, FirstUID to FirstUID+UIDs-1. The kernel has limits for each user and all its containers together: pipes,
// watches of files, queued signals. So no two sandboxes of an engine have the same user.
const (
	FirstUID = 20_000
	UIDs     = 40_000
)

// uidTries is how often Create takes another uid. Two tries are enough unless creates of several workers meet each time.
const uidTries = 10

// PreferredUID is the uid that a sandbox gets if it is free.
func PreferredUID(sandboxID string) int {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(sandboxID))
	return FirstUID + int(hash.Sum32()%UIDs)
}

// createUnique creates a container whose uid no other container of the engine has, of this farm or another one. The uids are labels of
// the containers, so the engine itself is the record. A container is checked after it is created and before anyone starts it: of two
// that got the same uid at once, at least one sees the other and takes another uid.
func (e *Engine) createUnique(ctx context.Context, s sandboxSpec, cpus int) (string, error) {
	for range uidTries {
		id, err := e.createOnce(ctx, s, cpus)
		if err != nil {
			return "", err
		}
		taken, err := e.uidTaken(ctx, id)
		if err != nil || !taken {
			return id, err
		}
		if err := e.Remove(ctx, id); err != nil {
			return "", err
		}
		if s.UID, err = e.freeUID(ctx); err != nil {
			return "", err
		}
	}
	return "", farm.Errorf(farm.CodeUnavailable, "other sandboxes took each user id that this one chose. Try again in a moment.")
}

// uidTaken reports whether another container has the uid of a container that has not been started.
func (e *Engine) uidTaken(ctx context.Context, id string) (bool, error) {
	got, err := e.Inspect(ctx, id)
	if err != nil || got.Running || got.Labels[LabelUID] == "" { // an earlier attempt checked it and started it
		return false, err
	}
	same, err := e.withUID(ctx, LabelUID+"="+got.Labels[LabelUID])
	for _, c := range same {
		if c.ID != got.ID {
			return true, err
		}
	}
	return false, err
}

// freeUID returns a uid that no container has. It starts at random, so that creates that met do not meet again.
func (e *Engine) freeUID(ctx context.Context) (int, error) {
	all, err := e.withUID(ctx, LabelUID)
	if err != nil {
		return 0, err
	}
	used := map[int]bool{}
	for _, c := range all {
		if uid, err := strconv.Atoi(c.Labels[LabelUID]); err == nil {
			used[uid] = true
		}
	}
	return nextUID(FirstUID+rand.IntN(UIDs), used) //nolint:gosec // no secret
}

// nextUID returns the first uid after one that is not used. After the last comes the first.
func nextUID(after int, used map[int]bool) (int, error) {
	for i := 1; i <= UIDs; i++ {
		if uid := FirstUID + (after-FirstUID+i)%UIDs; !used[uid] {
			return uid, nil
		}
	}
	return 0, farm.Errorf(farm.CodeUnavailable, "all %d user ids of sandboxes are in use on this engine", UIDs)
}

// withUID lists the containers, of all farms and in any state, that have a label of a uid.
func (e *Engine) withUID(ctx context.Context, label string) (found []container.Summary, err error) {
	err = e.call(ctx, readTimeout, "list user ids", func(ctx context.Context) error {
		found, err = e.cli.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", label))})
		return err
	})
	return found, err
}

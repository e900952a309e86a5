package store

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// WaitingCreates are the sandboxes that wait in a queue of creates.
type WaitingCreates struct {
	Sandboxes []*farm.Sandbox // the oldest of each tenant, at most as many as were asked for
	More      int             // that were not read
}

// waitingOfTenant are the answers about the jobs of a tenant that wait in a queue.
type waitingOfTenant struct {
	tenant        string
	out, held     *redis.StringSliceCmd // the oldest ids
	allOut, hold  *redis.IntCmd
	quota         *redis.StringCmd
	active        *redis.IntCmd
	ids           []string
	sandboxOfJobs []*redis.StringCmd
}

// WaitingCreates reads the sandboxes that have waited in a queue since before a moment: those with a task there, and those that their tenants' queue
// share has parked. Jobs that a tenant's max_running holds back are left out, since no worker could begin them. It asks for some counts of
// each tenant that has jobs in the queue, and reads at most the records of most sandboxes, of all tenants alike.
func (s *Store) WaitingCreates(ctx context.Context, queue string, before time.Time, most int) (WaitingCreates, error) {
	tenants, err := s.waiting.tenants(ctx, s, queue)
	if err != nil || len(tenants) == 0 {
		return WaitingCreates{}, err
	}
	slices.Sort(tenants)
	each := int64(max(1, most/len(tenants)))
	upTo := &redis.ZRangeBy{Min: "-inf", Max: "(" + micros(before), Count: each}
	pipe := s.rdb.Pipeline()
	found := make([]waitingOfTenant, len(tenants))
	for i, t := range tenants {
		out, held := s.Key(t, KeySlots, queue), s.Key(t, KeyParked, queue)
		found[i] = waitingOfTenant{
			tenant: t, out: pipe.ZRangeByScore(ctx, out, upTo), held: pipe.ZRangeByScore(ctx, held, upTo),
			allOut: pipe.ZCount(ctx, out, "-inf", upTo.Max), hold: pipe.ZCount(ctx, held, "-inf", upTo.Max),
			quota: pipe.HGet(ctx, s.Index(t, IndexQuotas), string(farm.QuotaRunning)), active: pipe.SCard(ctx, s.Index(t, IndexActive)),
		}
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return WaitingCreates{}, wrap("read waiting creates", err)
	}
	out, all := WaitingCreates{}, 0
	pipe = s.rdb.Pipeline()
	for i := range found {
		w := &found[i]
		held := s.mayUnpark(w)
		all += int(w.allOut.Val()) + held
		w.ids = append(w.out.Val(), w.held.Val()[:min(held, len(w.held.Val()))]...)
		w.ids = w.ids[:min(int64(len(w.ids)), each)]
		for _, id := range w.ids {
			w.sandboxOfJobs = append(w.sandboxOfJobs, pipe.HGet(ctx, s.Key(w.tenant, KeyJob, id), "sandbox"))
		}
	}
	if all == 0 {
		return out, nil
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return WaitingCreates{}, wrap("read waiting creates", err)
	}
	for _, w := range found {
		ids := make([]string, 0, len(w.ids))
		for _, cmd := range w.sandboxOfJobs {
			if cmd.Val() != "" && len(out.Sandboxes)+len(ids) < most {
				ids = append(ids, cmd.Val())
			}
		}
		boxes, err := fetch(ctx, s, w.tenant, KeySandbox, ids, s.readSandbox)
		if err != nil {
			return WaitingCreates{}, err
		}
		out.Sandboxes = append(out.Sandboxes, boxes...)
	}
	if len(out.Sandboxes) > 0 {
		out.More = max(all-len(out.Sandboxes), 0)
	}
	return out, nil
}

// mayUnpark is how many of a tenant's parked jobs its max_running would let begin.
func (s *Store) mayUnpark(w *waitingOfTenant) int {
	most := s.limits.TenantQuotas().Get(farm.QuotaRunning)
	if own, err := strconv.ParseFloat(w.quota.Val(), 64); err == nil {
		most = own
	}
	if most < 0 {
		return int(w.hold.Val())
	}
	return min(int(w.hold.Val()), max(int(most)-int(w.active.Val()), 0))
}

package store

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// waitingTTL is how long the tenants that have jobs in a queue are remembered.
const waitingTTL = time.Second

// QueuePosition is the position in a queue of a job that waits for a worker.
type QueuePosition struct {
	Position int           // among the waiting jobs of its queue, 1 is next; 0: it waits in none
	Estimate time.Duration // until it starts, from the recent pace of the queue; negative: not known
}

// QueuePosition finds the position of a queued create in its queue. Tenants take turns, so the jobs of a tenant with many of them count only
// as far as they come first.
func (s *Store) QueuePosition(ctx context.Context, job *farm.Job) (QueuePosition, error) {
	none := QueuePosition{Estimate: -1}
	if job.State != farm.JobQueued || job.Queue == "" {
		return none, nil
	}
	created := "(" + micros(job.CreatedAt)
	own, err := s.countWaiting(ctx, job.Queue, created, job.Tenant)
	if err != nil {
		return none, err
	}
	others, err := s.waiting.tenants(ctx, s, job.Queue)
	if err != nil {
		return none, err
	}
	others = slices.DeleteFunc(others, func(tenant string) bool { return tenant == job.Tenant })
	ahead, err := s.countWaiting(ctx, job.Queue, created, others...)
	if err != nil {
		return none, err
	}
	position := 1 + own[0]
	for _, n := range ahead {
		position += min(n, own[0]+s.limits.QueueShare)
	}
	pace, err := s.pace(ctx, job.Queue)
	if err != nil || pace <= 0 {
		return QueuePosition{Position: position, Estimate: -1}, err
	}
	return QueuePosition{Position: position, Estimate: time.Duration(position) * pace}, nil
}

// Waiting counts the jobs that wait in a queue. The tenants that have some are remembered for a second.
func (s *Store) Waiting(ctx context.Context, queue string) (int, error) {
	tenants, err := s.waiting.tenants(ctx, s, queue)
	if err != nil {
		return 0, err
	}
	counts, err := s.countWaiting(ctx, queue, "+inf", tenants...)
	n := 0
	for _, c := range counts {
		n += c
	}
	return n, err
}

// countWaiting counts each tenant's waiting jobs of a queue that were accepted up to a score.
func (s *Store) countWaiting(ctx context.Context, queue, created string, tenants ...string) ([]int, error) {
	if len(tenants) == 0 {
		return nil, nil
	}
	pipe := s.rdb.Pipeline()
	counts := make([][2]*redis.IntCmd, len(tenants))
	for i, tenant := range tenants {
		counts[i] = [2]*redis.IntCmd{
			pipe.ZCount(ctx, s.Key(tenant, KeySlots, queue), "-inf", created), pipe.ZCount(ctx, s.Key(tenant, KeyParked, queue), "-inf", created),
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, wrap("count waiting jobs", err)
	}
	out := make([]int, len(tenants))
	for i, c := range counts {
		out[i] = int(c[0].Val() + c[1].Val())
	}
	return out, nil
}

// pace is the recent time between two starts of creates of a queue; 0 if it is not known.
func (s *Store) pace(ctx context.Context, queue string) (time.Duration, error) {
	starts, err := s.rdb.LRange(ctx, s.Key(SlotCapacity, KeyStarts, queue), -1, -1).Result()
	if err != nil || len(starts) == 0 {
		return 0, wrap("read pace of queue", err)
	}
	n, err := s.rdb.LLen(ctx, s.Key(SlotCapacity, KeyStarts, queue)).Result()
	if err != nil || n < 2 {
		return 0, wrap("read pace of queue", err)
	}
	oldest, err := strconv.ParseInt(starts[0], 10, 64)
	if err != nil {
		return 0, errors.New("read pace of queue: the list does not contain times")
	}
	return s.now().Sub(time.UnixMicro(oldest)) / time.Duration(n), nil
}

// waitingTenants remembers which tenants have jobs in a queue: usually few of many.
type waitingTenants struct {
	mu     sync.Mutex
	queues map[string]tenantsOfQueue
}

type tenantsOfQueue struct {
	tenants []string
	at      time.Time
}

func (c *waitingTenants) tenants(ctx context.Context, s *Store, queue string) ([]string, error) {
	c.mu.Lock()
	known, ok := c.queues[queue]
	c.mu.Unlock()
	if ok && time.Since(known.at) < waitingTTL {
		return slices.Clone(known.tenants), nil
	}
	all, err := s.Tenants(ctx)
	if err != nil {
		return nil, err
	}
	counts, err := s.countWaiting(ctx, queue, "+inf", all...)
	if err != nil {
		return nil, err
	}
	var waiting []string
	for i, tenant := range all {
		if counts[i] > 0 {
			waiting = append(waiting, tenant)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queues[queue] = tenantsOfQueue{tenants: waiting, at: time.Now()}
	return slices.Clone(waiting), nil
}

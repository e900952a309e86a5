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

// waitingFor is how long it is remembered which tenants have jobs in a queue.
const waitingFor = time.Second

// QueuePosition is where a job that waits for a worker stands.
type QueuePosition struct {
	Position int           // among the jobs that wait in its queue, 1 is next; 0: it does not wait in one
	Estimate time.Duration // until it begins, from how fast the queue moved lately; negative: not known
}

// QueuePosition says where a queued job that makes its sandbox stands in its queue. Tenants come to their turn one after the other,
// so those with many jobs before it count only as far as they are served before it.
func (s *Store) QueuePosition(ctx context.Context, job *farm.Job) (QueuePosition, error) {
	none := QueuePosition{Estimate: -1}
	if job.State != farm.JobQueued || job.Queue == "" {
		return none, nil
	}
	created := "(" + micros(job.CreatedAt)
	own, err := s.before(ctx, job.Queue, created, job.Tenant)
	if err != nil {
		return none, err
	}
	others, err := s.waiting.tenants(ctx, s, job.Queue)
	if err != nil {
		return none, err
	}
	others = slices.DeleteFunc(others, func(tenant string) bool { return tenant == job.Tenant })
	ahead, err := s.before(ctx, job.Queue, created, others...)
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

// Waiting is how many jobs wait in a queue. Which tenants have some is remembered for a second.
func (s *Store) Waiting(ctx context.Context, queue string) (int, error) {
	tenants, err := s.waiting.tenants(ctx, s, queue)
	if err != nil {
		return 0, err
	}
	counts, err := s.before(ctx, queue, "+inf", tenants...)
	n := 0
	for _, c := range counts {
		n += c
	}
	return n, err
}

// before counts each tenant's jobs in a queue that were accepted up to a score.
func (s *Store) before(ctx context.Context, queue, created string, tenants ...string) ([]int, error) {
	if len(tenants) == 0 {
		return nil, nil
	}
	pipe := s.rdb.Pipeline()
	counts := make([][2]*redis.IntCmd, len(tenants))
	for i, tenant := range tenants {
		counts[i] = [2]*redis.IntCmd{
			pipe.ZCount(ctx, s.key(tenant, "out", queue), "-inf", created), pipe.ZCount(ctx, s.key(tenant, "held", queue), "-inf", created),
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

// pace is the time between placements of a queue lately; 0 when it is not known.
func (s *Store) pace(ctx context.Context, queue string) (time.Duration, error) {
	begun, err := s.rdb.LRange(ctx, s.roomKey("begun:"+queue), -1, -1).Result()
	if err != nil || len(begun) == 0 {
		return 0, wrap("read pace of queue", err)
	}
	n, err := s.rdb.LLen(ctx, s.roomKey("begun:"+queue)).Result()
	if err != nil || n < 2 {
		return 0, wrap("read pace of queue", err)
	}
	oldest, err := strconv.ParseInt(begun[0], 10, 64)
	if err != nil {
		return 0, errors.New("read pace of queue: it holds no times")
	}
	return s.now().Sub(time.UnixMicro(oldest)) / time.Duration(n), nil
}

// waiters remembers which tenants have jobs in a queue: there are few as a rule, while all tenants may be many.
type waiters struct {
	mu     sync.Mutex
	queues map[string]waitersOf
}

type waitersOf struct {
	tenants []string
	at      time.Time
}

func (c *waiters) tenants(ctx context.Context, s *Store, queue string) ([]string, error) {
	c.mu.Lock()
	known, ok := c.queues[queue]
	c.mu.Unlock()
	if ok && time.Since(known.at) < waitingFor {
		return slices.Clone(known.tenants), nil
	}
	all, err := s.Tenants(ctx)
	if err != nil {
		return nil, err
	}
	counts, err := s.before(ctx, queue, "+inf", all...)
	if err != nil {
		return nil, err
	}
	var some []string
	for i, tenant := range all {
		if counts[i] > 0 {
			some = append(some, tenant)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queues[queue] = waitersOf{tenants: some, at: time.Now()}
	return slices.Clone(some), nil
}

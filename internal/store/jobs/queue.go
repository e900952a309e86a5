package jobs

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/semaphore"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
	"github.com/sandfarm/sandfarm/internal/store/sandboxes"
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
	created := "(" + db.Micros(job.CreatedAt)
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
		position += min(n, own[0]+s.Limits.QueueShare)
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
	pipe := s.Redis.Pipeline()
	counts := make([][2]*redis.IntCmd, len(tenants))
	for i, tenant := range tenants {
		counts[i] = [2]*redis.IntCmd{
			pipe.ZCount(ctx, s.Key(tenant, db.KeySlots, queue), "-inf", created), pipe.ZCount(ctx, s.Key(tenant, db.KeyParked, queue), "-inf", created),
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, db.Wrap("count waiting jobs", err)
	}
	out := make([]int, len(tenants))
	for i, c := range counts {
		out[i] = int(c[0].Val() + c[1].Val())
	}
	return out, nil
}

// pace is the recent time between two starts of creates of a queue; 0 if it is not known.
func (s *Store) pace(ctx context.Context, queue string) (time.Duration, error) {
	starts, err := s.Redis.LRange(ctx, s.Key(db.SlotCapacity, db.KeyStarts, queue), -1, -1).Result()
	if err != nil || len(starts) == 0 {
		return 0, db.Wrap("read pace of queue", err)
	}
	n, err := s.Redis.LLen(ctx, s.Key(db.SlotCapacity, db.KeyStarts, queue)).Result()
	if err != nil || n < 2 {
		return 0, db.Wrap("read pace of queue", err)
	}
	oldest, err := strconv.ParseInt(starts[0], 10, 64)
	if err != nil {
		return 0, errors.New("read pace of queue: the list does not contain times")
	}
	return s.Now().Sub(time.UnixMicro(oldest)) / time.Duration(n), nil
}

// waitingTenants remembers which tenants have jobs in a queue: usually few of many. They are read once for all callers.
type waitingTenants struct {
	turn   *semaphore.Weighted // of 1
	queues map[string]tenantsOfQueue
}

func newWaitingTenants() *waitingTenants {
	return &waitingTenants{turn: semaphore.NewWeighted(1), queues: map[string]tenantsOfQueue{}}
}

type tenantsOfQueue struct {
	tenants []string
	at      time.Time
}

func (c *waitingTenants) tenants(ctx context.Context, s *Store, queue string) ([]string, error) {
	if err := c.turn.Acquire(ctx, 1); err != nil { // who has it asks Redis
		return nil, db.Wrap("read the tenants of queue", err)
	}
	defer c.turn.Release(1)
	if known, ok := c.queues[queue]; ok && time.Since(known.at) < waitingTTL {
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
	c.queues[queue] = tenantsOfQueue{tenants: waiting, at: time.Now()}
	return slices.Clone(waiting), nil
}

// Parked counts the runnable jobs of all tenants that are parked, by queue: their tenants have as many tasks in it as the queue share allows. Since is when
// the longest waiting tenant's next job became runnable. Queues without any are left out.
func (s *Store) Parked(ctx context.Context) (map[string]farm.WaitingJobs, error) {
	tenants, err := s.Tenants(ctx)
	if err != nil || len(tenants) == 0 {
		return nil, err
	}
	pipe := s.Redis.Pipeline()
	found := make([]*redis.IntCmd, len(tenants))
	for i, tenant := range tenants {
		found[i] = pipe.Exists(ctx, s.Index(tenant, db.IndexParkedShares))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, db.Wrap("look for parked jobs", err)
	}
	out := map[string]farm.WaitingJobs{}
	for i, tenant := range tenants {
		if found[i].Val() == 0 {
			continue
		}
		r, err := s.Run(ctx, "count parked jobs", "parked", tenant)
		if err != nil {
			return nil, err
		}
		for _, row := range r.Rows(1) {
			queue := row.Text(0)
			out[queue] = out[queue].And(farm.WaitingJobs{Jobs: row.Number(1), Since: db.Moment(row.Text(2))})
		}
	}
	return out, nil
}

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

// waitingDocuments is how many records of waiting sandboxes that are documents are read at once: each is a read of the object store.
const waitingDocuments = 16

// WaitingCreates reads the sandboxes that have waited in a queue since before a moment: those with a task there, and those that their tenants' queue
// share has parked. Jobs that a tenant's max_running holds back are left out, since no worker could begin them. It asks for some counts of
// each tenant that has jobs in the queue, and reads at most the records of most sandboxes, of all tenants alike, and of records that are documents the
// first 16.
func (s *Store) WaitingCreates(ctx context.Context, queue string, before time.Time, limit int) (WaitingCreates, error) {
	tenants, err := s.waiting.tenants(ctx, s, queue)
	if err != nil || len(tenants) == 0 {
		return WaitingCreates{}, err
	}
	slices.Sort(tenants)
	each := int64(max(1, limit/len(tenants)))
	upTo := &redis.ZRangeBy{Min: "-inf", Max: "(" + db.Micros(before), Count: each}
	pipe := s.Redis.Pipeline()
	found := make([]waitingOfTenant, len(tenants))
	for i, t := range tenants {
		out, held := s.Key(t, db.KeySlots, queue), s.Key(t, db.KeyParked, queue)
		found[i] = waitingOfTenant{
			tenant: t, out: pipe.ZRangeByScore(ctx, out, upTo), held: pipe.ZRangeByScore(ctx, held, upTo),
			allOut: pipe.ZCount(ctx, out, "-inf", upTo.Max), hold: pipe.ZCount(ctx, held, "-inf", upTo.Max),
			quota: pipe.HGet(ctx, s.Index(t, db.IndexQuotas), string(farm.QuotaRunning)), active: pipe.SCard(ctx, s.Index(t, db.IndexActive)),
		}
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return WaitingCreates{}, db.Wrap("read waiting creates", err)
	}
	out, all := WaitingCreates{}, 0
	pipe = s.Redis.Pipeline()
	for i := range found {
		w := &found[i]
		held := s.mayUnpark(w)
		all += int(w.allOut.Val()) + held
		w.ids = append(w.out.Val(), w.held.Val()[:min(held, len(w.held.Val()))]...)
		w.ids = w.ids[:min(int64(len(w.ids)), each)]
		for _, id := range w.ids {
			w.sandboxOfJobs = append(w.sandboxOfJobs, pipe.HGet(ctx, s.Key(w.tenant, db.KeyJob, id), "sandbox"))
		}
	}
	if all == 0 {
		return out, nil
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return WaitingCreates{}, db.Wrap("read waiting creates", err)
	}
	documents := 0
	read := func(ctx context.Context, fields map[string]string) (*farm.Sandbox, error) {
		if db.IsReference(fields["doc"]) {
			if documents++; documents > waitingDocuments {
				return nil, nil // dropped below, and no error
			}
		}
		return sandboxes.Read(ctx, s.DB, fields)
	}
	for _, w := range found {
		ids := make([]string, 0, len(w.ids))
		for _, cmd := range w.sandboxOfJobs {
			if cmd.Val() != "" && len(out.Sandboxes)+len(ids) < limit {
				ids = append(ids, cmd.Val())
			}
		}
		boxes, err := db.Fetch(ctx, s.DB, w.tenant, db.KeySandbox, ids, read)
		if err != nil {
			return WaitingCreates{}, err
		}
		out.Sandboxes = append(out.Sandboxes, slices.DeleteFunc(boxes, func(box *farm.Sandbox) bool { return box == nil })...)
	}
	if len(out.Sandboxes) > 0 {
		out.More = max(all-len(out.Sandboxes), 0)
	}
	return out, nil
}

// mayUnpark is how many of a tenant's parked jobs its max_running would let begin.
func (s *Store) mayUnpark(w *waitingOfTenant) int {
	limit := s.Limits.TenantQuotas().Get(farm.QuotaRunning)
	if own, err := strconv.ParseFloat(w.quota.Val(), 64); err == nil {
		limit = own
	}
	if limit < 0 {
		return int(w.hold.Val())
	}
	return min(int(w.hold.Val()), max(int(limit)-int(w.active.Val()), 0))
}

// MaxPlace is how many jobs of a FIFO Wait looks at.
const MaxPlace = 1000

// Wait is what the records say about what a queued job waits for. The zero value is that of a job that does not wait.
type Wait struct {
	Position int // in its sandbox's FIFO among the jobs that wait, 1 is next; also 1 of jobs that do not wait in the FIFO; MaxPlace+1 behind these

	Before    int    // jobs that come first in the FIFO, with the one that runs; MaxPlace: so many or more
	Head      string // id of the first of them; "": there is none
	HeadKind  farm.JobKind
	HeadState farm.JobState

	Parked     bool // it gets a task when a slot of its queue share is free and max_running allows it
	Slots      int  // of its queue share that are taken
	Share      int  // slots of its queue share
	Running    int  // jobs of the tenant that count against max_running
	MaxRunning int  // negative: no bound

	Queue        string // of its task
	Node         string // of its sandbox; "": none is chosen
	SandboxState farm.SandboxState
}

// Wait reads what a queued job waits for, in one step. It is cheap: it looks at the job, the beginning of its FIFO, its sandbox, and a few counts of its tenant.
func (s *Store) Wait(ctx context.Context, job *farm.Job) (Wait, error) {
	if job.State != farm.JobQueued {
		return Wait{}, nil
	}
	r, err := s.Run(ctx, "read what a job waits for", "job_wait", job.Tenant, job.ID)
	if err != nil || r.Text(0) != "ok" {
		return Wait{}, err
	}
	f := r.Fields(1)
	number := func(name string) int { n, _ := strconv.ParseFloat(f[name], 64); return int(n) }
	return Wait{
		Position: number("position"), Before: number("before"), Head: f["head"], HeadKind: farm.JobKind(f["head_kind"]), HeadState: farm.JobState(f["head_state"]),
		Parked: f["parked"] == "1", Slots: number("slots"), Share: s.Limits.QueueShare, Running: number("running"), MaxRunning: number("max_running"),
		Queue: f["queue"], Node: f["node"], SandboxState: farm.SandboxState(f["sandbox_state"]),
	}, nil
}

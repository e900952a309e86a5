package tenants

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

// Rules for a Redis that fills up. The shares are of Redis's maxmemory.
const (
	stopsAt       = 0.85       // above it, interrupts and restarts are not accepted either: what a close and the ends of jobs write needs the rest
	fullAt        = 0.7        // above it only jobs that end or stop something are accepted, so that Redis keeps room for accepted jobs to end
	forgetAt      = 0.5        // above it finished jobs of the tenants with most are removed, so that fullAt is not reached
	forgetNewAt   = 0.6        // above it also those that ended just now, if there are other tenants
	maxUnfinished = fullAt / 2 // of the unfinished jobs and open sandboxes of one tenant, while Redis is not above forgetAt; see unfinishedLimit
)

// CheckMemory is CodeExhausted while Redis is too full for another job of a kind. A Redis without a limit, or one that does not report it, never is. most is how many
// bytes the unfinished jobs and open sandboxes of one tenant may have; 0: no bound.
func CheckMemory(ctx context.Context, d *db.DB, kind farm.JobKind) (limit int64, err error) {
	if kind == farm.KindClose {
		return 0, nil
	}
	share := fullAt
	if urgent(kind) {
		share = stopsAt
	}
	info := d.RecentMemory(ctx)
	if info.Above(share) {
		return 0, farm.Errorf(farm.CodeExhausted,
			"The farm's memory for jobs is %d %% full, so it accepts no new ones. Try again in some seconds: finished jobs of those who have most are removed first, and jobs that end give memory back.",
			int(share*100))
	}
	if urgent(kind) {
		return 0, nil
	}
	return unfinishedLimit(info), nil
}

// UnfinishedLimit is how many bytes the unfinished jobs and open sandboxes of one tenant may have now; 0: no bound.
func UnfinishedLimit(ctx context.Context, d *db.DB) int64 {
	return unfinishedLimit(d.RecentMemory(ctx))
}

// unfinishedLimit falls from maxUnfinished at forgetAt to nothing at fullAt. So tenants that take all they can never reach fullAt: n of them leave
// 1/(1+1.75n) of it to the others.
func unfinishedLimit(info db.Memory) int64 {
	if info.Limit <= 0 {
		return 0
	}
	left := min(1, (fullAt-info.Used/info.Limit)/(fullAt-forgetAt))
	return max(1, int64(maxUnfinished*info.Limit*left))
}

// UnfinishedError refuses what would take more bytes than the unfinished jobs and open sandboxes of a tenant may have.
func UnfinishedError(limit int64, used, needed float64) error {
	mib := func(bytes float64) float64 { return bytes / (1 << 20) }
	return farm.Errorf(farm.CodeExhausted,
		"Unfinished jobs, open sandboxes and the lists of artifacts of one tenant may use %.1f MiB of the farm's memory for jobs now (max_unfinished): %.1f MiB are used, and this needs %.3f MiB more. Try again when some of your jobs have finished, or cancel some, close sandboxes, or delete artifacts.",
		mib(float64(limit)), mib(used), mib(needed))
}

// urgent reports whether a job ends or stops something: no quota and no limit of a queue refuses it.
func urgent(kind farm.JobKind) bool {
	return kind == farm.KindClose || kind == farm.KindInterrupt || kind == farm.KindRestart
}

// JobMemory is what the jobs and sandboxes of a tenant have in Redis, in bytes: the lengths of their records, requests, events, lists and logs, and
// a fixed number for the keys of each (Lists: of those of artifacts). It is an estimate of Redis's memory.
type JobMemory struct {
	Unfinished int64 // of unfinished jobs, open sandboxes and those that have ended and whose container may still run: their records must stay
	Finished   int64 // of finished jobs and other sandboxes that have ended
	Lists      int64 // of artifacts, which stay when their jobs are forgotten
}

func (m JobMemory) total() int64 { return m.stays() + m.Finished }

// stays is what cannot be forgotten.
func (m JobMemory) stays() int64 { return m.Unfinished + m.Lists }

// JobMemory reads what the jobs and sandboxes of tenants have in Redis, in their order. An unknown tenant has nothing.
func (s *Store) JobMemory(ctx context.Context, tenants ...string) ([]JobMemory, error) {
	found, lists := make([]*redis.SliceCmd, len(tenants)), make([]*redis.SliceCmd, len(tenants))
	_, err := s.Redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, tenant := range tenants {
			found[i] = p.HMGet(ctx, s.Index(tenant, db.IndexMemory), "unfinished", "finished")
			lists[i] = p.HMGet(ctx, s.Index(tenant, db.IndexStored), "manifests")
		}
		return nil
	})
	if err != nil {
		return nil, db.Wrap("read the memory of jobs", err)
	}
	out := make([]JobMemory, len(tenants))
	for i, reply := range found {
		var n [3]int64
		for j, value := range append(reply.Val(), lists[i].Val()...) {
			text, _ := value.(string)
			n[j], _ = strconv.ParseInt(text, 10, 64)
		}
		out[i] = JobMemory{Unfinished: n[0], Finished: n[1], Lists: n[2]}
	}
	return out, nil
}

// maxRepair is how many jobs of a tenant one script looks at: less than a tenth of a second of Redis.
const maxRepair = 50_000

// memoryRepairArgs are the arguments of memory_repair.lua.
type memoryRepairArgs struct {
	Max int `lua:"most"`
}

// RepairJobMemory compares what is counted for a tenant's jobs and sandboxes with them, and corrects it. drift is by how much the counts were too high
// (negative: too low). A tenant with very many jobs is left as it is: checked is false then.
func (s *Store) RepairJobMemory(ctx context.Context, tenant string) (drift JobMemory, checked bool, err error) {
	r, err := s.Run(ctx, "repair the memory of jobs", "memory_repair", tenant, memoryRepairArgs{Max: maxRepair})
	if err != nil || r.Text(0) != "ok" {
		return JobMemory{}, false, err
	}
	return JobMemory{Unfinished: int64(r.Number(1)), Finished: int64(r.Number(2))}, true, nil
}

// Bounds of one ForgetFinished.
const (
	forgetStretch = 200         // jobs that one script looks at
	forgetCalls   = 50          // scripts
	forgetAfter   = time.Minute // jobs that ended later stay: callers who poll have not read them yet
	forgetNew     = time.Second // the same above forgetNewAt: a caller who waits for one reads it now
	forgetBytes   = 1 << 20     // that one script removes at least, if it must remove any: tenants with equal bytes take turns
)

// Forgotten is what ForgetFinished has removed of a tenant.
type Forgotten struct {
	Tenant  string
	Records int   // finished jobs and sandboxes that have ended
	Bytes   int64 // as JobMemory counts them
}

// ForgetFinished removes finished jobs and sandboxes that have ended while Redis uses more than half of its memory: always those that expire first of
// the tenant who has most, until that is no more than an equal share of all tenants, who therefore lose nothing to others, unless what others have that
// must stay leaves them less and Redis uses more than 60 %. Jobs whose callback is not
// delivered go after all others, and sandboxes whose container may still run, or whose jobs have not all ended, stay. What ended within the last minute stays, unless Redis uses more than 60 % and there are other tenants: a loop that fills it
// faster must not stop those. One call removes some thousands at most; the next one continues. A Redis without a limit keeps all.
func (s *Store) ForgetFinished(ctx context.Context) ([]Forgotten, error) {
	info, err := s.Memory(ctx)
	if err != nil || !info.Above(forgetAt) {
		return nil, err
	}
	tenants, err := s.Tenants(ctx)
	if err != nil {
		return nil, err
	}
	memory, err := s.JobMemory(ctx, tenants...)
	if err != nil {
		return nil, err
	}
	list := make([]*forgetting, 0, len(tenants))
	for i, tenant := range tenants {
		if memory[i].total() > 0 {
			list = append(list, &forgetting{Forgotten: Forgotten{Tenant: tenant}, JobMemory: memory[i]})
		}
	}
	share := forgetAt * info.Limit / float64(max(len(list), 1))
	freed, err := s.forgetOf(ctx, list, share, info.Used-forgetAt*info.Limit, forgetAfter)
	if err == nil && len(list) > 1 {
		_, err = s.forgetOf(ctx, list, shareOf(list, forgetAt*info.Limit), info.Used-float64(freed)-forgetNewAt*info.Limit, forgetNew)
	}
	return forgotten(list), err
}

// forgetOf removes this many bytes of finished jobs of the tenants above their share, but none that ended within the time after.
func (s *Store) forgetOf(ctx context.Context, list []*forgetting, share, bytes float64, after time.Duration) (freed int64, err error) {
	for _, f := range list {
		f.passed, f.owed, f.done = 0, false, false
	}
	needed := int64(bytes) + 1
	for range forgetCalls {
		f, second := limit(list, share)
		if f == nil || freed >= needed {
			break
		}
		goal := min(needed-freed, max(f.total()-max(second, int64(share)), forgetBytes))
		n, err := s.forget(ctx, f, goal, after)
		if err != nil {
			return freed, err
		}
		freed += n
	}
	return freed, nil
}

// shareOf is the equal share of tenants of so many bytes, once those who have more that must stay have that.
func shareOf(list []*forgetting, bytes float64) float64 {
	n := len(list)
	for _, f := range slices.SortedFunc(slices.Values(list), func(a, b *forgetting) int { return cmp.Compare(b.stays(), a.stays()) }) {
		if float64(f.stays()) <= bytes/float64(n) || n == 1 {
			break
		}
		bytes -= float64(f.stays())
		n--
	}
	return max(bytes, 0) / float64(n)
}

// forgetting is the state of a tenant in ForgetFinished.
type forgetting struct {
	Forgotten
	JobMemory

	passed int  // finished records that stay, of an index
	owed   bool // the others are gone: now those whose callback is not delivered go
	done   bool // no finished record is left that may go
}

// most finds the tenant with most bytes above the share that has finished jobs to remove, and the bytes of the next one; nil: there is none.
func limit(list []*forgetting, share float64) (first *forgetting, second int64) {
	for _, f := range list {
		switch {
		case f.done || f.Finished <= 0 || float64(f.total()) <= math.Floor(share):
		case first == nil || f.total() > first.total():
			if first != nil {
				second = first.total()
			}
			first = f
		default:
			second = max(second, f.total())
		}
	}
	return first, second
}

// memoryTrimArgs are the arguments of memory_trim.lua.
type memoryTrimArgs struct {
	Bytes          int64  `lua:"bytes"` // to be freed; 0: only what has expired is given back
	Count          int    `lua:"count"` // how many to look at
	Skip           int    `lua:"skip"`
	FinishedBefore string `lua:"finished_before"` // microseconds: jobs that finished later stay
	Owed           bool   `lua:"owed"`            // jobs whose callback is not delivered, and no others
}

// forget removes finished jobs and sandboxes of a tenant that ended longer ago than after.
func (s *Store) forget(ctx context.Context, f *forgetting, bytes int64, after time.Duration) (freed int64, err error) {
	r, err := s.Run(ctx, "forget finished jobs", "memory_trim", f.Tenant, memoryTrimArgs{
		Bytes: bytes, Count: forgetStretch, Skip: f.passed, FinishedBefore: db.Micros(s.Now().Add(-after)), Owed: f.owed,
	})
	if err != nil {
		return 0, err
	}
	jobs, freed, passed, last := r.Number(2), int64(r.Number(3)), r.Number(4), r.Text(5) == "1"
	f.Records, f.Bytes, f.Finished, f.passed = f.Records+jobs, f.Bytes+freed, f.Finished-freed, f.passed+passed
	if freed < bytes && last {
		f.done, f.owed, f.passed = f.owed, true, 0
	}
	return freed, nil
}

// forgotten lists what was removed, of the tenants with most first.
func forgotten(list []*forgetting) []Forgotten {
	var out []Forgotten
	for _, f := range list {
		if f.Records > 0 {
			out = append(out, f.Forgotten)
		}
	}
	slices.SortFunc(out, func(a, b Forgotten) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return out
}

// trimJobMemory gives back what expired records of a tenant counted.
func (s *Store) trimJobMemory(ctx context.Context, tenant string) error {
	for {
		r, err := s.Run(ctx, "give back expired jobs", "memory_trim", tenant, memoryTrimArgs{Count: trimStretch})
		if err != nil {
			return fmt.Errorf("trim the memory of jobs: %w", err)
		}
		if r.Number(1) < trimStretch {
			return nil
		}
	}
}

// trimStretch bounds one script call.
const trimStretch = 500

// Trimmed counts what Trim has removed.
type Trimmed struct {
	Entries int // of indexes, whose records had expired
	Jobs    int // finished ones beyond the bound

	Documented int // records that are gone, and whose documents were removed
}

// Trim bounds what is kept of a tenant. Records expire on their own, and each new record removes the expired ones before it from the
// indexes; Trim does the rest, for tenants that add nothing, and removes documents of records that are gone. It keeps the youngest
// Limits.MaxFinished finished jobs, and those that finished within Limits.HiddenSeconds, since a caller may wait for them.
func (s *Store) Trim(ctx context.Context, tenant string) (Trimmed, error) {
	var all Trimmed
	for _, index := range []struct {
		name db.Index
		kind db.Kind
		keep string
	}{
		{db.IndexJobs, db.KeyJob, strconv.Itoa(s.Limits.MaxFinished)}, {db.IndexSandboxes, db.KeySandbox, ""}, {db.IndexOpenSandboxes, db.KeySandbox, ""},
	} {
		n, err := s.trimIndex(ctx, tenant, index.name, index.kind, index.keep)
		all.Entries, all.Jobs = all.Entries+n.Entries, all.Jobs+n.Jobs
		if err != nil {
			return all, err
		}
	}
	if err := s.trimJobMemory(ctx, tenant); err != nil {
		return all, err
	}
	n, err := s.trimDocuments(ctx, tenant)
	all.Documented = n
	return all, err
}

// trimArgs are the arguments of trim.lua.
type trimArgs struct {
	Index          string `lua:"index"`
	Records        string `lua:"records"`         // what the keys of its records begin with
	After          string `lua:"after"`           // sequence number to start behind
	Count          int    `lua:"count"`           // how many to look at
	Keep           string `lua:"keep"`            // how many entries may stay; empty: all
	FinishedBefore string `lua:"finished_before"` // microseconds: jobs that finished later stay
}

// trimIndex removes entries of jobs until a script call finds nothing to remove: they expire in about the order in which they were made.
// Sandboxes do not, since one may live for a minute and another for days, so all of their entries are looked at.
func (s *Store) trimIndex(ctx context.Context, tenant string, index db.Index, kind db.Kind, keep string) (Trimmed, error) {
	var all Trimmed
	before := db.Micros(s.Now().Add(-time.Duration(s.Limits.HiddenSeconds) * time.Second))
	for after := "-1"; ; {
		r, err := s.Run(ctx, "trim "+string(index), "trim", tenant, trimArgs{
			Index: s.Index(tenant, index), Records: s.Key(tenant, kind, ""), After: after, Count: trimStretch, Keep: keep, FinishedBefore: before,
		})
		if err != nil {
			return all, err
		}
		n := Trimmed{Entries: r.Number(2), Jobs: r.Number(3)}
		all.Entries, all.Jobs = all.Entries+n.Entries, all.Jobs+n.Jobs
		if after = r.Text(1); after == "" || kind == db.KeyJob && n.Entries == 0 && r.Number(4) == 0 {
			return all, nil
		}
	}
}

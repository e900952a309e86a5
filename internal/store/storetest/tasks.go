package storetest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// NoTasks is for store.New: it enqueues nothing.
const NoTasks = "local function enqueueTask() end\n"

// Tasks is for store.New: it lists the jobs that are enqueued instead of making tasks, see Enqueued.
const Tasks = `local function enqueueTask(queue, id, tenant, job) redis.call('RPUSH', 'enqueued:' .. ARGV[1], job) end
`

// Enqueued lists the jobs that the scripts of a store with Tasks have enqueued since the last call, in that order. A job that was enqueued more
// than once is listed as often.
func Enqueued(t testing.TB, rdb redis.UniversalClient, prefix string) []string {
	t.Helper()
	pipe := rdb.TxPipeline()
	jobs := pipe.LRange(t.Context(), "enqueued:"+prefix, 0, -1)
	pipe.Del(t.Context(), "enqueued:"+prefix)
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	return jobs.Val()
}

// enqueued checks which jobs were enqueued since the last call.
func (b *bundle) enqueued(t *testing.T, what string, want ...*farm.Job) {
	t.Helper()
	ids := make([]string, len(want))
	for i, job := range want {
		ids[i] = job.ID
	}
	if diff := cmp.Diff(ids, Enqueued(t, b.rdb, b.prefix), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s enqueues (-want +got):\n%s", what, diff)
	}
}

// enqueueIsFenced enqueues a job as the sweep does, which may be late: only an unfinished job of that attempt whose sandbox is open gets a task.
func enqueueIsFenced(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	job := b.accept(t, Execute(box.ID)).Job
	Enqueued(t, b.rdb, b.prefix)
	enqueue := func(what string, attempt int, want bool) {
		t.Helper()
		enqueued, active, err := b.Enqueue(t.Context(), job.Ref(), attempt, 0)
		if err != nil || enqueued != want || active {
			t.Errorf("Enqueue of %s = %v, %v, %v; want %v", what, enqueued, active, err, want)
		}
		if want {
			b.enqueued(t, what, job)
		} else {
			b.enqueued(t, what)
		}
	}
	enqueue("a queued job", 0, true)
	enqueue("another attempt", 1, false)
	c := b.claim(t, job.Ref(), "w")
	enqueue("a running job", 1, true)
	enqueue("the attempt before", 0, false)
	b.finish(t, c.Job, farm.JobCompleted)
	enqueue("a finished job", 1, false)
	if _, _, err := b.Enqueue(t.Context(), farm.Ref{Tenant: Tenant, ID: "job_none"}, 0, 0); err != nil {
		t.Errorf("Enqueue of an unknown job = %v", err)
	}
	job = b.accept(t, Execute(box.ID)).Job
	Enqueued(t, b.rdb, b.prefix)
	b.rdb.HSet(t.Context(), b.prefix+"{"+Tenant+"}:sbx:"+box.ID, "state", string(farm.SandboxLost))
	enqueue("a job of a sandbox that has ended", 0, false)
}

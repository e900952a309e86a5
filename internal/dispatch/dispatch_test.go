package dispatch_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bundle is one test's dispatcher with its store and queue.
type bundle struct {
	*dispatch.Dispatcher
	store *store.Store
	queue *queue.Client
	rdb   *redis.Client
	fail  bool // what the dispatcher asks its queue fails
}

func setup(t *testing.T) *bundle {
	t.Helper()
	addr := miniredis.RunT(t).Addr()
	b := &bundle{rdb: redis.NewClient(&redis.Options{Addr: addr})}
	forQueue := redis.NewClient(&redis.Options{Addr: addr})
	forQueue.AddHook(testbed.Hook(func(cmds []redis.Cmder, next func(...redis.Cmder) error) error {
		if b.fail {
			return errors.New("cut")
		}
		return next(cmds...)
	}))
	t.Cleanup(func() { _, _ = b.rdb.Close(), forQueue.Close() })
	b.store, b.queue = store.New(b.rdb, queue.EnqueueLua(), store.Options{}), queue.NewClient(forQueue, nil)
	b.Dispatcher = dispatch.New(b.store, b.queue, farm.DefaultLimits(), nil)
	return b
}

func (b *bundle) submit(t *testing.T, a store.Accept) *farm.Job {
	t.Helper()
	out, err := b.Submit(t.Context(), a)
	testbed.Must(t, err)
	return out.Job
}

// box makes a ready sandbox on node n1 and takes its task off the queue.
func (b *bundle) box(t *testing.T) string {
	t.Helper()
	a := storetest.Create()
	b.submit(t, a)
	_, err := b.store.Claim(t.Context(), a.Job.Ref(), "w")
	testbed.Must(t, err)
	for _, to := range []farm.SandboxState{farm.SandboxStarting, farm.SandboxReady} {
		_, err := b.store.MoveSandbox(t.Context(), store.Move{Ref: farm.Ref{Tenant: storetest.Tenant, ID: a.Sandbox.ID}, To: to, Node: "n1"})
		testbed.Must(t, err)
	}
	testbed.Must(t, b.Finish(t.Context(), store.Finish{Ref: a.Job.Ref(), Attempt: 1, State: farm.JobCompleted}))
	return a.Sandbox.ID
}

func (b *bundle) enqueued(t *testing.T, name, id string, want bool) {
	t.Helper()
	has, err := b.queue.Has(t.Context(), name, id)
	testbed.Check(t, err == nil && has == want, "queue %s has task %s: %v, %v; want %v", name, id, has, err, want)
}

func (b *bundle) sweep(t *testing.T, want int) {
	t.Helper()
	n, err := b.Sweep(t.Context(), storetest.Tenant)
	testbed.Check(t, err == nil && n == want, "Sweep = %d, %v; want %d", n, err, want)
}

func (b *bundle) state(t *testing.T, ref farm.Ref, want farm.JobState) {
	t.Helper()
	job, err := b.store.Job(t.Context(), ref)
	testbed.Check(t, err == nil && job.State == want, "job = %+v, %v; want %s", job, err, want)
}

// later moves the dispatcher's clock.
func (b *bundle) later(d time.Duration) { b.SetNow(func() time.Time { return time.Now().Add(d) }) }

func TestTasksFollowTheFIFO(t *testing.T) {
	t.Parallel()
	b := setup(t)
	create := storetest.Create()
	b.submit(t, create)
	b.enqueued(t, farm.QueueCPU, create.Job.ID, true)

	box := b.box(t)
	first, second := storetest.Execute(box), storetest.Execute(box)
	second.Job.CallbackURL = "https://example.com"
	b.submit(t, first)
	b.submit(t, second)
	b.enqueued(t, "node-n1", first.Job.ID, true)
	b.enqueued(t, "node-n1", second.Job.ID, false)
	inline := b.submit(t, storetest.Read(box))
	b.enqueued(t, "node-n1", inline.ID, true)

	_, err := b.store.Claim(t.Context(), first.Job.Ref(), "w")
	testbed.Must(t, err)
	testbed.Must(t, b.Finish(t.Context(), store.Finish{Ref: first.Job.Ref(), Attempt: 1, State: farm.JobCompleted}))
	b.enqueued(t, "node-n1", second.Job.ID, true)
	b.enqueued(t, farm.QueueCallbacks, "callback-"+first.Job.ID, false)
	_, err = b.Cancel(t.Context(), second.Job.Ref())
	testbed.Must(t, err)
	b.enqueued(t, farm.QueueCallbacks, "callback-"+second.Job.ID, true)
}

func TestAcceptedWithoutTaskIsSwept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := storetest.Create()
	without := store.New(b.rdb, storetest.NoTasks, store.Options{})
	t.Cleanup(func() { _ = without.Close() })
	_, err := without.Accept(t.Context(), a)
	testbed.Must(t, err) // as if its task was lost
	b.enqueued(t, farm.QueueCPU, a.Job.ID, false)
	b.sweep(t, 0) // still young
	b.later(4 * time.Second)
	b.sweep(t, 1)
	b.enqueued(t, farm.QueueCPU, a.Job.ID, true)
	b.sweep(t, 0)
}

// A tenant may have 100,000 jobs that wait; to look at all of them every two seconds took more than half of Redis.
func TestSweepOfManyJobsRests(t *testing.T) {
	t.Parallel()
	b := setup(t)
	at := time.Now()
	b.SetNow(func() time.Time { return at })
	for _, c := range []struct {
		jobs  int
		rests bool
	}{{dispatch.SweepBatch - 1, false}, {dispatch.SweepBatch, false}, {dispatch.SweepBatch + 1, true}} {
		without := store.New(b.rdb, storetest.NoTasks, store.Options{})
		t.Cleanup(func() { _ = without.Close() })
		_, err := without.Accept(t.Context(), storetest.Create()) // as if its task was lost
		testbed.Must(t, err)
		at = at.Add(time.Hour)
		b.Looked(storetest.Tenant, c.jobs)
		b.Looked("other", c.jobs)
		if c.rests {
			b.sweep(t, 0)
			at = at.Add(time.Duration(c.jobs)*dispatch.SweepPace - 1)
			b.sweep(t, 0)
			at = at.Add(1)
		}
		b.sweep(t, 1)
	}
}

func TestCallbackWithoutQueueIsSwept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := storetest.Create()
	a.Job.CallbackURL = "https://example.com"
	b.submit(t, a)
	b.fail = true
	_, err := b.Cancel(t.Context(), a.Job.Ref())
	testbed.Must(t, err)
	b.fail = false
	b.enqueued(t, farm.QueueCallbacks, "callback-"+a.Job.ID, false)
	b.sweep(t, 1)
	b.enqueued(t, farm.QueueCallbacks, "callback-"+a.Job.ID, true)
	b.sweep(t, 0)
}

// A callback whose task was lost waited behind 200 whose receiver did not answer, for hours: each sweep looked at the oldest ones.
func TestCallbackBehindManyIsSwept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for n := range 201 {
		a := storetest.Create()
		a.Job.CallbackURL = "https://example.com"
		b.submit(t, a)
		b.fail = n == 200
		_, err := b.Cancel(t.Context(), a.Job.Ref())
		testbed.Must(t, err)
	}
	b.fail = false
	b.sweep(t, 0)
	b.sweep(t, 1)
	b.sweep(t, 0)
}

// A callback whose tries all failed is not enqueued again: the sweep used to start another round for as long as the record existed.
func TestArchivedCallbackIsNotSweptAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := storetest.Create()
	a.Job.CallbackURL = "https://example.com"
	b.submit(t, a)
	_, err := b.Cancel(t.Context(), a.Job.Ref())
	testbed.Must(t, err)
	id := "callback-" + a.Job.ID
	// As asynq does after the last try.
	keys := "asynq:{" + farm.QueueCallbacks + "}:"
	pipe := b.rdb.Pipeline()
	pipe.HSet(t.Context(), keys+"t:"+id, "state", "archived")
	pipe.LRem(t.Context(), keys+"pending", 0, id)
	pipe.ZAdd(t.Context(), keys+"archived", redis.Z{Score: 1, Member: id})
	_, err = pipe.Exec(t.Context())
	testbed.Must(t, err)
	b.sweep(t, 0)
	n := b.rdb.Exists(t.Context(), keys+"t:"+id, keys+"archived").Val()
	testbed.Check(t, n == 0, "the archived task has left %d keys", n)
	b.enqueued(t, farm.QueueCallbacks, id, false)
	left, err := b.store.Callbacks(t.Context(), a.Job.Tenant, 10)
	testbed.Require(t, err == nil && len(left) == 0, "callbacks %v, error %v", left, err)
}

// TestDeadWorkersJobIsTakenOverThenLost kills one worker after the other.
func TestDeadWorkersJobIsTakenOverThenLost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	job := b.submit(t, storetest.Execute(b.box(t)))
	b.later(time.Minute)
	for attempt, id := range []string{".1", ".2"} {
		worker := farm.Worker{ID: "w" + id}
		testbed.Must(t, b.store.Heartbeat(t.Context(), worker))
		c, err := b.store.Claim(t.Context(), job.Ref(), worker.ID)
		testbed.Require(t, err == nil && c.Job.Attempt == attempt+1, "Claim = %+v, %v", c, err)
		b.sweep(t, 0) // alive
		testbed.Must(t, b.store.RemoveWorker(t.Context(), worker.ID))
		b.sweep(t, 1)
		b.enqueued(t, "node-n1", job.ID+id, true)
		b.sweep(t, 0)
	}
	_, err := b.store.Claim(t.Context(), job.Ref(), "w.3")
	testbed.Must(t, err)
	b.sweep(t, 1)
	b.state(t, job.Ref(), farm.JobLost)
	got, err := b.store.Job(t.Context(), job.Ref())
	testbed.Check(t, err == nil && got.Error != nil && strings.Contains(got.Error.Message, "3 workers"), "lost job = %+v, %v", got, err)
	b.sweep(t, 0)
}

func TestJobsOfGoneSandboxEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.box(t)
	running, waiting := b.submit(t, storetest.Execute(box)), b.submit(t, storetest.Execute(box))
	_, err := b.store.Claim(t.Context(), running.Ref(), "dead")
	testbed.Must(t, err)
	_, err = b.store.MoveSandbox(t.Context(), store.Move{Ref: farm.Ref{Tenant: storetest.Tenant, ID: box}, To: farm.SandboxLost})
	testbed.Must(t, err)
	b.later(time.Minute)
	b.sweep(t, 2)
	b.state(t, running.Ref(), farm.JobLost)
	b.state(t, waiting.Ref(), farm.JobCanceled)
}

// A worker dies after it has ended a sandbox and before it has ended the close job: the sweep completes the close job.
func TestCloseOfADeadWorkerIsCompleted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.box(t)
	job := b.submit(t, storetest.CloseJob(box))
	_, err := b.store.Claim(t.Context(), job.Ref(), "dead")
	testbed.Must(t, err)
	_, err = b.store.MoveSandbox(t.Context(), store.Move{Ref: farm.Ref{Tenant: storetest.Tenant, ID: box}, To: farm.SandboxClosed})
	testbed.Must(t, err)
	b.later(time.Minute)
	b.sweep(t, 1)
	b.state(t, job.Ref(), farm.JobCompleted)
}

func TestCancelOfCreateEndsWaitingJobs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := storetest.Create()
	create := b.submit(t, a)
	one, two := b.submit(t, storetest.Execute(a.Sandbox.ID)), b.submit(t, storetest.Execute(a.Sandbox.ID))
	job, err := b.Cancel(t.Context(), create.Ref())
	testbed.Require(t, err == nil && job.State == farm.JobCanceled, "Cancel = %+v, %v", job, err)
	b.state(t, one.Ref(), farm.JobCanceled)
	b.state(t, two.Ref(), farm.JobCanceled)
	b.enqueued(t, farm.QueueCPU, one.ID, false)
}

func TestLeaveFIFOEnqueuesTheNextJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.box(t)
	background := storetest.Execute(box)
	background.Job.Kind = farm.KindCommand
	background.Request = &farm.Request{Command: &farm.CommandRequest{Commands: []string{"sleep 9"}, Background: true}}
	b.submit(t, background)
	next := b.submit(t, storetest.Execute(box))
	_, err := b.store.Claim(t.Context(), background.Job.Ref(), "w")
	testbed.Must(t, err)
	b.enqueued(t, "node-n1", next.ID, false)
	testbed.Must(t, b.store.LeaveFIFO(t.Context(), background.Job.Ref(), 1))
	b.enqueued(t, "node-n1", next.ID, true)
}

// TestRequeuesDoNotCountAsCrashes requeues a create more often than it may crash, then loses its task.
func TestRequeuesDoNotCountAsCrashes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := storetest.Create()
	job := b.submit(t, a)
	for attempt := 1; attempt <= 6; attempt++ {
		c, err := b.store.Claim(t.Context(), job.Ref(), "w")
		testbed.Require(t, err == nil && c.Job.Attempt == attempt, "Claim = %+v, %v", c, err)
		testbed.Must(t, b.store.Requeue(t.Context(), job.Ref(), store.Requeue{Attempt: attempt}))
		b.enqueued(t, farm.QueueCPU, fmt.Sprintf("%s.%d", job.ID, attempt), true)
	}
	b.later(time.Minute)
	b.sweep(t, 0) // its task exists
	testbed.Must(t, b.rdb.Del(t.Context(), "asynq:{cpu}:t:"+job.ID+".6").Err())
	b.sweep(t, 1)
	b.enqueued(t, farm.QueueCPU, job.ID+".6", true)
	_, err := b.store.Claim(t.Context(), job.Ref(), "dead")
	testbed.Must(t, err)
	b.sweep(t, 1) // taken over, not lost: six attempts do not count as crashes
	b.state(t, job.Ref(), farm.JobRunning)
}

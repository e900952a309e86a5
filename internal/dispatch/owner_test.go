package dispatch_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// beating is a worker that sends heartbeats when the test says so.
type beating struct {
	b *bundle
	w farm.Worker
}

func (b *bundle) beating(t *testing.T, id string) *beating {
	t.Helper()
	w := &beating{b: b, w: farm.Worker{ID: id, Node: "n1", Jobs: map[string]int{}}}
	w.beat(t)
	return w
}

// beat sends a heartbeat.
func (w *beating) beat(t *testing.T) {
	t.Helper()
	w.w.Beat++
	testbed.Must(t, w.b.store.Heartbeat(t.Context(), w.w))
}

// A claim whose answer was lost leaves a running job that its worker, which is alive, does not have. After two heartbeats of all workers
// without it any worker can claim it. A job that is dropped each time ends as lost, after as many tries as one that kills its workers: it
// used to go on for ever.
func TestJobThatItsWorkerDoesNotHaveIsFreed(t *testing.T) {
	t.Parallel()
	for _, dropped := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(dropped), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			job := b.submit(t, storetest.Execute(b.box(t)))
			one, two := b.beating(t, "w1"), b.beating(t, "w2")
			b.later(time.Minute)
			for attempt := 1; attempt <= dropped; attempt++ {
				_, err := b.store.Claim(t.Context(), job.Ref(), "w1")
				testbed.Must(t, err) // its answer is lost
				b.sweep(t, 0)
				one.beat(t)
				one.beat(t)
				b.sweep(t, 0) // two has sent none: Redis may have been away for everybody
				two.beat(t)
				b.sweep(t, 0)
				two.beat(t)
				b.sweep(t, 1)
				if attempt == 3 {
					got, err := b.store.Job(t.Context(), job.Ref())
					if err != nil || got.State != farm.JobLost || !strings.Contains(got.Error.Message, "3 workers died while they ran this job, or dropped it") {
						t.Fatalf("after 3 tries the job is %+v, %v", got, err)
					}
					return
				}
				b.enqueued(t, "node-n1", fmt.Sprintf("%s.%d", job.ID, attempt), true)
				r, err := b.store.Route(t.Context(), job.Ref())
				if err != nil || r.State != farm.JobRunning || r.Worker == "w1" || r.Attempt != attempt || r.GracefulRequeues != 0 {
					t.Fatalf("freed job: %+v, %v", r, err)
				}
				b.sweep(t, 0) // it is in its queue
			}
			c, err := b.store.Claim(t.Context(), job.Ref(), "w2")
			testbed.Require(t, err == nil && c.Job.Attempt == dropped+1, "Claim = %+v, %v", c, err)
			two.w.Jobs[job.ID] = dropped + 1
			for range 3 {
				one.beat(t)
				two.beat(t)
				b.sweep(t, 0)
			}
			b.state(t, job.Ref(), farm.JobRunning)
		})
	}
}

// A job that a worker lists, or is about to claim, is left to it.
func TestHeldJobsAreNotFreed(t *testing.T) {
	t.Parallel()
	for what, holds := range map[string]func(job string) map[string]int{
		"listed":        func(job string) map[string]int { return map[string]int{job: 1} },
		"being claimed": func(job string) map[string]int { return map[string]int{job: 0} },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			job := b.submit(t, storetest.Execute(b.box(t)))
			b.later(time.Minute)
			_, err := b.store.Claim(t.Context(), job.Ref(), "w1")
			testbed.Must(t, err)
			one := b.beating(t, "w1")
			one.w.Jobs = holds(job.ID)
			for range 5 {
				one.beat(t)
				b.sweep(t, 0)
			}
			r, err := b.store.Route(t.Context(), job.Ref())
			testbed.Check(t, err == nil && r.Worker == "w1", "Route = %+v, %v", r, err)
		})
	}
}

// A worker that lists an attempt that another one has taken over does not have the job.
func TestListOfAnOldAttemptDoesNotCount(t *testing.T) {
	t.Parallel()
	b := setup(t)
	job := b.submit(t, storetest.Execute(b.box(t)))
	b.later(time.Minute)
	for range 2 {
		_, err := b.store.Claim(t.Context(), job.Ref(), "w1")
		testbed.Must(t, err)
	}
	one := b.beating(t, "w1")
	one.w.Jobs[job.ID] = 1
	b.sweep(t, 0)
	one.beat(t)
	one.beat(t)
	b.sweep(t, 1)
}

// A sweep that began before Redis went away reads the registrations when Redis is back, and all have expired. It takes nobody for dead.
func TestSlowSweepTakesNobodyForDead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	job := b.submit(t, storetest.Execute(b.box(t)))
	_, err := b.store.Claim(t.Context(), job.Ref(), "w1")
	testbed.Must(t, err)
	now := time.Now().Add(time.Minute)
	b.SetNow(func() time.Time { now = now.Add(store.HeartbeatTTL); return now })
	b.sweep(t, 0)
	b.enqueued(t, "node-n1", fmt.Sprintf("%s.%d", job.ID, 1), false)
	b.later(time.Minute)
	b.sweep(t, 1)
	b.enqueued(t, "node-n1", fmt.Sprintf("%s.%d", job.ID, 1), true)
}

// A heartbeat that was on its way while the job was claimed does not have it. The worker gets time for two more.
func TestFreshClaimIsNotFreed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	job := b.submit(t, storetest.Execute(b.box(t)))
	one := b.beating(t, "w1")
	b.later(time.Minute)
	_, err := b.store.Claim(t.Context(), job.Ref(), "w1")
	testbed.Must(t, err)
	b.sweep(t, 0)
	one.beat(t) // made before the claim
	b.sweep(t, 0)
	one.w.Jobs[job.ID] = 1
	for range 3 {
		one.beat(t)
		b.sweep(t, 0)
	}
}

// A dequeue whose answer was lost leaves a task that is active, while no worker has its job. It gets a second task.
func TestTaskLostOnItsWayIsReplaced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := storetest.Create()
	b.submit(t, a)
	one := b.beating(t, "w1")
	testbed.Must(t, b.rdb.HSet(t.Context(), "asynq:{cpu}:t:"+a.Job.ID, "state", "active").Err())
	b.later(10 * time.Second)
	b.sweep(t, 0) // the task may still be on its way
	one.w.Jobs[a.Job.ID] = 0
	one.beat(t)
	one.beat(t)
	b.sweep(t, 0) // it has arrived, and is being claimed
	delete(one.w.Jobs, a.Job.ID)
	one.beat(t)
	b.sweep(t, 0)
	one.beat(t)
	one.beat(t)
	b.sweep(t, 1)
	for n := 1; n <= 5; n++ { // the answer with the next one is lost as well
		id := fmt.Sprintf("%s.again%d", a.Job.ID, n)
		b.enqueued(t, farm.QueueCPU, id, true)
		b.sweep(t, 0)
		testbed.Must(t, b.rdb.HSet(t.Context(), "asynq:{cpu}:t:"+id, "state", "active").Err())
		b.sweep(t, 0)
		one.beat(t)
		b.sweep(t, 0)
		one.beat(t)
		b.sweep(t, min(1, 5-n)) // asynq finds the sixth
	}
	b.enqueued(t, farm.QueueCPU, a.Job.ID+".again6", false)
}

// A job that was put back waits at a worker by a task of another name. It got a second one from the sweep.
func TestJobThatWaitsAtAWorkerGetsNoSecondTask(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := storetest.Create()
	b.submit(t, a)
	one := b.beating(t, "w1")
	take := func(id string) {
		t.Helper()
		b.enqueued(t, farm.QueueCPU, id, true)
		testbed.Must(t, b.rdb.HSet(t.Context(), "asynq:{cpu}:t:"+id, "state", "active").Err())
	}
	take(a.Job.ID)
	testbed.Must(t, b.PutBack(t.Context(), a.Job.Ref()))
	testbed.Must(t, b.rdb.Del(t.Context(), "asynq:{cpu}:t:"+a.Job.ID).Err()) // it has ended
	take(a.Job.ID + ".again1")
	one.w.Jobs[a.Job.ID] = 0
	b.later(10 * time.Second)
	for range 3 {
		one.beat(t)
		b.sweep(t, 0)
	}
	delete(one.w.Jobs, a.Job.ID) // it is gone without a trace
	one.beat(t)
	b.sweep(t, 1)
	b.enqueued(t, farm.QueueCPU, a.Job.ID, true)
}

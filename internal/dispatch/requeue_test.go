package dispatch_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A create that claimed a member of a node's pool waits for that node, and moves to any node when that one has no worker left.
func TestStrandedCreateMovesToAnotherNode(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := storetest.Create()
	a.Job.Queue, a.Sandbox.Node = farm.NodeQueue("n1"), "n1"
	job := b.submit(t, a)
	b.SetNow(func() time.Time { return time.Now().Add(time.Minute) })
	testbed.Must(t, b.store.Heartbeat(t.Context(), farm.Worker{ID: "w1", Node: "n1"}))
	n, err := b.Sweep(t.Context(), storetest.Tenant)
	testbed.Check(t, n == 0 && err == nil, "while its node has a worker: Sweep = %d, %v", n, err)
	testbed.Must(t, b.store.RemoveWorker(t.Context(), "w1"))
	testbed.Must(t, b.store.Heartbeat(t.Context(), farm.Worker{ID: "w2", Node: "n2"}))
	for want := range 2 { // once; then it is in the right queue
		n, err := b.Sweep(t.Context(), storetest.Tenant)
		testbed.Check(t, n == 1-want && err == nil, "round %d: Sweep = %d, %v", want, n, err)
	}
	state, err := b.queue.State(t.Context(), farm.QueueCPU, job.ID)
	testbed.Check(t, err == nil && state == "pending", "its task on the queue of all nodes is %q, %v", state, err)
	c, err := b.store.Claim(t.Context(), job.Ref(), "w2")
	testbed.Check(t, err == nil && c.Sandbox.Node == "", "claim = %+v, %v", c, err)
}

// A create whose worker died with its engine moves to another node once no worker is left on its own; one whose node has another
// worker stays, and so does one whose sandbox is ready.
func TestCreateOfADeadNodeMovesToAnother(t *testing.T) {
	t.Parallel()
	b := setup(t)
	begin := func(state ...farm.SandboxState) (farm.Ref, farm.Ref) {
		t.Helper()
		a := storetest.Create()
		a.Job.Queue = "gpu"
		job, box := b.submit(t, a).Ref(), farm.Ref{Tenant: storetest.Tenant, ID: a.Sandbox.ID}
		_, err := b.store.Claim(t.Context(), job, "w1")
		testbed.Must(t, err)
		for _, to := range state {
			_, err := b.store.MoveSandbox(t.Context(), store.Move{Ref: box, To: to, Node: "n1"})
			testbed.Must(t, err)
		}
		return job, box
	}
	job, box := begin(farm.SandboxStarting)
	made, _ := begin(farm.SandboxStarting, farm.SandboxReady)
	b.later(time.Minute)
	for _, w := range []farm.Worker{{ID: "w2", Node: "n2"}, {ID: "w3", Node: "n1"}} {
		testbed.Must(t, b.store.Heartbeat(t.Context(), w))
	}
	b.sweep(t, 2) // its node's other worker is to take it over
	s, err := b.store.Sandbox(t.Context(), box)
	testbed.Check(t, err == nil && s.Node == "n1" && s.Generation == 1, "while its node has a worker: %+v, %v", s, err)
	testbed.Must(t, b.store.RemoveWorker(t.Context(), "w3"))
	b.sweep(t, 1)
	b.sweep(t, 0)
	b.enqueued(t, "gpu", job.ID+".1", true)
	c, err := b.store.Claim(t.Context(), job, "w2")
	if err != nil || c.Job.Attempt != 2 || c.Sandbox.State != farm.SandboxQueued || c.Sandbox.Node != "" || c.Sandbox.Generation != 2 {
		t.Errorf("claim = %+v, %v", c, err)
	}
	r, err := b.store.Route(t.Context(), made)
	testbed.Check(t, err == nil && r.Node == "n1" && r.SandboxState == farm.SandboxReady, "the create whose sandbox is ready: %+v, %v", r, err)
}

// A job that its worker leaves is enqueued at once and continues under a new attempt. It can be left any number of
// times: orderly stops of workers do not count as crashes.
func TestRequeueOfABegunJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	job := b.submit(t, storetest.Execute(b.box(t)))
	b.later(time.Minute)
	for attempt := 1; attempt <= 6; attempt++ {
		worker := farm.Worker{ID: fmt.Sprint("w", attempt)}
		testbed.Must(t, b.store.Heartbeat(t.Context(), worker))
		c, err := b.store.Claim(t.Context(), job.Ref(), worker.ID)
		testbed.Require(t, err == nil && c.Job.Attempt == attempt, "Claim = %+v, %v", c, err)
		for range 2 { // the second call imitates a retry after a lost answer
			testbed.Must(t, b.store.Requeue(t.Context(), job.Ref(), store.Requeue{Attempt: attempt, Begun: true}))
		}
		b.enqueued(t, "node-n1", fmt.Sprintf("%s.%d", job.ID, attempt), true)
		b.sweep(t, 0)
		r, err := b.store.Route(t.Context(), job.Ref())
		if err != nil || r.State != farm.JobRunning || r.Attempt != attempt || r.GracefulRequeues != attempt {
			t.Fatalf("Route = %+v, %v", r, err)
		}
		err = b.store.Requeue(t.Context(), job.Ref(), store.Requeue{Attempt: attempt - 1, Begun: true})
		testbed.Check(t, errors.Is(err, store.ErrFenced), "Requeue by another attempt = %v, want ErrFenced", err)
	}
	err := b.store.Requeue(t.Context(), farm.Ref{Tenant: storetest.Tenant, ID: "job_none"}, store.Requeue{Attempt: 1, Begun: true})
	testbed.Check(t, farm.CodeOf(err) == farm.CodeNotFound, "Requeue of an unknown job = %v", err)
}

// The depth of a queue counts its tasks and its parked jobs; its age is that of the oldest of both.
func TestDepthsCountParkedJobs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	share := farm.DefaultLimits().QueueShare
	for range share {
		b.submit(t, storetest.Create())
	}
	b.SetNow(func() time.Time { return time.Now().Add(time.Hour) })
	depth := func() farm.QueueDepth {
		t.Helper()
		depths, err := b.Depths(t.Context())
		testbed.Require(t, err == nil && len(depths) == 1 && depths[0].Name == farm.QueueCPU, "Depths = %+v, %v", depths, err)
		return depths[0]
	}
	if d := depth(); d.Depth != share || d.OldestSeconds > 1800 { // the queue itself uses the real clock
		t.Errorf("nothing is parked: %+v", d)
	}
	for range 3 {
		b.submit(t, storetest.Create())
	}
	b.SetNow(func() time.Time { return time.Now().Add(time.Hour + 2*time.Second) }) // answers are cached for a second of the dispatcher's clock
	d := depth()
	testbed.Check(t, d.Depth == share+3 && d.OldestSeconds >= 3600 && d.OldestSeconds <= 3700, "three are parked: %+v", d)
}

// Jobs that wait in a worker for a slot are neither running nor forgotten.
func TestDepthsCountJobsThatWaitInAWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.submit(t, storetest.Create())
	since := time.Now().Add(-time.Hour)
	waiting := map[string]farm.WaitingJobs{farm.QueueCPU: {Jobs: 2, Since: since}, "node-n1": {Jobs: 1, Since: since}}
	testbed.Must(t, b.store.Heartbeat(t.Context(), farm.Worker{ID: "w", Waiting: waiting}))
	depths, err := b.Depths(t.Context())
	if err != nil || len(depths) != 2 || depths[0].Name != farm.QueueCPU || depths[0].Depth != 3 || depths[0].OldestSeconds < 3600 ||
		depths[1].Name != "node-n1" || depths[1].Depth != 1 || depths[1].Running != 0 {
		t.Errorf("Depths = %+v, %v", depths, err)
	}
}

// A receiver that takes no callbacks keeps Limits.MaxCallbacks of them, with their tasks; the oldest are given up.
func TestCallbacksBeyondTheLimitAreGivenUp(t *testing.T) {
	t.Parallel()
	const limit = 3
	b := setup(t)
	limits := farm.DefaultLimits()
	limits.MaxCallbacks = limit
	b.Dispatcher = dispatch.New(b.store, b.queue, limits, nil)
	var ids []string
	for n := 1; n <= limit+2; n++ {
		a := storetest.Create()
		a.Job.CallbackURL = "https://example.com"
		b.submit(t, a)
		_, err := b.Cancel(t.Context(), a.Job.Ref())
		testbed.Must(t, err)
		ids = append(ids, a.Job.ID)
		if n == limit+1 {
			continue // so that two are beyond it at once
		}
		dropped, err := b.DropCallbacks(t.Context(), storetest.Tenant)
		want := max(0, n-limit)
		testbed.Require(t, err == nil && dropped == want, "with %d callbacks %d were given up, %v; want %d", n, dropped, err, want)
	}
	for i, id := range ids {
		b.enqueued(t, farm.QueueCallbacks, "callback-"+id, i >= 2)
	}
	left, err := b.store.Callbacks(t.Context(), storetest.Tenant, 10)
	testbed.Check(t, err == nil && len(left) == limit && left[0].ID == ids[2], "callbacks left: %v, %v", left, err)
	b.sweep(t, 0) // and they are not enqueued again
}

// Only cells that wait are canceled, of one session or of all, and never other jobs.
func TestAbortCells(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := b.box(t)
	cell := func(session string) *farm.Job {
		a := storetest.Execute(box)
		if session != "" {
			a.Request.Execute.Cell = &farm.Cell{Session: session, Message: "m"}
		}
		a.Job.Redacted = a.Request
		return b.submit(t, a)
	}
	running, mine, plain, other := cell("mine"), cell("mine"), cell(""), cell("other")
	_, err := b.store.Claim(t.Context(), running.Ref(), "w")
	testbed.Must(t, err)
	sandbox := farm.Ref{Tenant: storetest.Tenant, ID: box}
	states := func(want ...farm.JobState) {
		t.Helper()
		for i, job := range []*farm.Job{running, mine, plain, other} {
			b.state(t, job.Ref(), want[i])
		}
	}
	testbed.Must(t, b.AbortCells(t.Context(), sandbox, "mine"))
	states(farm.JobRunning, farm.JobCanceled, farm.JobQueued, farm.JobQueued)
	testbed.Must(t, b.AbortCells(t.Context(), sandbox, ""))
	states(farm.JobRunning, farm.JobCanceled, farm.JobQueued, farm.JobCanceled)
	_, err = b.store.Finish(t.Context(), store.Finish{Ref: running.Ref(), Attempt: 1, State: farm.JobCompleted})
	testbed.Must(t, err)
	b.enqueued(t, "node-n1", plain.ID, true)
}

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

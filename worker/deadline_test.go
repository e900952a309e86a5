package worker

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// deadlinesOf connects a worker to an agent that records the deadlines it gets, in seconds from now.
func deadlinesOf(t *testing.T, w *Worker, box farm.Ref) func() []int64 {
	t.Helper()
	var mu sync.Mutex
	var got []int64
	agent := workertest.Hostile(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		ms, err := strconv.ParseInt(r.URL.Query().Get("in_ms"), 10, 64)
		testbed.Check(t, err == nil && r.Method == http.MethodPut && r.URL.Path == "/v1/deadline", "asked for %s %s", r.Method, r.URL)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, (ms+999)/1000)
	}))
	join(t, w, box, func() *client.Client { return agent })
	return func() []int64 {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(got)
	}
}

// within reports whether n deadlines came and the last is within a minute of the given seconds.
func within(got []int64, n int, seconds int64) bool {
	return len(got) == n && got[n-1] <= seconds && got[n-1] > seconds-60
}

func TestAgentGetsAChangedDeadlineAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	got := deadlinesOf(t, w, box)
	b.watchCancels(w)
	ttl, name := 7200, "new"
	_, err := b.Store.UpdateSandbox(t.Context(), box, store.SandboxPatch{Name: &name})
	testbed.Must(t, err)
	_, err = b.Store.UpdateSandbox(t.Context(), box, store.SandboxPatch{TTLSeconds: &ttl})
	testbed.Must(t, err)
	testbed.Until(t, "the agent has the deadline", func() bool { return within(got(), 1, 7200) })
}

// Every worker of the farm learns of every change of a sandbox, and a record may be a document in the object store.
func TestWorkersOfOtherNodesReadNoRecords(t *testing.T) {
	t.Parallel()
	b := setup(t)
	read := 0
	b.deps.Store = b.StoreBehind(testbed.Hook(func(cmds []redis.Cmder, next func(...redis.Cmder) error) error {
		for _, cmd := range cmds {
			if cmd.Name() == "hgetall" {
				read++
			}
		}
		return next(cmds...)
	}))
	w, here := b.worker(), b.Ready()
	_, queued := b.Creation(farm.KindCreate)
	got := deadlinesOf(t, w, here)
	read = 0
	w.sendDeadline(queued)
	testbed.Check(t, read == 0, "%d records are read for a sandbox that is not here", read)
	w.sendDeadline(here)
	testbed.Check(t, read == 1 && within(got(), 1, 3600), "%d records are read for one that is, and its agent got %v", read, got())
}

// Changes that come while one takes effect are one more, however many: each started a goroutine that waited for the agent.
func TestChangesOfASandboxTakeEffectOneAfterAnother(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	got := deadlinesOf(t, w, box)
	begun := w.newDeadlines.begin(box)
	b.watchCancels(w)
	for ttl := 7200; ttl < 7210; ttl++ {
		_, err := b.Store.UpdateSandbox(t.Context(), box, store.SandboxPatch{TTLSeconds: &ttl})
		testbed.Must(t, err)
	}
	again := func() bool {
		w.newDeadlines.mu.Lock()
		defer w.newDeadlines.mu.Unlock()
		return w.newDeadlines.again[box]
	}
	testbed.Until(t, "a change waits", again)
	testbed.Check(t, begun && len(got()) == 0, "%d deadlines were sent beside the change before", len(got()))
	testbed.Check(t, w.newDeadlines.more(box) && !again(), "the changes that waited are not one")
}

// The reconciler sends deadlines whose message was missed, each once.
func TestReconcilerSendsDeadlines(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	b.Fake.Put(box.ID, true)
	got := deadlinesOf(t, w, box)
	testbed.Must(t, w.reconciler.Run(t.Context())) // the fake's containers have no deadline
	testbed.Until(t, "the agent has the deadline", func() bool { return within(got(), 1, 3600) })
	testbed.Must(t, w.reconciler.Run(t.Context()))
	ttl := 60 * 60 * 24
	_, err := b.Store.UpdateSandbox(t.Context(), box, store.SandboxPatch{TTLSeconds: &ttl})
	testbed.Must(t, err)
	testbed.Until(t, "the agent has the change", func() bool {
		testbed.Must(t, w.reconciler.Run(t.Context())) // a run during another round of messages leaves them to the next run
		return within(got(), 2, 60*60*24)
	})
	testbed.Must(t, w.reconciler.Run(t.Context()))
	w.node.Close() // the last round has ended
	testbed.Diff(t, "deadlines of the agent", 2, len(got()))
}

// A sandbox that its agent ended at the deadline is expired, not lost, whichever part notices first.
func TestSandboxThatEndedItselfIsExpired(t *testing.T) {
	t.Parallel()
	for name, notice := range map[string]func(ctx context.Context, w *Worker, job farm.Ref) error{
		"Reconciler": func(ctx context.Context, w *Worker, _ farm.Ref) error { return w.reconciler.Run(ctx) },
		"Job":        func(ctx context.Context, w *Worker, job farm.Ref) error { return w.handle(ctx, workertest.Task(job)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			w, box := b.worker(), b.Ready()
			b.Fake.Put(box.ID, false)
			job := b.Command(box, "true")
			w.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
			testbed.Must(t, notice(t.Context(), w, job))
			testbed.Must(t, w.reconciler.Run(t.Context())) // removes what is left
			if s := b.Sandbox(box); s.State != farm.SandboxExpired || s.Reason != "Its time was up." || b.Fake.Has(box.ID) {
				t.Errorf("sandbox is %s (%s), container there: %v", s.State, s.Reason, b.Fake.Has(box.ID))
			}
			b.JobIs(job, farm.JobCanceled)
		})
	}
}

// The message about a cancel may be here before the answer to the claim, which was made before the cancel.
func TestCancelDuringTheClaim(t *testing.T) {
	t.Parallel()
	js := activeJobs{byID: map[string]*activeJob{}}
	ref := farm.Ref{Tenant: "acme", ID: "job_1"}
	j := js.reserve(ref)
	js.requestCancel(ref.ID)
	js.claimed(j, &store.Claim{Job: &farm.Job{Tenant: "acme", ID: "job_1"}})
	testbed.Check(t, j.task().Canceled(), "the cancel is lost")
	again := js.reserve(ref)
	testbed.Check(t, again == nil, "the job was reserved twice")
	js.remove(ref.ID)
	js.requestCancel(ref.ID) // of a job that ended: nothing happens
	next := js.reserve(ref)
	testbed.Check(t, next != nil && !next.task().Canceled(), "the cancel of an ended job was kept")
}

// A claim reached Redis, and its answer was lost, as while Redis was away. The record says that the worker runs the job, and the worker lives:
// a task that is delivered to the other worker of the node is dropped. The job used to hang there, and blocked its sandbox. Now it is free
// when both workers have sent two heartbeats without it, and the code runs once.
func TestJobThatNobodyHasIsContinued(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second, box := b.worker(), b.worker(), b.Ready()
	hook := &lostAnswer{}
	first.store = b.StoreBehind(testbed.Hook(hook.hook))
	b.agent(box, first, second)
	beat := func() {
		t.Helper()
		for _, w := range []*Worker{first, second} {
			w.registered.Store(true)
			testbed.Must(t, w.beat(t.Context()))
		}
	}
	beat()
	job, behind := b.Command(box, `echo x >> runs; cat runs`), b.Command(box, `echo behind`)
	hook.arg = job.ID
	err := first.handle(t.Context(), workertest.Task(job))
	testbed.Require(t, errors.Is(err, net.ErrClosed), "the worker whose claim was not answered gave %v", err)
	got := b.done(second, job, farm.JobRunning)
	testbed.Require(t, got.Worker == first.id, "the job is %s, of worker %s", got.State, got.Worker)
	for range 3 {
		beat()
		_, err := b.Dispatch.Sweep(t.Context(), workertest.Tenant)
		testbed.Must(t, err)
	}
	if got := b.Job(job); got.State != farm.JobRunning || got.Worker == first.id || got.GracefulRequeues != 0 {
		t.Fatalf("the job is %s, of worker %s, %d attempts do not count as crashes", got.State, got.Worker, got.GracefulRequeues)
	}
	got = b.done(second, job, farm.JobCompleted)
	testbed.Require(t, got.Result.Command.Commands[0].Stdout == "x\n", "the job is %s, result %+v", got.State, got.Result)
	b.done(second, behind, farm.JobCompleted)
}

// A heartbeat lists the jobs that the worker runs, with their attempts, and those that it is claiming.
func TestHeartbeatListsTheJobs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, box := b.worker(), b.Ready()
	w.registered.Store(true)
	claim := b.Claim(b.Command(box, "true"), w.id)
	claiming := farm.Ref{Tenant: workertest.Tenant, ID: "job_claiming"}
	w.jobs.claimed(w.jobs.reserve(claim.Job.Ref()), claim)
	w.jobs.reserve(claiming)
	for beat := range uint64(3) {
		testbed.Must(t, w.beat(t.Context()))
		workers, err := b.Store.Workers(t.Context())
		testbed.Must(t, err)
		want := map[string]int{claim.Job.ID: 1, claiming.ID: 0}
		if len(workers) != 1 || workers[0].Beat != beat+1 || !maps.Equal(workers[0].Jobs, want) {
			t.Errorf("workers %+v, want heartbeat %d with %v", workers, beat+1, want)
		}
	}
}

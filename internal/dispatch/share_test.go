//go:build integration

package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// crew is a farm without engines: workers claim jobs, do what the test says and end them.
type crew struct {
	*dispatch.Dispatcher
	store *store.Store
	begun chan *farm.Job // in the order in which they were claimed
	ended chan *farm.Job
}

// newCrew starts workers with a number of slots each.
func newCrew(t *testing.T, workers, slots int, do func(ctx context.Context, job *farm.Job), change ...func(worker string, cfg *queue.ServerConfig)) *crew {
	t.Helper()
	server := testbed.NewRedis(t)
	rdb := server.Client(t)
	c := &crew{store: store.New(rdb, queue.EnqueueLua(), store.Options{}), begun: make(chan *farm.Job, 10_000), ended: make(chan *farm.Job, 10_000)}
	c.Dispatcher = dispatch.New(c.store, queue.NewClient(rdb, nil), farm.DefaultLimits(), nil)
	for i := range workers {
		id := fmt.Sprintf("wrk_%d", i)
		testbed.Must(t, c.store.Heartbeat(t.Context(), farm.Worker{ID: id}))
		cfg := queue.ServerConfig{
			Queues: map[string]int{farm.QueueCPU: 1, "node-n1": 4}, Concurrency: slots, ShutdownTimeout: 100 * time.Millisecond,
			Handler: func(ctx context.Context, task queue.Task) error { return c.handle(ctx, t, task, id, do) },
		}
		for _, f := range change {
			f(id, &cfg)
		}
		s, err := queue.NewServer(server.Dial, cfg)
		testbed.Must(t, err)
		testbed.Must(t, s.Start())
		t.Cleanup(s.Stop)
	}
	return c
}

func (c *crew) handle(ctx context.Context, t *testing.T, task queue.Task, worker string, do func(context.Context, *farm.Job)) error {
	claim, err := c.store.Claim(ctx, task.Ref, worker)
	if errors.Is(err, store.ErrNotClaimable) {
		return nil
	}
	if err != nil {
		return err
	}
	c.begun <- claim.Job
	do(ctx, claim.Job)
	if err := c.Finish(ctx, store.Finish{Ref: task.Ref, Attempt: claim.Job.Attempt, State: farm.JobCompleted}); err != nil {
		testbed.Check(t, ctx.Err() != nil, "Finish = %v", err)
		return nil
	}
	c.ended <- claim.Job
	return nil
}

// box makes a sandbox that is ready on the workers' node.
func (c *crew) box(t *testing.T, tenant string) string {
	t.Helper()
	a := storetest.Create()
	a.Job.Tenant, a.Sandbox.Tenant = tenant, tenant
	a.Job.Queue = "setup" // which no worker serves
	_, err := c.store.Accept(t.Context(), a)
	testbed.Must(t, err)
	claim, err := c.store.Claim(t.Context(), a.Job.Ref(), "wrk_setup")
	testbed.Must(t, err)
	for _, to := range []farm.SandboxState{farm.SandboxStarting, farm.SandboxReady} {
		_, err = c.store.MoveSandbox(t.Context(), store.Move{Ref: farm.Ref{Tenant: tenant, ID: a.Sandbox.ID}, To: to, Node: "n1"})
		testbed.Must(t, err)
	}
	_, err = c.store.Finish(t.Context(), store.Finish{Ref: a.Job.Ref(), Attempt: claim.Job.Attempt, State: farm.JobCompleted})
	testbed.Must(t, err)
	return a.Sandbox.ID
}

func (c *crew) submit(t *testing.T, tenant string, a store.Accept) *farm.Job {
	t.Helper()
	a.Job.Tenant = tenant
	if a.Sandbox != nil {
		a.Sandbox.Tenant = tenant
	}
	out, err := c.Submit(t.Context(), a)
	testbed.Must(t, err)
	return out.Job
}

func await(t *testing.T, jobs <-chan *farm.Job) *farm.Job {
	t.Helper()
	select {
	case job := <-jobs:
		return job
	case <-time.After(60 * time.Second):
		t.Fatal("no job came within a minute")
		return nil
	}
}

// TestFloodOfOneTenantHardlyDelaysAnother queues a thousand creations of one tenant, and a thousand executions in as many
// sandboxes, then one job of another tenant: few of the first tenant's jobs run before it. In the end all jobs have run.
func TestFloodOfOneTenantHardlyDelaysAnother(t *testing.T) {
	t.Parallel()
	const flood, few = 1000, 20
	for name, submit := range map[string]func(t *testing.T, c *crew, tenant string) *farm.Job{
		"Creates": func(t *testing.T, c *crew, tenant string) *farm.Job { return c.submit(t, tenant, storetest.Create()) },
		"Executes": func(t *testing.T, c *crew, tenant string) *farm.Job {
			return c.submit(t, tenant, storetest.Execute(c.box(t, tenant)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gate := make(chan struct{})
			c := newCrew(t, 2, 2, func(ctx context.Context, _ *farm.Job) {
				select {
				case <-gate:
				case <-ctx.Done():
				}
			})
			for range flood {
				submit(t, c, "greedy")
			}
			for range 4 { // every slot is in use
				await(t, c.begun)
			}
			one := submit(t, c, "modest")
			close(gate)
			before := 0
			for job := await(t, c.begun); job.ID != one.ID; job = await(t, c.begun) {
				before++
			}
			t.Logf("%d jobs of the flood began before the other tenant's one", before)
			testbed.Check(t, before <= few, "%d of %d jobs started before the other tenant's job, want at most %d", before, flood, few)
			for range flood + 1 {
				await(t, c.ended)
			}
		})
	}
}

// A job that its worker cannot begin is delivered again at once, and once each time.
func TestJobThatIsPutBackComesAgain(t *testing.T) {
	t.Parallel()
	const times = 20
	var deliveries atomic.Int32
	var c *crew
	c = newCrew(t, 2, 4, func(context.Context, *farm.Job) {}, func(_ string, cfg *queue.ServerConfig) {
		begin := cfg.Handler
		cfg.Handler = func(ctx context.Context, task queue.Task) error {
			if deliveries.Add(1) <= times {
				return c.PutBack(ctx, task.Ref)
			}
			return begin(ctx, task)
		}
	})
	c.submit(t, "acme", storetest.Create())
	job := await(t, c.ended)
	testbed.Check(t, job.Attempt == 1, "the job was claimed %d times", job.Attempt)
	n := deliveries.Load()
	testbed.Check(t, n == times+1, "%d deliveries of a job that was put back %d times", n, times)
	ended := c.submit(t, "acme", storetest.Create())
	await(t, c.ended)
	err := c.PutBack(t.Context(), ended.Ref())
	testbed.Check(t, err == nil, "PutBack of a job that has ended = %v", err)
}

// TestJobsOfOneSandboxRunInOrder gives 500 jobs of one sandbox to three workers. The worker of the last job takes no further one, so they take turns.
func TestJobsOfOneSandboxRunInOrder(t *testing.T) {
	t.Parallel()
	const jobs = 500
	var mu sync.Mutex
	var last atomic.Value // the worker of the last job
	running, limit := 0, 0
	c := newCrew(t, 3, 8, func(_ context.Context, job *farm.Job) {
		last.Store(job.Worker)
		mu.Lock()
		running++
		limit = max(limit, running)
		mu.Unlock()
		time.Sleep(100 * time.Microsecond) // long enough to overlap with another job
		mu.Lock()
		running--
		mu.Unlock()
	}, func(worker string, cfg *queue.ServerConfig) {
		cfg.Gate = func(string) bool { return last.Load() != worker }
	})
	box := c.box(t, storetest.Tenant)
	var want, got []string
	for range jobs {
		want = append(want, c.submit(t, storetest.Tenant, storetest.Execute(box)).ID)
	}
	by := map[string]int{}
	for range jobs {
		job := await(t, c.begun)
		got = append(got, job.ID)
		by[job.Worker]++
	}
	testbed.Check(t, slices.Equal(got, want), "the jobs did not run in the order in which they were accepted")
	testbed.Diff(t, "jobs of one sandbox ran at once", 1, limit)
	testbed.Check(t, len(by) >= 2, "only %v ran jobs: the test needs several workers", by)
	t.Logf("jobs by worker: %v", by)
}

// TestSlowSandboxDelaysNoOther queues 50 jobs in a sandbox whose first one does not end. Jobs of other sandboxes run and end meanwhile.
func TestSlowSandboxDelaysNoOther(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	var slow string
	ready := make(chan struct{})
	c := newCrew(t, 1, 2, func(ctx context.Context, job *farm.Job) {
		<-ready
		if job.SandboxID == slow {
			select {
			case <-gate:
			case <-ctx.Done():
			}
		}
	})
	slow = c.box(t, storetest.Tenant)
	close(ready)
	for range 50 {
		c.submit(t, storetest.Tenant, storetest.Execute(slow))
	}
	await(t, c.begun)
	for range 20 {
		job := c.submit(t, storetest.Tenant, storetest.Execute(c.box(t, storetest.Tenant)))
		got := await(t, c.ended)
		testbed.Require(t, got.ID == job.ID, "job %s ended, want %s", got.ID, job.ID)
	}
	close(gate)
	for range 50 {
		await(t, c.ended)
	}
}

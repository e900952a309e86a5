//go:build integration

package dispatch_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// holding is the jobs of a worker, as its heartbeats list them.
type holding struct {
	mu    sync.Mutex
	beats uint64
	jobs  map[string]int
}

// take notes a job that is about to be claimed; it gives false if the worker has it already.
func (h *holding) take(job string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, has := h.jobs[job]
	if !has {
		h.jobs[job] = 0
	}
	return !has
}

func (h *holding) claimed(job string, attempt int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.jobs[job] = attempt
}

func (h *holding) drop(job string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.jobs, job)
}

// beat sends a heartbeat.
func (h *holding) beat(t *testing.T, records *store.Store) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beats++
	testbed.Must(t, records.Heartbeat(t.Context(), farm.Worker{ID: "w", Beat: h.beats, Jobs: h.jobs}))
}

// TestCutsUnderLoad cuts the worker's connections again and again while jobs of several sandboxes run: every job ends, once. asynq, which would
// retry a lost task after some minutes, sees none: the test renews the leases of all tasks.
func TestCutsUnderLoad(t *testing.T) {
	t.Parallel()
	server := testbed.NewRedis(t)
	proxy := testbed.NewProxy(t, server)
	direct := server.Dial()
	workerRDB := proxy.Dial()
	t.Cleanup(func() { _, _ = direct.Close(), workerRDB.Close() })

	records, workerRecords := store.New(direct, queue.EnqueueLua(), store.Options{}), store.New(workerRDB, queue.EnqueueLua(), store.Options{})
	api := dispatch.New(records, queue.NewClient(direct, nil), farm.DefaultLimits(), nil)
	worker := dispatch.New(workerRecords, queue.NewClient(workerRDB, nil), farm.DefaultLimits(), nil)
	h := &holding{jobs: map[string]int{}}
	var ran, ended atomic.Int64
	s, err := queue.NewServer(proxy.Dial, queue.ServerConfig{
		Queues: map[string]int{farm.QueueCPU: 1}, Concurrency: 8,
		Handler: func(ctx context.Context, task queue.Task) error {
			if !h.take(task.Ref.ID) {
				return nil
			}
			defer h.drop(task.Ref.ID)
			c, err := workerRecords.Claim(ctx, task.Ref, "w")
			if errors.Is(err, store.ErrNotClaimable) {
				return nil
			}
			if err != nil {
				return err
			}
			h.claimed(task.Ref.ID, c.Job.Attempt)
			ran.Add(1)
			err = worker.Finish(ctx, store.Finish{Ref: task.Ref, Attempt: c.Job.Attempt, State: farm.JobCompleted})
			if errors.Is(err, store.ErrFenced) {
				return nil
			}
			if err == nil {
				ended.Add(1)
			}
			return err
		},
	})
	testbed.Must(t, err)
	testbed.Must(t, s.Start())
	t.Cleanup(s.Stop)

	const boxes, each = 10, 30
	start := time.Now()
	var jobs []farm.Ref
	for range boxes {
		a := storetest.Create()
		_, err = api.Submit(t.Context(), a)
		testbed.Must(t, err)
		for range each {
			e := storetest.Execute(a.Sandbox.ID)
			_, err = api.Submit(t.Context(), e)
			testbed.Must(t, err)
			jobs = append(jobs, e.Job.Ref())
		}
		proxy.Cut()
	}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for round := 0; ; round++ {
		<-tick.C
		h.beat(t, records)
		_, err := api.Sweep(t.Context(), storetest.Tenant)
		testbed.Check(t, err == nil, "Sweep = %v", err)
		if round < 8 {
			proxy.Cut()
		}
		renewLeases(t, direct)
		open, err := records.OpenJobs(t.Context(), storetest.Tenant, 0)
		testbed.Must(t, err)
		if len(open) == 0 {
			break
		}
		if time.Since(start) > 5*time.Minute {
			t.Fatalf("%d of %d jobs are open, the first: %+v", len(open), len(jobs), open[0])
		}
	}
	t.Logf("%d jobs ended in %v; handlers began %d, ended %d", len(jobs)+boxes, time.Since(start), ran.Load(), ended.Load())
	for _, ref := range jobs {
		job, err := records.Job(t.Context(), ref)
		testbed.Require(t, err == nil && job.State == farm.JobCompleted, "job = %+v, %v", job, err)
		batch, err := records.Events(t.Context(), ref, "")
		if err != nil || len(batch.Events) != 3 {
			t.Fatalf("job %s has events %+v, %v; want queued, running, completed", ref.ID, batch.Events, err)
		}
	}
}

// renewLeases prolongs asynq's leases of the tasks in the queue cpu.
func renewLeases(t *testing.T, rdb redis.UniversalClient) {
	t.Helper()
	const leases = "asynq:{" + farm.QueueCPU + "}:lease"
	tasks, err := rdb.ZRange(t.Context(), leases, 0, -1).Result()
	testbed.Must(t, err)
	for _, task := range tasks {
		testbed.Must(t, rdb.ZAddXX(t.Context(), leases, redis.Z{Member: task, Score: float64(time.Now().Add(time.Hour).Unix())}).Err())
	}
}

package queue_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Factory starts an empty Redis for one test and returns a function that makes its clients.
type Factory func(t *testing.T) func() redis.UniversalClient

// timeout bounds waits; some depend on asynq's loops, which take seconds.
const timeout = time.Minute

// runSuite runs the suite.
func runSuite(t *testing.T, factory Factory) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Factory){
		"DeliversToTheHandler":   deliversToTheHandler,
		"SameIDIsOneTask":        sameIDIsOneTask,
		"ScriptEnqueues":         scriptEnqueues,
		"ArchivedTaskIsReplaced": archivedTaskIsReplaced,
		"HasAndDepths":           hasAndDepths,
		"FailedTaskIsRetried":    failedTaskIsRetried,
		"HandlerKnowsItsTry":     handlerKnowsItsTry,
		"PutBackIsNoTry":         putBackIsNoTry,
		"LastTryIsTheLast":       lastTryIsTheLast,
		"PanicIsAnError":         panicIsAnError,
		"EveryQueueIsServed":     everyQueueIsServed,
		"WakeUpReachesAServer":   wakeUpReachesAServer,
		"LostWakeUpDelaysOnly":   lostWakeUpDelaysOnly,
		"StopWaitsForHandlers":   stopWaitsForHandlers,
		"StopRequeuesTasks":      stopRequeuesTasks,
		"StopBeforeStart":        stopBeforeStart,
		"ConcurrencyIsBounded":   concurrencyIsBounded,
		"BadSettingsAreRefused":  badSettingsAreRefused,
		"ManyTasksArriveOnce":    manyTasksArriveOnce,
		"GatePausesAQueue":       gatePausesAQueue,
		"TrimArchived":           trimRemovesArchivedTasks,
		"TrimQueues":             trimRemovesUnusedQueues,
		"TrimRacesWithEnqueue":   trimRacesWithEnqueue,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, factory)
		})
	}
}

// bundle is one test's queue.
type bundle struct {
	*queue.Client
	rdb  redis.UniversalClient
	dial func() redis.UniversalClient
	got  chan queue.Task // tasks that the handler of serve received
}

func setup(t *testing.T, factory Factory) *bundle {
	t.Helper()
	dial := factory(t)
	rdb := dial()
	t.Cleanup(func() { _ = rdb.Close() })
	return &bundle{Client: queue.NewClient(rdb, nil), rdb: rdb, dial: dial, got: make(chan queue.Task, 10_000)}
}

// serve starts a server whose handler records each task, then calls then, if it is not nil.
func (b *bundle) serve(t *testing.T, then func(context.Context, queue.Task) error, change ...func(*queue.ServerConfig)) *queue.Server {
	t.Helper()
	cfg := queue.ServerConfig{Queues: map[string]int{"cpu": 1}, Concurrency: 4, ShutdownTimeout: 5 * time.Second}
	cfg.Handler = func(ctx context.Context, task queue.Task) error {
		b.got <- task
		if then == nil {
			return nil
		}
		return then(ctx, task)
	}
	for _, f := range change {
		f(&cfg)
	}
	s, err := queue.NewServer(b.dial, cfg)
	testbed.Must(t, err)
	testbed.Must(t, s.Start())
	t.Cleanup(s.Stop)
	return s
}

func (b *bundle) enqueue(t *testing.T, name string, task queue.Task) {
	t.Helper()
	testbed.Must(t, b.Enqueue(t.Context(), name, task, queue.EnqueueOptions{ID: task.Ref.ID}))
}

func (b *bundle) expect(t *testing.T, want queue.Task) {
	t.Helper()
	select {
	case got := <-b.got:
		got.Try, got.Queue = queue.Try{}, ""
		testbed.Diff(t, "handled task", want, got)
	case <-time.After(timeout):
		t.Fatalf("task %s did not arrive", want.Ref.ID)
	}
}

func job(id string) queue.Task {
	return queue.Task{Type: queue.TypeJob, Ref: farm.Ref{Tenant: "acme", ID: id}}
}

func deliversToTheHandler(t *testing.T, factory Factory) {
	b := setup(t, factory)
	early := job("job_early")
	b.enqueue(t, "cpu", early)
	b.serve(t, nil)
	b.expect(t, early)
	late := queue.Task{Type: queue.TypeCallback, Ref: farm.Ref{Tenant: "other", ID: "job_late"}}
	b.enqueue(t, "cpu", late)
	b.expect(t, late)
}

func sameIDIsOneTask(t *testing.T, factory Factory) {
	b := setup(t, factory)
	for range 3 {
		b.enqueue(t, "cpu", job("job_1"))
	}
	b.enqueue(t, "cpu", job("job_2"))
	b.serve(t, nil, func(c *queue.ServerConfig) { c.Concurrency = 1 })
	b.expect(t, job("job_1"))
	b.expect(t, job("job_2"))
}

// archivedTaskIsReplaced enqueues a task again that asynq has archived and keeps for months.
func archivedTaskIsReplaced(t *testing.T, factory Factory) {
	b := setup(t, factory)
	fail := make(chan bool, 2)
	fail <- true
	fail <- false
	b.serve(t, func(context.Context, queue.Task) error {
		if <-fail {
			return errors.New("no")
		}
		return nil
	})
	options := queue.EnqueueOptions{ID: "job_1", MaxRetry: -1}
	testbed.Must(t, b.Enqueue(t.Context(), "cpu", job("job_1"), options))
	b.expect(t, job("job_1"))
	testbed.Until(t, "task is archived", func() bool {
		state, err := b.State(t.Context(), "cpu", "job_1")
		return err == nil && state == "archived"
	})
	if has, err := b.Has(t.Context(), "cpu", "job_1"); err != nil || has {
		t.Errorf("Has of an archived task = %v, %v", has, err)
	}
	testbed.Must(t, b.Enqueue(t.Context(), "cpu", job("job_1"), options))
	b.expect(t, job("job_1"))
}

func hasAndDepths(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ctx := t.Context()
	if depths, err := b.Depths(ctx); err != nil || len(depths) != 0 {
		t.Errorf("Depths without queues = %v, %v", depths, err)
	}
	for _, id := range []string{"job_1", "job_2", "job_3"} {
		b.enqueue(t, "cpu", job(id))
	}
	b.enqueue(t, "node-a", job("job_4"))
	release := make(chan struct{})
	b.serve(t, func(context.Context, queue.Task) error { <-release; return nil }, func(c *queue.ServerConfig) { c.Concurrency = 1 })
	b.expect(t, job("job_1"))
	for id, want := range map[string]bool{"job_1": true, "job_3": true, "job_4": false} {
		if has, err := b.Has(ctx, "cpu", id); err != nil || has != want {
			t.Errorf("Has(cpu, %s) = %v, %v; want %v", id, has, err, want)
		}
	}
	want := []farm.QueueDepth{{Name: "cpu", Depth: 2, Running: 1}, {Name: "node-a", Depth: 1}}
	testbed.Until(t, "depths are correct", func() bool { // the first answer may be cached
		depths, err := b.Depths(ctx)
		for i := range depths { // both queues have waiting tasks
			if age := depths[i].OldestSeconds; age <= 0 || age > 60 {
				t.Errorf("the oldest task of %s is %v s old", depths[i].Name, age)
			}
			depths[i].OldestSeconds = 0
		}
		return err == nil && cmp.Diff(want, depths) == ""
	})
	close(release)
}

func failedTaskIsRetried(t *testing.T, factory Factory) {
	b := setup(t, factory)
	var mu sync.Mutex
	calls := 0
	b.serve(t, func(context.Context, queue.Task) error {
		mu.Lock()
		defer mu.Unlock()
		if calls++; calls == 1 {
			return errors.New("not now")
		}
		return nil
	})
	b.enqueue(t, "cpu", job("job_1"))
	b.expect(t, job("job_1"))
	b.expect(t, job("job_1"))
}

func handlerKnowsItsTry(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.serve(t, func(context.Context, queue.Task) error { return errors.New("never") })
	testbed.Must(t, b.Enqueue(t.Context(), "cpu", job("job_1"), queue.EnqueueOptions{ID: "job_1", MaxRetry: 1}))
	for _, want := range []queue.Try{{Number: 1, Max: 2, RetryIn: time.Second}, {Number: 2, Max: 2}} {
		select {
		case got := <-b.got:
			if got.Try != want {
				t.Errorf("try %+v, want %+v", got.Try, want)
			}
		case <-time.After(timeout):
			t.Fatalf("try %d did not come", want.Number)
		}
	}
}

// A task that is put back comes again, from its last try too.
func putBackIsNoTry(t *testing.T, factory Factory) {
	b := setup(t, factory)
	var calls atomic.Int64
	b.serve(t, func(context.Context, queue.Task) error {
		if calls.Add(1) < 3 {
			return queue.Later{In: time.Millisecond}
		}
		return nil
	})
	testbed.Must(t, b.Enqueue(t.Context(), "cpu", job("job_1"), queue.EnqueueOptions{ID: "job_1", MaxRetry: -1}))
	for range 3 {
		select {
		case got := <-b.got:
			if want := (queue.Try{Number: 1, Max: 1}); got.Try != want {
				t.Errorf("try %+v, want %+v", got.Try, want)
			}
		case <-time.After(timeout):
			t.Fatal("the task did not come again")
		}
	}
}

// A task whose last try fails is archived, not tried again.
func lastTryIsTheLast(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.serve(t, func(context.Context, queue.Task) error { return errors.New("never") })
	testbed.Must(t, b.Enqueue(t.Context(), "cpu", job("job_1"), queue.EnqueueOptions{ID: "job_1", MaxRetry: -1}))
	testbed.Until(t, "the task is archived", func() bool {
		state, err := b.State(t.Context(), "cpu", "job_1")
		if err != nil || state == "retry" {
			t.Fatalf("the task is %q: %v", state, err)
		}
		return state == "archived"
	})
	testbed.Diff(t, "it was tried, times", 1, len(b.got))
}

func panicIsAnError(t *testing.T, factory Factory) {
	b := setup(t, factory)
	var mu sync.Mutex
	calls := 0
	b.serve(t, func(context.Context, queue.Task) error {
		mu.Lock()
		defer mu.Unlock()
		if calls++; calls == 1 {
			panic("oh")
		}
		return nil
	})
	b.enqueue(t, "cpu", job("job_1"))
	b.expect(t, job("job_1"))
	b.expect(t, job("job_1"))
}

func everyQueueIsServed(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.serve(t, nil, func(c *queue.ServerConfig) { c.Queues = map[string]int{"cpu": 1, "node-a": 5, "callbacks": 1} })
	for _, name := range []string{"cpu", "node-a", "callbacks", "cpu"} {
		task := job("job_" + name + farm.NewID(""))
		b.enqueue(t, name, task)
		b.expect(t, task)
	}
}

// wakeUpReachesAServer sends tasks to an idle server. Each would wait for most of a second without the wake-up: all of them, a minute.
func wakeUpReachesAServer(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.serve(t, nil)
	b.enqueue(t, "cpu", job("job_first"))
	b.expect(t, job("job_first"))
	ctx, done := context.WithTimeout(t.Context(), timeout)
	defer done()
	for i := range 60 {
		time.Sleep(20 * time.Millisecond) // the server becomes idle; a task that reaches it awake proves nothing
		task := job(fmt.Sprintf("job_%d", i))
		b.enqueue(t, "cpu", task)
		b.expect(t, task)
		if ctx.Err() != nil {
			t.Fatalf("%d tasks, one after the other, took %v: the wake-up does not reach the server", i+1, timeout)
		}
	}
}

// lostWakeUpDelaysOnly enqueues without the wake-up, as when pub/sub drops it.
func lostWakeUpDelaysOnly(t *testing.T, factory Factory) {
	b := setup(t, factory)
	b.serve(t, nil)
	b.enqueue(t, "cpu", job("job_0"))
	b.expect(t, job("job_0"))
	mute := queue.NewClient(muted(b.dial, t), nil)
	for i := range 3 {
		task := job(fmt.Sprintf("job_mute%d", i))
		testbed.Must(t, mute.Enqueue(t.Context(), "cpu", task, queue.EnqueueOptions{ID: task.Ref.ID}))
		b.expect(t, task)
	}
}

// muted makes a client that drops what it publishes.
func muted(dial func() redis.UniversalClient, t *testing.T) redis.UniversalClient {
	t.Helper()
	rdb := dial()
	rdb.AddHook(testbed.Hook(func(cmds []redis.Cmder, next func(...redis.Cmder) error) error {
		if cmds[0].Name() == "publish" {
			return nil
		}
		return next(cmds...)
	}))
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

package queue_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func stopWaitsForHandlers(t *testing.T, factory Factory) {
	b := setup(t, factory)
	release := make(chan struct{})
	var ended atomic.Bool
	s := b.serve(t, func(ctx context.Context, _ queue.Task) error {
		<-release
		ended.Store(true)
		return ctx.Err()
	}, func(c *queue.ServerConfig) { c.ShutdownTimeout = time.Minute })
	end := sync.OnceFunc(func() { close(release) })
	t.Cleanup(end) // before that of serve, also when the test fails
	b.enqueue(t, "cpu", job("job_1"))
	b.expect(t, job("job_1"))
	stopped := make(chan struct{})
	go func() {
		s.Stop()
		close(stopped)
	}()
	testbed.Until(t, "asynq says that its server is stopping", func() bool { // its heartbeat does, every 5 s
		servers, err := asynq.NewInspectorFromRedisClient(b.rdb).Servers()
		testbed.Must(t, err)
		select {
		case <-stopped:
			t.Fatal("Stop did not wait")
		default:
		}
		return len(servers) == 1 && servers[0].Status == "closed"
	})
	b.enqueue(t, "cpu", job("job_2"))
	end()
	select {
	case <-stopped:
	case <-time.After(timeout):
		t.Fatal("Stop does not return")
	}
	if !ended.Load() {
		t.Error("the handler did not end before Stop returned")
	}
	if has, err := b.Has(t.Context(), "cpu", "job_1"); err != nil || has {
		t.Errorf("the finished task still exists: %v, %v", has, err)
	}
	if state, err := b.State(t.Context(), "cpu", "job_2"); err != nil || state != "pending" {
		t.Errorf("the task that came during Stop is %q, %v; want pending", state, err)
	}
	s.Stop()
}

func stopRequeuesTasks(t *testing.T, factory Factory) {
	b := setup(t, factory)
	s := b.serve(t, func(ctx context.Context, _ queue.Task) error {
		<-ctx.Done()
		return ctx.Err()
	}, func(c *queue.ServerConfig) { c.ShutdownTimeout = 200 * time.Millisecond })
	b.enqueue(t, "cpu", job("job_1"))
	b.expect(t, job("job_1"))
	s.Stop()
	b.serve(t, nil)
	b.expect(t, job("job_1"))
}

func stopBeforeStart(t *testing.T, factory Factory) {
	b := setup(t, factory)
	s, err := queue.NewServer(b.dial, queue.ServerConfig{
		Queues: map[string]int{"cpu": 1}, Concurrency: 1, Handler: func(context.Context, queue.Task) error { return nil },
	})
	testbed.Must(t, err)
	s.Stop()
	s.Stop()
	if err := s.Start(); err == nil {
		t.Error("a stopped server started")
	}
}

func concurrencyIsBounded(t *testing.T, factory Factory) {
	b := setup(t, factory)
	var now, limit atomic.Int64
	arrived := make(chan struct{}, 20)
	release := make(chan struct{})
	b.serve(t, func(context.Context, queue.Task) error {
		n := now.Add(1)
		for old := limit.Load(); n > old && !limit.CompareAndSwap(old, n); old = limit.Load() {
		}
		arrived <- struct{}{}
		<-release
		now.Add(-1)
		return nil
	}, func(c *queue.ServerConfig) { c.Concurrency = 3 })
	for i := range 10 {
		b.enqueue(t, "cpu", job(fmt.Sprintf("job_%d", i)))
	}
	for i := range 10 {
		if i == 3 {
			close(release)
		}
		select {
		case <-arrived:
		case <-time.After(timeout):
			t.Fatalf("%d tasks arrived", i)
		}
	}
	if limit.Load() != 3 {
		t.Errorf("%d handlers ran at once, want 3", limit.Load())
	}
}

func badSettingsAreRefused(t *testing.T, factory Factory) {
	b := setup(t, factory)
	handler := func(context.Context, queue.Task) error { return nil }
	for name, cfg := range map[string]queue.ServerConfig{
		"no queue":       {Concurrency: 1, Handler: handler},
		"weight":         {Concurrency: 1, Handler: handler, Queues: map[string]int{"a": 0}},
		"no handler":     {Concurrency: 1, Queues: map[string]int{"a": 1}},
		"no concurrency": {Handler: handler, Queues: map[string]int{"a": 1}},
	} {
		if _, err := queue.NewServer(b.dial, cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := b.Enqueue(t.Context(), "cpu", job("job_1"), queue.EnqueueOptions{}); err == nil {
		t.Error("a task without an id was accepted")
	}
}

// manyTasksArriveOnce enqueues tasks to two queues from many goroutines while two servers take them.
func manyTasksArriveOnce(t *testing.T, factory Factory) {
	b := setup(t, factory)
	queues := func(c *queue.ServerConfig) { c.Queues = map[string]int{"cpu": 1, "node-a": 1} }
	b.serve(t, nil, queues)
	b.serve(t, nil, queues)
	const senders, each = 8, 50
	var wg sync.WaitGroup
	for sender := range senders {
		wg.Go(func() {
			for i := range each {
				task := job(fmt.Sprintf("job_%d_%d", sender, i))
				if err := b.Enqueue(t.Context(), []string{"cpu", "node-a"}[i%2], task, queue.EnqueueOptions{ID: task.Ref.ID}); err != nil {
					t.Errorf("Enqueue = %v", err)
				}
			}
		})
	}
	seen := map[string]int{}
	for range senders * each {
		select {
		case task := <-b.got:
			seen[task.Ref.ID]++
		case <-time.After(timeout):
			t.Fatalf("%d of %d tasks arrived", len(seen), senders*each)
		}
	}
	wg.Wait()
	for id, n := range seen {
		testbed.Diff(t, fmt.Sprintf("%s was handled, times", id), 1, n)
	}
}

// trimRemovesArchivedTasks archives a task, and trims up to a time in the future, so that the task counts as old.
func trimRemovesArchivedTasks(t *testing.T, factory Factory) {
	b := setup(t, factory)
	server := b.serve(t, func(context.Context, queue.Task) error { return errors.New("no") })
	const many = 3
	for i := range many {
		id := fmt.Sprint("job_", i)
		testbed.Must(t, b.Enqueue(t.Context(), "cpu", job(id), queue.EnqueueOptions{ID: id, MaxRetry: -1}))
	}
	testbed.Until(t, "tasks are given up", func() bool {
		return b.rdb.ZCard(t.Context(), "asynq:{cpu}:archived").Val() == many
	})
	server.Stop()
	b.enqueue(t, "cpu", job("job_waits"))
	never := func(string) bool { return false }
	for _, c := range []struct {
		name   string
		before time.Time
		want   queue.Trimmed
	}{
		{"young", time.Now().Add(-time.Hour), queue.Trimmed{}},
		{"old", time.Now().Add(time.Hour), queue.Trimmed{Tasks: many}},
		{"again", time.Now().Add(time.Hour), queue.Trimmed{}},
	} {
		if got, err := b.Trim(t.Context(), c.before, never); err != nil || got != c.want {
			t.Errorf("%s: Trim = %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
	// An unused queue is removed with its archived tasks.
	testbed.Must(t, b.Enqueue(t.Context(), "node-gone", job("job_gone"), queue.EnqueueOptions{ID: "job_gone", MaxRetry: -1}))
	server = b.serve(t, func(context.Context, queue.Task) error { return errors.New("no") }, func(c *queue.ServerConfig) { c.Queues = map[string]int{"node-gone": 1} })
	testbed.Until(t, "the task is given up", func() bool { return b.rdb.ZCard(t.Context(), "asynq:{node-gone}:archived").Val() == 1 })
	server.Stop()
	got, err := b.Trim(t.Context(), time.Now().Add(-time.Hour), func(name string) bool { return name == "node-gone" })
	if want := (queue.Trimmed{Tasks: 1, Queues: 1}); err != nil || got != want {
		t.Errorf("Trim of a queue with an archived task = %+v, %v; want %+v", got, err, want)
	}
	if keys := b.rdb.Keys(t.Context(), "asynq:{cpu}:t:*").Val(); len(keys) != 1 {
		t.Errorf("tasks are %v, want the one that waits", keys)
	}
}

// trimRemovesUnusedQueues removes empty, unused queues, and then uses one of them again.
func trimRemovesUnusedQueues(t *testing.T, factory Factory) {
	b := setup(t, factory)
	for _, name := range []string{"used", "busy", "empty"} {
		b.enqueue(t, name, job("job_"+name))
	}
	for _, name := range []string{"used", "empty"} {
		for _, set := range []string{"pending", "t:job_" + name} {
			testbed.Must(t, b.rdb.Del(t.Context(), "asynq:{"+name+"}:"+set).Err())
		}
	}
	// What killed servers leave behind.
	for _, key := range []string{"asynq:servers", "asynq:workers"} {
		testbed.Must(t, b.rdb.ZAdd(t.Context(), key, redis.Z{Score: float64(time.Now().Add(-time.Hour).Unix()), Member: "dead"}).Err())
	}
	got, err := b.Trim(t.Context(), time.Now(), func(name string) bool { return name != "used" })
	if want := (queue.Trimmed{Queues: 1}); err != nil || got != want {
		t.Errorf("Trim = %+v, %v; want %+v", got, err, want)
	}
	if names := b.rdb.SMembers(t.Context(), "asynq:queues").Val(); len(names) != 2 {
		t.Errorf("queues are %v", names)
	}
	for _, key := range []string{"asynq:servers", "asynq:workers"} {
		if n := b.rdb.ZCard(t.Context(), key).Val(); n != 0 {
			t.Errorf("%s has %d entries", key, n)
		}
	}
	b.enqueue(t, "empty", job("job_late")) // by a client that has used the queue before
	if !b.rdb.SIsMember(t.Context(), "asynq:queues", "empty").Val() {
		t.Error("a removed queue that has a task again is not listed")
	}
	b.serve(t, nil, func(c *queue.ServerConfig) { c.Queues = map[string]int{"empty": 1} })
	b.expect(t, job("job_late"))
}

// trimRacesWithEnqueue removes a queue while another client enqueues to it: a queue that holds a task is always listed.
func trimRacesWithEnqueue(t *testing.T, factory Factory) {
	b := setup(t, factory)
	other := queue.NewClient(b.rdb, nil)
	b.enqueue(t, "node-a", job("job_first"))
	for round := range 100 {
		var group sync.WaitGroup
		id := fmt.Sprintf("job_%d", round)
		group.Go(func() {
			if err := other.Enqueue(t.Context(), "node-a", job(id), queue.EnqueueOptions{ID: id}); err != nil {
				t.Errorf("Enqueue = %v", err)
			}
		})
		group.Go(func() {
			if _, err := b.Trim(t.Context(), time.Now(), func(string) bool { return true }); err != nil {
				t.Errorf("Trim = %v", err)
			}
		})
		group.Wait()
		pending, listed := b.rdb.LLen(t.Context(), "asynq:{node-a}:pending").Val(), b.rdb.SIsMember(t.Context(), "asynq:queues", "node-a").Val()
		if pending == 0 || !listed {
			t.Fatalf("round %d: %d tasks wait in a queue that is listed: %v", round, pending, listed)
		}
		for _, key := range b.rdb.Keys(t.Context(), "asynq:{node-a}:*").Val() { // empty again
			b.rdb.Del(t.Context(), key)
		}
	}
}

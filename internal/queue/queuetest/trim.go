package queuetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// trimRemovesArchivedTasks archives a task, and trims up to a time in the future, so that the task counts as old.
func trimRemovesArchivedTasks(t *testing.T, factory Factory) {
	b := setup(t, factory)
	server := b.serve(t, func(context.Context, queue.Task) error { return errors.New("no") })
	const many = 3
	for i := range many {
		id := fmt.Sprint("job_", i)
		if err := b.Enqueue(t.Context(), "cpu", job(id), queue.EnqueueOptions{ID: id, MaxRetry: -1}); err != nil {
			t.Fatal(err)
		}
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
	if err := b.Enqueue(t.Context(), "node-gone", job("job_gone"), queue.EnqueueOptions{ID: "job_gone", MaxRetry: -1}); err != nil {
		t.Fatal(err)
	}
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
			if err := b.rdb.Del(t.Context(), "asynq:{"+name+"}:"+set).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	// What killed servers leave behind.
	for _, key := range []string{"asynq:servers", "asynq:workers"} {
		if err := b.rdb.ZAdd(t.Context(), key, redis.Z{Score: float64(time.Now().Add(-time.Hour).Unix()), Member: "dead"}).Err(); err != nil {
			t.Fatal(err)
		}
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

package queue_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
)

// gatePausesAQueue closes the gate of one of two queues, and opens it.
func gatePausesAQueue(t *testing.T, factory Factory) {
	b := setup(t, factory)
	var open atomic.Bool
	s := b.serve(t, nil, func(c *queue.ServerConfig) {
		c.Queues = map[string]int{"cpu": 1, "node-a": 1}
		c.Gate = func(name string) bool { return name != "cpu" || open.Load() }
	})
	for range 3 { // the paused queue does not delay the other one, and keeps its tasks
		b.enqueue(t, "cpu", job("job_held"))
		passing := job("job_" + time.Now().Format(time.RFC3339Nano))
		b.enqueue(t, "node-a", passing)
		b.expect(t, passing)
	}
	if state, err := b.State(t.Context(), "cpu", "job_held"); err != nil || state != "pending" {
		t.Errorf("task behind the gate is %q, %v; want pending", state, err)
	}
	open.Store(true)
	s.Wake()
	b.expect(t, job("job_held"))
	open.Store(false)
	for _, id := range []string{"job_first", "job_second"} { // a poll that started while the gate was open has ended after the first task
		passing := job(id)
		b.enqueue(t, "node-a", passing)
		b.expect(t, passing)
		b.enqueue(t, "cpu", job("job_again"))
	}
	open.Store(true) // without a wake-up: the gate is asked again after a while
	b.expect(t, job("job_again"))
}

// archive makes a task that waits an archived one, as asynq does after its last error.
func (b *bundle) archive(t *testing.T, name, id string) {
	t.Helper()
	pipe := b.rdb.TxPipeline()
	pipe.HSet(t.Context(), "asynq:{"+name+"}:t:"+id, "state", "archived")
	pipe.LRem(t.Context(), "asynq:{"+name+"}:pending", 0, id)
	pipe.ZAdd(t.Context(), "asynq:{"+name+"}:archived", redis.Z{Score: 1, Member: id})
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// scriptEnqueues compares the tasks that EnqueueLua and Enqueue write, byte by byte, and has a server handle the one of the script. It does not
// add a second task, but replaces an archived one.
func scriptEnqueues(t *testing.T, factory Factory) {
	b := setup(t, factory)
	script := redis.NewScript(queue.EnqueueLua() + "return enqueueTask(ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7] == '1') or 'added'")
	byScript := func(task queue.Task, id string, timeout time.Duration, want string) {
		t.Helper()
		args := []any{"cpu", id, task.Ref.Tenant, task.Ref.ID, int(timeout.Seconds()), time.Now().UnixMicro(), task.Aside}
		if got, err := script.Run(t.Context(), b.rdb, nil, args...).Text(); err != nil || got != want {
			t.Fatalf("enqueueTask = %q, %v; want %q", got, err, want)
		}
	}
	written := func(id string) map[string]string {
		t.Helper()
		fields, err := b.rdb.HGetAll(t.Context(), "asynq:{cpu}:t:"+id).Result()
		if err != nil || len(fields["pending_since"]) != 19 {
			t.Fatalf("task %s = %q, %v", id, fields, err)
		}
		delete(fields, "pending_since")
		fields["pending"] = strings.Join(b.rdb.LRange(t.Context(), "asynq:{cpu}:pending", 0, -1).Val(), " ")
		fields["queues"] = strings.Join(b.rdb.SMembers(t.Context(), "asynq:queues").Val(), " ")
		return fields
	}
	for _, timeout := range []time.Duration{time.Second, 127 * time.Second, 128 * time.Second, 25 * time.Hour} {
		for _, tenant := range []string{"acme", strings.Repeat("long tenant ", 20)} {
			task := queue.Task{Type: queue.TypeJob, Ref: farm.Ref{Tenant: tenant, ID: "job_1"}, Aside: timeout > time.Minute}
			byScript(task, "job_1.2", timeout, "added")
			byScript(task, "job_1.2", timeout, "pending") // changes nothing
			got := written("job_1.2")
			b.archive(t, "cpu", "job_1.2")
			byScript(task, "job_1.2", timeout, "added") // it would not run again
			if diff := cmp.Diff(got, written("job_1.2")); diff != "" {
				t.Errorf("the task that replaces an archived one (-first +second):\n%s", diff)
			}
			if n := b.rdb.ZCard(t.Context(), "asynq:{cpu}:archived").Val(); n != 0 {
				t.Errorf("%d archived tasks are left", n)
			}
			b.rdb.FlushAll(t.Context())
			if err := b.Enqueue(t.Context(), "cpu", task, queue.EnqueueOptions{ID: "job_1.2", Timeout: timeout}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(written("job_1.2"), got); diff != "" {
				t.Errorf("timeout %v, tenant %q: Enqueue writes -, the script writes +:\n%s", timeout, tenant, diff)
			}
			b.rdb.FlushAll(t.Context())
		}
	}
	b.serve(t, nil)
	odd := queue.Task{Type: queue.TypeJob, Ref: farm.Ref{Tenant: `a "quoted" \ ténant`, ID: "job_2"}}
	byScript(odd, "job_2", time.Minute, "added")
	b.expect(t, odd)
}

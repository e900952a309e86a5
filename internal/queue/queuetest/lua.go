package queuetest

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
)

// scriptEnqueues compares the tasks that EnqueueLua and Enqueue write, byte by byte, and has a server handle the one of the script.
func scriptEnqueues(t *testing.T, factory Factory) {
	b := setup(t, factory)
	script := redis.NewScript(queue.EnqueueLua() + "enqueueTask(ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6])\nreturn 'ok'")
	byScript := func(task queue.Task, id string, timeout time.Duration) {
		t.Helper()
		args := []any{"cpu", id, task.Ref.Tenant, task.Ref.ID, int(timeout.Seconds()), time.Now().UnixMicro()}
		if err := script.Run(t.Context(), b.rdb, nil, args...).Err(); err != nil {
			t.Fatal(err)
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
			task := queue.Task{Type: queue.TypeJob, Ref: farm.Ref{Tenant: tenant, ID: "job_1"}}
			byScript(task, "job_1.2", timeout)
			byScript(task, "job_1.2", timeout) // changes nothing
			got := written("job_1.2")
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
	byScript(odd, "job_2", time.Minute)
	b.expect(t, odd)
}

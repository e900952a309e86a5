package queue_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOnMiniredis(t *testing.T) {
	t.Parallel()
	runSuite(t, func(t *testing.T) func() redis.UniversalClient {
		t.Helper()
		addr := miniredis.RunT(t).Addr()
		return func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: addr}) }
	})
}

// A package that imports this one and the store must not compile the Redis client again, see tasks in asynq.go: it takes the compiler more
// than a second, for each of twenty packages, at every change of a package that all import.
func TestImportersDoNotCompileTheRedisClient(t *testing.T) {
	t.Parallel()
	for name, compiles := range map[string]bool{"queue": true, "dispatch": false} {
		path, err := exec.CommandContext(t.Context(), "go", "list", "-export", "-f", "{{.Export}}", "github.com/sandfarm/sandfarm/internal/"+name).Output()
		if err != nil {
			t.Fatalf("compile %s: %v", name, err)
		}
		object, err := os.ReadFile(strings.TrimSpace(string(path)))
		testbed.Must(t, err)
		testbed.Diff(t, fmt.Sprintf("the object of %s has code of the Redis client", name), compiles, bytes.Contains(object, []byte("redis/go-redis/v9.baseClient;")))
	}
}

// A queue without a server goes with all its tasks, active ones too, and no other queue changes.
func TestRemoveQueue(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	c := queue.NewClient(rdb, nil)
	for i := range 450 {
		for _, name := range []string{"node-a", "node-b"} {
			id := fmt.Sprintf("job%d", i)
			testbed.Must(t, c.Enqueue(t.Context(), name, queue.Task{Type: queue.TypeJob, Ref: farm.Ref{Tenant: "t", ID: id}}, queue.EnqueueOptions{ID: id}))
		}
	}
	before := keys(t, rdb, "asynq:{node-b}*")
	if err := rdb.LMove(t.Context(), "asynq:{node-a}:pending", "asynq:{node-a}:active", "left", "left").Err(); err != nil { // its server died
		t.Fatal(err)
	}
	for range 2 { // a second time it is gone already
		testbed.Must(t, c.RemoveQueue(t.Context(), "node-a"))
		if left := keys(t, rdb, "asynq:{node-a}*"); len(left) != 0 {
			t.Errorf("keys that are left: %v", left)
		}
	}
	if after := keys(t, rdb, "asynq:{node-b}*"); !slices.Equal(before, after) {
		t.Errorf("another queue has %d keys, had %d", len(after), len(before))
	}
	if names, err := rdb.SMembers(t.Context(), "asynq:queues").Result(); err != nil || !slices.Equal(names, []string{"node-b"}) {
		t.Errorf("listed queues: %v, %v", names, err)
	}
}

// A queue that a worker serves is listed again after Redis lost its data.
func TestRegisteredQueuesAreListed(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	c := queue.NewClient(rdb, nil)
	server.FlushAll()
	testbed.Must(t, c.Register(t.Context(), "cpu", "node-a"))
	depths, err := c.Depths(t.Context())
	if err != nil || len(depths) != 2 || depths[0].Name != "cpu" || depths[1].Name != "node-a" {
		t.Errorf("Depths = %+v, %v", depths, err)
	}
}

func keys(t *testing.T, rdb *redis.Client, pattern string) []string {
	t.Helper()
	found, err := rdb.Keys(t.Context(), pattern).Result()
	testbed.Must(t, err)
	slices.Sort(found)
	return found
}

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
	_, err := pipe.Exec(t.Context())
	testbed.Must(t, err)
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
			testbed.Diff(t, "the task that replaces an archived one", got, written("job_1.2"))
			if n := b.rdb.ZCard(t.Context(), "asynq:{cpu}:archived").Val(); n != 0 {
				t.Errorf("%d archived tasks are left", n)
			}
			b.rdb.FlushAll(t.Context())
			testbed.Must(t, b.Enqueue(t.Context(), "cpu", task, queue.EnqueueOptions{ID: "job_1.2", Timeout: timeout}))
			testbed.Diff(t, fmt.Sprintf("timeout %v, tenant %q: Enqueue writes -, the script writes +", timeout, tenant), written("job_1.2"), got)
			b.rdb.FlushAll(t.Context())
		}
	}
	b.serve(t, nil)
	odd := queue.Task{Type: queue.TypeJob, Ref: farm.Ref{Tenant: `a "quoted" \ ténant`, ID: "job_2"}}
	byScript(odd, "job_2", time.Minute, "added")
	b.expect(t, odd)
}

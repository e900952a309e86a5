//go:build integration

package queue_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestOnRedis(t *testing.T) {
	t.Parallel()
	runSuite(t, func(t *testing.T) func() redis.UniversalClient {
		t.Helper()
		return testbed.NewRedis(t).Dial
	})
}

// TestNoPollingAtIdle counts the commands that an idle server sends to Redis.
func TestNoPollingAtIdle(t *testing.T) {
	t.Parallel()
	r := testbed.NewRedis(t)
	got := make(chan queue.Task, 10)
	serve(t, r.Dial, got)
	rdb := r.Client(t)
	send(t, queue.NewClient(rdb, nil), "job_1")
	receive(t, got)
	testbed.Must(t, rdb.ConfigResetStat(t.Context()).Err())
	const watch = 4 * time.Second
	select { // idle for a while: the point of the test
	case <-time.After(watch):
	case task := <-got:
		t.Fatalf("unexpected task %v", task)
	}
	info, err := rdb.InfoMap(t.Context(), "commandstats").Result()
	testbed.Must(t, err)
	var calls int
	if _, err := fmt.Sscanf(info["Commandstats"]["cmdstat_evalsha"], "calls=%d,", &calls); err != nil {
		t.Fatalf("read %q: %v", info["Commandstats"]["cmdstat_evalsha"], err)
	}
	// Idle: one dequeue and two checks of delayed tasks a second, and asynq's own upkeep every few seconds. Polling: a thousand a second.
	if calls > 100 {
		t.Errorf("an idle server ran %d scripts within %v", calls, watch)
	}
}

// TestCutConnectionRecovers cuts every connection of an idle server several times, then stops Redis for a
// while. A lost answer delays a task by a minute (asynq's lease): package dispatch tests how the sweep shortens that.
func TestCutConnectionRecovers(t *testing.T) {
	t.Parallel()
	r := testbed.NewRedis(t)
	proxy := testbed.NewProxy(t, r)
	got := make(chan queue.Task, 10_000)
	serve(t, proxy.Dial, got)
	c := queue.NewClient(r.Client(t), nil)
	for i := range 5 {
		id := fmt.Sprintf("job_%d", i)
		send(t, c, id)
		collect(t, got, []string{id})
		proxy.Cut()
	}
	proxy.Refuse(true)
	proxy.Cut()
	send(t, c, "job_while_down")
	select {
	case task := <-got:
		t.Logf("a task came again: %v", task)
	case <-time.After(500 * time.Millisecond): // down for a while: the point of the test
	}
	proxy.Refuse(false)
	collect(t, got, []string{"job_while_down"})
}

// TestRedisRestart kills Redis with tasks on the queue and starts it again on its append-only file.
func TestRedisRestart(t *testing.T) {
	t.Parallel()
	r := testbed.NewRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	c := queue.NewClient(r.Client(t), nil)
	var want []string
	for i := range 50 {
		id := fmt.Sprintf("job_%d", i)
		want = append(want, id)
		if i == 25 {
			r.Kill()
			err := c.Enqueue(t.Context(), "cpu", task(id), queue.EnqueueOptions{ID: id})
			if farm.CodeOf(err) != farm.CodeUnavailable {
				t.Errorf("Enqueue while Redis is down = %v, want unavailable", err)
			}
			r.Start(t)
		}
		send(t, c, id)
	}
	got := make(chan queue.Task, 1000)
	serve(t, r.Dial, got)
	collect(t, got, want)
}

func task(id string) queue.Task {
	return queue.Task{Type: queue.TypeJob, Ref: farm.Ref{Tenant: "acme", ID: id}}
}

func serve(t testing.TB, dial func() redis.UniversalClient, got chan<- queue.Task) {
	t.Helper()
	s, err := queue.NewServer(dial, queue.ServerConfig{
		Queues: map[string]int{"cpu": 1}, Concurrency: 4,
		Handler: func(_ context.Context, task queue.Task) error { got <- task; return nil },
	})
	testbed.Must(t, err)
	testbed.Must(t, s.Start())
	t.Cleanup(s.Stop)
}

func send(t testing.TB, c *queue.Client, id string) {
	t.Helper()
	if err := c.Enqueue(t.Context(), "cpu", task(id), queue.EnqueueOptions{ID: id}); err != nil {
		t.Fatalf("Enqueue(%s) = %v", id, err)
	}
}

func receive(t testing.TB, got <-chan queue.Task) {
	t.Helper()
	select {
	case <-got:
	case <-time.After(timeout):
		t.Fatal("no task arrived")
	}
}

// collect waits until all have arrived; some may come more than once.
func collect(t *testing.T, got <-chan queue.Task, want []string) {
	t.Helper()
	missing := map[string]bool{}
	for _, id := range want {
		missing[id] = true
	}
	for late := time.After(timeout * 3); len(missing) > 0; {
		select {
		case task := <-got:
			delete(missing, task.Ref.ID)
		case <-late:
			t.Fatalf("%d of %d tasks did not arrive: %v", len(missing), len(want), missing)
		}
	}
}

// BenchmarkHop measures from before Enqueue until the handler has the task, one task at a time on an idle server.
func BenchmarkHop(b *testing.B) {
	for _, mode := range []string{"default", "poll5ms", "hook"} {
		b.Run(mode, func(b *testing.B) {
			r := testbed.NewRedis(b)
			got := make(chan queue.Task, 10)
			if mode == "hook" {
				serve(b, r.Dial, got)
			} else {
				poll(b, r.Client(b), mode, got)
			}
			c := queue.NewClient(r.Client(b), nil)
			send(b, c, "job_warm")
			receive(b, got)
			var hops []time.Duration
			for i := 0; b.Loop(); i++ {
				start := time.Now()
				send(b, c, fmt.Sprintf("job_%d", i))
				receive(b, got)
				hops = append(hops, time.Since(start))
				if mode == "hook" { // the server must become idle, or the next task reaches it awake
					<-time.After(5 * time.Millisecond)
				}
			}
			slices.Sort(hops)
			b.ReportMetric(float64(hops[len(hops)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(hops[len(hops)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}

// poll runs asynq with its default polling interval, or with a short one.
func poll(b *testing.B, rdb redis.UniversalClient, mode string, got chan<- queue.Task) {
	b.Helper()
	cfg := asynq.Config{Concurrency: 4, Queues: map[string]int{"cpu": 1}, LogLevel: asynq.ErrorLevel}
	if mode == "poll5ms" {
		cfg.TaskCheckInterval = 5 * time.Millisecond
	}
	s := asynq.NewServerFromRedisClient(rdb, cfg)
	testbed.Must(b, s.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { got <- queue.Task{}; return nil })))
	b.Cleanup(s.Shutdown)
}

//go:build integration

package dispatch_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
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

// A job that is waited for takes few commands of Redis from its request to the answer: the script that accepts it enqueues it, the one that ends
// it writes its last events, and the message of its end has the answer.
func TestCommandsOfAJob(t *testing.T) {
	t.Parallel()
	server := testbed.NewRedis(t)
	api, worker := server.Client(t), server.Client(t)
	records, workerRecords := store.New(api, queue.EnqueueLua(), store.Options{}), store.New(worker, queue.EnqueueLua(), store.Options{})
	front := dispatch.New(records, queue.NewClient(api, nil), farm.DefaultLimits(), nil)
	back := dispatch.New(workerRecords, queue.NewClient(worker, nil), farm.DefaultLimits(), nil)
	t.Cleanup(func() { _ = records.Close() })
	s, err := queue.NewServer(server.Dial, queue.ServerConfig{
		Queues: map[string]int{farm.QueueCPU: 1}, Concurrency: 4,
		Handler: func(ctx context.Context, task queue.Task) error {
			c, err := workerRecords.Claim(ctx, task.Ref, "w")
			if err != nil {
				return err
			}
			return back.Finish(ctx, store.Finish{
				Ref: task.Ref, Attempt: c.Job.Attempt, State: farm.JobCompleted, LastEvent: 1,
				Events: []farm.Event{{ID: "1-1", Name: farm.EventStdout, Text: "1\n"}},
				Result: &farm.Result{Execute: &farm.ExecuteResult{Stdout: "1\n"}},
			})
		},
	})
	testbed.Must(t, err)
	testbed.Must(t, s.Start())
	t.Cleanup(s.Stop)
	box := ""
	run := func() {
		t.Helper()
		a := storetest.Create()
		if box != "" {
			a = storetest.Execute(box)
		}
		watch, err := records.Watch(t.Context(), a.Job.ID)
		testbed.Must(t, err)
		defer watch.Close()
		watch.OnlyEnd()
		out, err := front.Submit(t.Context(), a)
		testbed.Must(t, err)
		select {
		case <-watch.C():
		case <-time.After(time.Minute):
			t.Fatal("the job does not end")
		}
		job, err := records.Reload(t.Context(), out.Job, watch)
		testbed.Require(t, err == nil && job.State == farm.JobCompleted && job.Result.Execute.Stdout == "1\n", "Reload = %+v, %v", job, err)
		box = a.Job.SandboxID
	}
	for range 3 {
		run() // scripts are loaded, tenants remembered
	}
	seen := make(chan string, 100)
	tell := testbed.Hook(func(cmds []redis.Cmder, next func(...redis.Cmder) error) error {
		for _, cmd := range cmds {
			seen <- fmt.Sprint(cmd.Args()[0])
		}
		return next(cmds...)
	})
	api.AddHook(tell)
	worker.AddHook(tell)
	run()
	testbed.Diff(t, "a job took the commands", "evalsha evalsha evalsha", strings.Join(drain(seen), " "))
}

// drain gives the commands so far, without those that a Store sends once a second or a minute.
func drain(c chan string) (all []string) {
	for {
		select {
		case s := <-c:
			if s != "info" && s != "sadd" {
				all = append(all, s)
			}
		default:
			return all
		}
	}
}

// BenchmarkEnqueue compares two ways to put the task of an accepted job into its queue: in the script that accepts it, and by asynq's client after
// it (docs/adr/0021-tasks-are-enqueued-by-the-scripts.md). The two alternate, on one Redis; it reports the median of each.
func BenchmarkEnqueue(b *testing.B) {
	limits := farm.DefaultLimits()
	limits.MaxWaiting, limits.MaxQueued, limits.MaxQueueDepth = 1<<30, 1<<30, 1<<30
	rdb := testbed.NewRedis(b).Client(b)
	inScript := store.New(rdb, queue.EnqueueLua(), store.Options{Limits: limits})
	apart := store.New(rdb, storetest.NoTasks, store.Options{Limits: limits})
	client := queue.NewClient(rdb, nil)
	defer inScript.Close()
	defer apart.Close()
	ways := map[string]func(store.Accept) error{
		"script": func(a store.Accept) error {
			_, err := inScript.Accept(b.Context(), a)
			return err
		},
		"client": func(a store.Accept) error {
			got, err := apart.Accept(b.Context(), a)
			if err != nil {
				return err
			}
			return client.Enqueue(b.Context(), farm.QueueCPU, queue.Task{Type: queue.TypeJob, Ref: got.Job.Ref()}, queue.EnqueueOptions{ID: got.Job.ID})
		},
	}
	took := map[string][]time.Duration{}
	for b.Loop() {
		for name, way := range ways {
			a, began := storetest.Create(), time.Now()
			testbed.Must(b, way(a))
			took[name] = append(took[name], time.Since(began))
		}
	}
	for name, all := range took {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds()), name+"-µs")
	}
}

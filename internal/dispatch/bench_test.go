//go:build integration

package dispatch_test

import (
	"slices"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

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
			if err := way(a); err != nil {
				b.Fatal(err)
			}
			took[name] = append(took[name], time.Since(began))
		}
	}
	for name, all := range took {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds()), name+"-µs")
	}
}

//go:build integration

package worker

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// onRedis moves the farm's records to a redis-server of its own. Workers wait a second for it.
func (b *bundle) onRedis() (server *testbed.Redis, tasks *queue.Client) {
	b.T.Helper()
	server = testbed.NewRedis(b.T)
	rdb := server.Client(b.T)
	b.Store = store.New(rdb, queue.EnqueueLua(), store.Options{Logger: b.Log, Documents: b.Blobs})
	tasks = queue.NewClient(rdb, b.Log)
	b.Dispatch = dispatch.New(b.Store, tasks, farm.DefaultLimits(), b.Log)
	impatient := redis.NewClient(&redis.Options{Network: "unix", Addr: server.Socket, ReadTimeout: time.Second, MaxRetries: 1})
	b.T.Cleanup(func() { _ = impatient.Close() })
	b.deps.Store = store.New(impatient, queue.EnqueueLua(), store.Options{Logger: b.Log, Documents: b.Blobs})
	b.deps.Dispatch = dispatch.New(b.deps.Store, queue.NewClient(impatient, b.Log), farm.DefaultLimits(), b.Log)
	b.T.Cleanup(func() { _, _ = b.Store.Close(), b.deps.Store.Close() })
	return server, tasks
}

// Jobs end while Redis is paused. When it goes on it carries out what it received, also the calls whose callers have given up. Each end is
// committed once, no output is doubled, and the next job of each sandbox is enqueued by the worker.
func TestJobsEndWhileRedisIsPaused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.UploadRetry = 1 // any pause lasts longer
	server, tasks := b.onRedis()
	w := b.worker()
	type running struct {
		job, next farm.Ref
		handled   <-chan error
	}
	var all []running
	var ends []func()
	for range 5 {
		box := b.Ready()
		job, handled, end := b.ending(w, box, b.agent(box, w))
		all = append(all, running{job, b.Command(box, "true"), handled})
		ends = append(ends, end)
	}
	server.Pause()
	for _, end := range ends {
		end()
	}
	select { // the callers give up several times
	case err := <-all[0].handled:
		t.Errorf("the worker gave a job up: %v", err)
	case <-time.After(5 * time.Second):
	}
	server.Resume()
	for _, r := range all {
		workertest.Must(t, <-r.handled)
		b.endedOnce(r.job, 1)
		if enqueued, err := tasks.Has(t.Context(), farm.QueueCPU, r.next.ID); err != nil || !enqueued {
			t.Errorf("the next job is enqueued: %v, %v", enqueued, err)
		}
	}
}

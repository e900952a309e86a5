package queue_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
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
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Contains(object, []byte("redis/go-redis/v9.baseClient;")); got != compiles {
			t.Errorf("the object of %s has code of the Redis client: %v, want %v", name, got, compiles)
		}
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
			if err := c.Enqueue(t.Context(), name, queue.Task{Type: queue.TypeJob, Ref: farm.Ref{Tenant: "t", ID: id}}, queue.EnqueueOptions{ID: id}); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := keys(t, rdb, "asynq:{node-b}*")
	if err := rdb.LMove(t.Context(), "asynq:{node-a}:pending", "asynq:{node-a}:active", "left", "left").Err(); err != nil { // its server died
		t.Fatal(err)
	}
	for range 2 { // a second time it is gone already
		if err := c.RemoveQueue(t.Context(), "node-a"); err != nil {
			t.Fatal(err)
		}
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
	if err := c.Register(t.Context(), "cpu", "node-a"); err != nil {
		t.Fatal(err)
	}
	depths, err := c.Depths(t.Context())
	if err != nil || len(depths) != 2 || depths[0].Name != "cpu" || depths[1].Name != "node-a" {
		t.Errorf("Depths = %+v, %v", depths, err)
	}
}

func keys(t *testing.T, rdb *redis.Client, pattern string) []string {
	t.Helper()
	found, err := rdb.Keys(t.Context(), pattern).Result()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found)
	return found
}

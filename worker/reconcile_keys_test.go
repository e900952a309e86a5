package worker

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// keyCounter counts the keys that commands name.
type keyCounter struct{ keys atomic.Int64 }

func (c *keyCounter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (c *keyCounter) count(cmd redis.Cmder) {
	switch args := cmd.Args(); cmd.Name() {
	case "evalsha", "eval":
		if n, ok := args[2].(int); ok {
			c.keys.Add(int64(n))
		}
	case "hello", "client": // of a new connection, which a busy machine may need at any time
	default:
		c.keys.Add(1)
	}
}

func (c *keyCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count(cmd)
		return next(ctx, cmd)
	}
}

func (c *keyCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			c.count(cmd)
		}
		return next(ctx, cmds)
	}
}

// A reconciler reads what concerns its own node: with 10 sandboxes in a farm of 10,000 fewer than 50 keys.
func TestReconcileReadsItsOwnNode(t *testing.T) {
	t.Parallel()
	b := setup(t)
	counter := &keyCounter{}
	b.deps.Store = b.StoreBehind(counter)
	w := b.measured(64<<10, 64)
	for range 10 {
		b.Fake.Put(b.Ready().ID, true)
	}
	others := b.Ready()
	_, err := b.Store.MoveSandbox(t.Context(), store.Move{Ref: others, Node: "n2"})
	workertest.Must(t, err)

	rdb := redis.NewClient(&redis.Options{Addr: b.Redis.Addr()})
	defer func() { _ = rdb.Close() }()
	record, err := rdb.HGetAll(t.Context(), "sf:{acme}:sbx:"+others.ID).Result()
	workertest.Must(t, err)
	const records, tenants = 10_000, 20
	for tenant := range tenants {
		name := fmt.Sprintf("tenant%d", tenant)
		pipe := rdb.Pipeline()
		pipe.SAdd(t.Context(), "sf:tenants", name)
		for i := range records / tenants {
			id := fmt.Sprintf("sbx_%d", i)
			pipe.HSet(t.Context(), "sf:{"+name+"}:sbx:"+id, record)
			pipe.ZAdd(t.Context(), "sf:{"+name+"}:openboxes", redis.Z{Score: float64(i), Member: id})
		}
		_, err := pipe.Exec(t.Context())
		workertest.Must(t, err)
		_, err = b.Store.RepairUse(t.Context(), name) // makes the index of nodes
		workertest.Must(t, err)
	}
	nodes, err := b.Store.NodesInUse(t.Context())
	if err != nil || len(nodes["n2"]) != tenants+1 || len(nodes["n1"]) != 1 {
		t.Fatalf("NodesInUse = %d nodes, %v", len(nodes), err)
	}

	workertest.Must(t, w.reconciler.Run(t.Context())) // makes reservations
	counter.keys.Store(0)
	workertest.Must(t, w.reconciler.Run(t.Context()))
	n := counter.keys.Load()
	t.Logf("a reconcile of 10 sandboxes in a farm of %d names %d keys", records, n)
	if n >= 50 {
		t.Errorf("a reconcile of 10 sandboxes names %d keys, want fewer than 50", n)
	}
	open, err := b.Store.OpenOnNode(t.Context(), w.node.ID())
	if err != nil || len(open) != 10 {
		t.Errorf("the node has %d open sandboxes, %v", len(open), err)
	}
	for _, s := range open {
		if s.State != farm.SandboxReady {
			t.Errorf("sandbox %s is %s", s.ID, s.State)
		}
	}
}

//go:build integration

package store_test

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const timeout = 20 * time.Second

// TestSubscriptionsOutliveACut cuts the connections of a watch and of a worker's cancels, and changes records while they are
// disconnected: both are signalled to read again, and receive later messages.
func TestSubscriptionsOutliveACut(t *testing.T) {
	t.Parallel()
	server := testbed.NewRedis(t)
	proxy := testbed.NewProxy(t, server)
	rdb := proxy.Dial()
	remote, local := store.New(rdb, storetest.NoTasks, store.Options{}), store.New(server.Client(t), storetest.NoTasks, store.Options{})
	t.Cleanup(func() { _, _ = remote.Close(), rdb.Close() })
	ctx, a := t.Context(), storetest.Create()
	_, err := local.Accept(ctx, a)
	testbed.Must(t, err)
	w, err := remote.Watch(ctx, a.Job.ID)
	testbed.Must(t, err)
	defer w.Close()
	cancels, err := remote.Cancels(ctx)
	testbed.Must(t, err)
	defer cancels.Close()

	proxy.Cut()
	_, err = local.Claim(ctx, a.Job.Ref(), "w")
	testbed.Must(t, err) // no subscriber receives this
	awake(t, w)
	select {
	case ref := <-cancels.C():
		testbed.Check(t, ref == (farm.Ref{}), "after a cut the worker receives %+v, want the zero Ref", ref)
	case <-time.After(timeout):
		t.Error("the worker is not signalled to read again")
	}
	_, _, err = local.Cancel(ctx, a.Job.Ref(), nil)
	testbed.Must(t, err)
	select {
	case ref := <-cancels.C():
		testbed.Check(t, ref == a.Job.Ref(), "the worker receives %+v", ref)
	case <-time.After(timeout):
		t.Error("the worker does not receive a cancel after a cut")
	}
	testbed.Must(t, local.AppendEvents(ctx, a.Job.Ref(), 0, []farm.Event{{Name: farm.EventStdout, Text: "x"}}))
	awake(t, w)
}

func awake(t *testing.T, w *store.Watch) {
	t.Helper()
	select {
	case <-w.C():
	case <-time.After(timeout):
		t.Fatal("the watch does not fire")
	}
}

// TestOnCluster runs the suite on a Redis Cluster of one node, with strict scripts: Redis refuses those that touch keys of several slots.
func TestOnCluster(t *testing.T) {
	t.Parallel()
	addr := startCluster(t)
	storetest.Run(t, func(t *testing.T) redis.UniversalClient {
		t.Helper()
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}})
		rdb.AddHook(&strict{})
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	})
}

func startCluster(t *testing.T) string {
	t.Helper()
	port, bus := testbed.Port(t), testbed.Port(t)
	cmd := exec.CommandContext(t.Context(), "redis-server", "--port", port, "--cluster-enabled", "yes", "--cluster-port", bus,
		"--dir", t.TempDir(), "--save", "", "--loglevel", "warning", "--bind", "127.0.0.1")
	cmd.Stderr = os.Stderr
	testbed.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	addr := "127.0.0.1:" + port
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	testbed.Until(t, "the cluster answers", func() bool { return rdb.Ping(t.Context()).Err() == nil })
	testbed.Must(t, rdb.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	testbed.Until(t, "the cluster comes up", func() bool { return rdb.Set(t.Context(), "x", 1, 0).Err() == nil })
	return addr
}

//go:build integration

package farmd_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// replicated is a primary with two replicas, watched by three sentinels: real processes on ports of loopback.
type replicated struct {
	url     string
	servers []*exec.Cmd // the first is the primary
}

func newReplicated(t *testing.T) *replicated {
	t.Helper()
	r := &replicated{}
	primary := testbed.Port(t)
	for i := range 3 {
		port := primary
		args := []string{"--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"}
		if i > 0 {
			port = testbed.Port(t)
			args = append(args, "--replicaof", "127.0.0.1 "+primary)
		}
		r.servers = append(r.servers, redisProcess(t, port, args...))
	}
	direct := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + primary})
	defer func() { _ = direct.Close() }()
	testbed.Until(t, "both replicas follow the primary", func() bool {
		return strings.Contains(direct.Info(t.Context(), "replication").Val(), "connected_slaves:2")
	})
	var hosts []string
	for range 3 {
		port := testbed.Port(t)
		file := filepath.Join(t.TempDir(), "sentinel.conf")
		conf := fmt.Sprintf("sentinel monitor main 127.0.0.1 %s 2\nsentinel down-after-milliseconds main 2000\nsentinel failover-timeout main 10000\n", primary)
		testbed.Must(t, os.WriteFile(file, []byte(conf), 0o600))
		redisProcess(t, port, "SENTINEL", file)
		hosts = append(hosts, "127.0.0.1:"+port)
	}
	r.url = "sentinel://" + strings.Join(hosts, ",") + "/main?db=1"
	for _, host := range hosts { // a failover needs sentinels that know each other and the replicas
		sentinel := redis.NewSentinelClient(&redis.Options{Addr: host})
		testbed.Until(t, "the sentinels know each other", func() bool {
			others, err := sentinel.Sentinels(t.Context(), "main").Result()
			replicas, _ := sentinel.Replicas(t.Context(), "main").Result()
			return err == nil && len(others) == 2 && len(replicas) == 2
		})
		_ = sentinel.Close()
	}
	return r
}

// redisProcess starts a redis-server; with SENTINEL and a file it is a sentinel.
func redisProcess(t *testing.T, port string, args ...string) *exec.Cmd {
	t.Helper()
	all := append([]string{"--port", port, "--bind", "127.0.0.1", "--dir", t.TempDir(), "--loglevel", "warning"}, args...)
	if args[0] == "SENTINEL" {
		all = append([]string{args[1], "--sentinel"}, all[:len(all)-2]...)
	}
	cmd := exec.Command("redis-server", all...) //nolint:gosec // a test's own arguments
	cmd.Stderr = os.Stderr
	testbed.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	defer func() { _ = rdb.Close() }()
	testbed.Until(t, "redis-server answers", func() bool { return rdb.Ping(t.Context()).Err() == nil })
	return cmd
}

// A record that was accepted with durability replica is there after the primary was killed, and the next one is accepted, by the same client.
func TestSentinelsNameTheNextPrimary(t *testing.T) {
	t.Parallel()
	r := newReplicated(t)
	address, err := farmd.ParseRedis(r.url)
	testbed.Must(t, err)
	rdb := address.Open()
	defer func() { _ = rdb.Close() }()
	records := store.New(rdb, queue.EnqueueLua(), store.Options{Durability: store.DurabilityReplica})
	defer func() { _ = records.Close() }()
	accept := func() (farm.Ref, error) {
		box := &farm.Sandbox{ID: farm.NewID(farm.SandboxPrefix), Tenant: "acme", State: farm.SandboxQueued, Spec: farm.SandboxSpec{Image: "python"}, CreatedAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour)}
		job := &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: "acme", Kind: farm.KindCreate, SandboxID: box.ID, State: farm.JobQueued, CreatedAt: time.Now()}
		_, err := records.Accept(t.Context(), store.Accept{Job: job, Sandbox: box, Request: &farm.Request{}})
		return job.Ref(), err
	}
	var accepted []farm.Ref
	for range 20 {
		ref, err := accept()
		testbed.Must(t, err)
		accepted = append(accepted, ref)
	}
	testbed.Must(t, r.servers[0].Process.Kill())
	testbed.Until(t, "a job is accepted by the next primary", func() bool {
		ref, err := accept()
		if err == nil {
			accepted = append(accepted, ref)
		} else if farm.CodeOf(err) != farm.CodeUnavailable {
			t.Errorf("until then: %v", err)
		}
		return err == nil
	})
	// The primary has a replica again: the durability holds as before.
	if role, err := rdb.Do(t.Context(), "ROLE").Slice(); err != nil || role[0] != "master" || len(role[2].([]any)) != 1 {
		t.Errorf("the next primary: %v, %v", role, err)
	}
	for _, ref := range accepted {
		if _, err := records.Job(t.Context(), ref); err != nil {
			t.Errorf("accepted job %s: %v", ref.ID, err)
		}
	}
}

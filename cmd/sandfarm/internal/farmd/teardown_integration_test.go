//go:build integration

package farmd_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A caretaker that is stopped removes the sandboxes, but not while a container with the named labels runs.
func TestCaretakerRemovesSandboxesWhenNoWorkerRuns(t *testing.T) {
	t.Parallel()
	namespace := "sandfarm-test-" + farm.NewID("")
	e, err := engine.New(engine.Config{Namespace: namespace})
	testbed.Must(t, err)
	const image = "sandfarm/python:latest"
	t.Cleanup(func() {
		ctx, done := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer done()
		for _, err := range []error{e.RemoveAll(ctx, true), e.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	volume, err := e.EnsureAgent(t.Context(), "v1", "runc", func(context.Context) ([]farm.AgentProgram, error) {
		return []farm.AgentProgram{{Name: "agent", Data: []byte("never run")}}, nil
	}, image)
	testbed.Must(t, err)
	node, err := e.NodeID(t.Context())
	testbed.Must(t, err)
	id := farm.NewID(farm.SandboxPrefix)
	made, err := e.Create(t.Context(), farm.ContainerSpec{
		SandboxID: id, Tenant: "t", Node: node, Deadline: time.Now().Add(time.Hour), Image: image, Command: []string{"sleep", "600"},
		Agent: volume, Resources: farm.Resources{MemoryMB: 64, CPUs: 0.5, PIDs: 16, DiskMB: 16},
	})
	testbed.Must(t, err)
	testbed.Must(t, e.Start(t.Context(), made))
	s := &farmd.Settings{Engine: farmd.EngineSettings{Namespace: namespace}}

	// The sandbox itself stands for a worker that runs.
	if output := caretake(t, s, engine.LabelSandbox+"="+id); !strings.Contains(output, "the sandboxes stay") {
		t.Errorf("output %q", output)
	}
	if left, err := e.List(t.Context()); err != nil || len(left) != 1 {
		t.Fatalf("containers %v, error %v; want the sandbox", left, err)
	}
	if output := caretake(t, s, engine.LabelSandbox+"=sbx_none"); !strings.Contains(output, "removed every sandbox") {
		t.Errorf("output %q", output)
	}
	if left, err := e.List(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("containers %v, error %v; want none", left, err)
	}
	if again, err := e.NodeID(t.Context()); err != nil || again != node {
		t.Errorf("node %s, error %v; want it to keep its name %s", again, err, node)
	}
	if err := farmd.Teardown(t.Context(), &farmd.Settings{}, []string{"a=b"}, io.Discard); err == nil || !strings.Contains(err.Error(), "engine.namespace") {
		t.Errorf("without a namespace: error %v", err)
	}
	if err := farmd.Teardown(t.Context(), s, nil, io.Discard); err == nil {
		t.Error("without labels: no error, though no worker could ever keep its sandboxes")
	}
}

// caretake runs a caretaker until it is ready, stops it, and returns its output.
func caretake(t *testing.T, s *farmd.Settings, label string) string {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	output := &recorder{line: func(text string) {
		if strings.Contains(text, "waiting to remove") {
			stop()
		}
	}}
	testbed.Must(t, farmd.Teardown(ctx, s, []string{label}, output))
	return output.String()
}

// recorder stores its input and reports each write.
type recorder struct {
	bytes.Buffer
	line func(string)
}

func (w *recorder) Write(p []byte) (int, error) {
	w.line(string(p))
	return w.Buffer.Write(p)
}

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

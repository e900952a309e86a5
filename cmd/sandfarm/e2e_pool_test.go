//go:build integration

package main_test

import (
	"crypto/rand"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// TestWarmPool runs a farm with a pool and claims members in different conditions.
func TestWarmPool(t *testing.T) {
	t.Parallel()
	namespace := "sandfarm-pool-" + strings.ToLower(rand.Text()[:8])
	f := newFarm(t, "SANDFARM_WORKER_POOL=python=5", "SANDFARM_ENGINE_NAMESPACE="+namespace)
	f.awaitPool(5)
	t.Run("NoDataOfAnEarlierSandbox", f.nothingLeft)
	t.Run("OneShotRuns", f.pooledRun)
	t.Run("DeadMember", func(t *testing.T) { f.deadMembers(t, namespace) })
	t.Run("DownLeavesNothing", func(t *testing.T) { f.poolGone(t, namespace) })
}

// TestAutomaticPool runs a farm that chooses the size of its pool: one member, and none while a sandbox has reserved what is free.
func TestAutomaticPool(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("docker", "info", "--format", "{{.NCPU}}").Output()
	testbed.Must(t, err)
	cores, err := strconv.Atoi(strings.TrimSpace(string(out)))
	testbed.Must(t, err)
	// Sandboxes can reserve 16 cores, a member reserves 2: that is the eighth that the pool gets.
	f := newFarm(t, "SANDFARM_WORKER_POOL=auto", fmt.Sprintf("SANDFARM_WORKER_CPU_OVERCOMMIT=%g", 16/float64(cores)))
	await := func(target, ready int) {
		t.Helper()
		until(t.Context(), t, fmt.Sprintf("%d of %d members are ready", ready, target), 3*time.Minute, func() bool {
			workers, err := f.Workers(t.Context())
			return err == nil && len(workers) == 1 && slices.Equal(workers[0].Pool, []wire.PoolStock{{Image: "python", Target: target, Ready: ready}})
		})
	}
	await(1, 1)
	box := f.sandbox(wire.CreateRequest{})
	testbed.Diff(t, "creates that came from the pool", 1.0, f.metric(hits))
	await(0, 0)
	_, err = f.Close(t.Context(), box.ID, client.WithWait(time.Minute))
	testbed.Must(t, err)
	await(1, 1)
}

// pool is the number of ready members.
func (f *farmProcess) pool() int {
	workers, err := f.Workers(f.t.Context())
	if err != nil {
		return -1
	}
	ready := 0
	for _, w := range workers {
		for _, p := range w.Pool {
			ready = max(ready, p.Ready)
		}
	}
	return ready
}

func (f *farmProcess) awaitPool(n int) {
	f.t.Helper()
	until(f.t.Context(), f.t, "the pool is filled", 3*time.Minute, func() bool { return f.pool() >= n })
}

// hits is the metric of creates that claimed a member.
const hits = `sandfarm_pool_claims_total{outcome="hit"}`

func (f *farmProcess) nothingLeft(t *testing.T) {
	const look = `import os, sys
print(sorted(n for n in globals() if not n.startswith('_')), os.listdir('/workspace'), os.listdir('/tmp'), len(In), 'pandas' in sys.modules, 'secret' in globals())`
	first := f.sandbox(wire.CreateRequest{})
	fresh := f.run(first.ID, look).Stdout
	if !strings.Contains(fresh, "True False") || !strings.Contains(fresh, "[] [] 2") && !strings.Contains(fresh, "[] ") {
		t.Errorf("the first output in a pooled sandbox is %s", fresh)
	}
	f.run(first.ID, "secret = 1\nopen('/workspace/secret', 'w').write('x')\nopen('/tmp/secret', 'w').write('x')\nNone")
	_, err := f.Close(t.Context(), first.ID, client.WithWait(time.Minute))
	testbed.Must(t, err)
	second := f.sandbox(wire.CreateRequest{})
	testbed.Diff(t, "the first output in the next one", fresh, f.run(second.ID, look).Stdout)
	if first.ID == second.ID {
		t.Error("two sandboxes have one id")
	}
	testbed.Diff(t, "creates that came from the pool", 2.0, f.metric(hits))
}

func (f *farmProcess) pooledRun(t *testing.T) {
	f.awaitPool(1)
	before := f.metric(hits)
	job, err := f.Run(t.Context(), wire.RunRequest{Code: "print(6 * 7)"}, client.WithWait(time.Minute))
	if err != nil || job.Result == nil || job.Result.Execute.Stdout != "42\n" {
		t.Fatalf("run: %v %+v", err, job)
	}
	if f.metric(hits) == before {
		t.Error("the sandbox did not come from the pool")
	}
}

// Killed members are noticed before a create claims them, or replaced at once: no create fails.
func (f *farmProcess) deadMembers(t *testing.T, namespace string) {
	f.awaitPool(2)
	out, err := exec.Command("docker", "ps", "-q", "--filter", "label=sandfarm.pool=python", "--filter", "label=sandfarm.namespace="+namespace).Output()
	if err != nil || len(strings.Fields(string(out))) < 2 {
		t.Fatalf("members: %v %s", err, out)
	}
	for _, id := range strings.Fields(string(out)) {
		out, err := exec.Command("docker", "kill", id).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "is not running") && !strings.Contains(string(out), "No such container") { // it has just exited
			t.Fatalf("kill: %v %s", err, out)
		}
	}
	for range 3 {
		testbed.Diff(t, "code", "lives\n", f.run(f.sandbox(wire.CreateRequest{}).ID, "print('lives')").Stdout)
	}
}

func (f *farmProcess) poolGone(t *testing.T, namespace string) {
	f.stop(syscall.SIGTERM)
	down := exec.Command(program, "down")
	down.Env = f.env
	if out, err := down.CombinedOutput(); err != nil {
		t.Fatalf("down: %v %s", err, out)
	}
	for _, list := range [][]string{{"ps", "-aq"}, {"volume", "ls", "-q"}} {
		if out, err := exec.Command("docker", append(list, "--filter", "label=sandfarm.namespace="+namespace)...).Output(); err != nil || len(out) != 0 {
			t.Errorf("docker %v still lists: %v %s", list, err, out)
		}
	}
}

//go:build integration

package main_test

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/client"
	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// nodesFarm is a farm on two engines, each with room for four sandboxes of small.
type nodesFarm struct {
	*servicesFarm
	second *enginetest.Daemon
}

const smallMB = 256

func small() wire.CreateRequest {
	memory, cpus := smallMB, 0.25
	return wire.CreateRequest{Resources: &wire.ResourcesRequest{MemoryMB: &memory, CPUs: &cpus}}
}

func newNodesFarm(t *testing.T) *nodesFarm {
	t.Helper()
	f := &nodesFarm{servicesFarm: newServicesFarm(t), second: enginetest.New(t, enginetest.Options{})}
	f.second.Load("sandfarm/python")
	t.Cleanup(func() { // before the farm ends
		if t.Failed() {
			workers, err := f.Workers(context.WithoutCancel(t.Context()))
			t.Logf("the workers are %+v (error %v)", workers, err)
		}
	})
	out, err := exec.Command("docker", "info", "--format", "{{.MemTotal}}").Output()
	testbed.Must(t, err)
	bytes, err := strconv.Atoi(strings.TrimSpace(string(out)))
	testbed.Must(t, err)
	f.kill("worker", syscall.SIGTERM)
	f.env = append(f.env, "SANDFARM_WORKER_MEMORY_OVERCOMMIT=1", "SANDFARM_WORKER_ENGINE_TIMEOUT=3s",
		fmt.Sprintf("SANDFARM_WORKER_MEMORY_RESERVE_MB=%d", bytes>>20-4*smallMB))
	f.commands["worker 2"] = []string{"env", "SANDFARM_ENGINE_HOST=" + f.second.Host, program, "worker"}
	f.startParts("worker", "worker 2")
	until(t.Context(), t, "both workers are registered", time.Minute, func() bool {
		workers, err := f.Workers(t.Context())
		return err == nil && len(workers) == 2 && workers[0].Node != workers[1].Node
	})
	return f
}

// awaitScale waits until the farm says of its nodes what ok wants: the answer is as of the last heartbeats.
func (f *nodesFarm) awaitScale(what string, ok func(wire.NodeNeed) bool) {
	f.t.Helper()
	var last []wire.NodeNeed
	defer func() {
		if f.t.Failed() {
			f.t.Logf("the farm says last that it needs %+v", last)
		}
	}()
	until(f.t.Context(), f.t, what, time.Minute, func() bool {
		found, err := f.Scale(f.t.Context())
		testbed.Must(f.t, err)
		last = found
		return len(found) == 1 && found[0].Kind == "cpu" && ok(found[0])
	})
}

// onSecond reports whether a sandbox's container is in the second engine; it must be in exactly one.
func (f *nodesFarm) onSecond(sandbox string) bool {
	f.t.Helper()
	filter := "label=sandfarm.sandbox=" + sandbox
	second := f.second.Docker("ps", "--quiet", "--filter", filter)
	first, err := exec.Command("docker", "ps", "--quiet", "--filter", filter).Output()
	if err != nil || (len(first) > 0) == (second != "") {
		f.t.Fatalf("sandbox %s: %q in the first engine, %q in the second (%v)", sandbox, first, second, err)
	}
	return second != ""
}

// fill creates sandboxes concurrently and returns them by their engine.
func (f *nodesFarm) fill(n int) (first, second []string) {
	f.t.Helper()
	made := make(chan string, n)
	var group sync.WaitGroup
	for range n {
		group.Go(func() {
			out, err := f.CreateSandbox(f.t.Context(), small(), client.WithWait(60*time.Second))
			if err != nil || out.Job.State != "completed" {
				f.t.Errorf("create: %v %+v", err, out.Job)
				return
			}
			made <- out.Sandbox.ID
		})
	}
	group.Wait()
	close(made)
	for id := range made {
		if f.onSecond(id) {
			second = append(second, id)
		} else {
			first = append(first, id)
		}
	}
	return first, second
}

func (f *nodesFarm) close(sandbox string) {
	f.t.Helper()
	if job, err := f.Close(f.t.Context(), sandbox, client.WithWait(60*time.Second)); err != nil || job.State != "completed" {
		f.t.Fatalf("close: %v %+v", err, job)
	}
}

// TestTwoNodes runs a farm on two engines: sandboxes start where there is room, and their jobs run there; a create without
// room waits and reports its position; a create larger than every node is refused. Then one engine dies.
func TestTwoNodes(t *testing.T) {
	t.Parallel()
	f := newNodesFarm(t)
	first, second := f.fill(8)
	if len(first) != 4 || len(second) != 4 {
		t.Fatalf("%d sandboxes are on the first engine and %d on the second, want 4 and 4: each has room for four", len(first), len(second))
	}
	for i, id := range append(first, second...) {
		f.run(id, fmt.Sprintf("open('mark', 'w').write('%d')", i))
	}
	for i, id := range append(first, second...) {
		testbed.Diff(t, fmt.Sprintf("sandbox %d", i), fmt.Sprintf("%d\n", i), f.run(id, "print(open('mark').read())").Stdout)
	}
	until(t.Context(), t, "each worker says that its node is full", time.Minute, func() bool { // with its next heartbeat
		workers, err := f.Workers(t.Context())
		return err == nil && !slices.ContainsFunc(workers, func(w wire.Worker) bool {
			return w.Capacity.MemoryMB < 4*smallMB || w.Capacity.MemoryMB >= 5*smallMB || w.Promised.MemoryMB != 4*smallMB || w.Promised.CPUs != 1
		})
	})

	var waiting []wire.Job
	for range 3 {
		made, err := f.CreateSandbox(t.Context(), small())
		testbed.Must(t, err)
		waiting = append(waiting, made.Job)
	}
	until(t.Context(), t, "the creates wait in their order", time.Minute, func() bool {
		for i := range waiting {
			job, err := f.Job(t.Context(), waiting[i].ID)
			if err != nil || job.State != "queued" || job.Position != i+1 || job.EstimateSeconds == nil || *job.EstimateSeconds <= 0 || job.Attempt != 0 {
				return false
			}
		}
		return true
	})
	f.awaitScale("three small ones fit into one more node", func(n wire.NodeNeed) bool {
		return n.Nodes == 2 && n.Wanted == 3 && n.Waiting == 3 && n.Placeable == 0 && n.IdleNodes == 0 && n.OldestSeconds >= 5 && n.Asked.MemoryMB == 3*smallMB
	})
	if r := f.ask("POST", "/v1/sandboxes", `{"resources":{"memory_mb":2048}}`); r.status != http.StatusUnprocessableEntity || !strings.Contains(r.detail, "larger than any node: the largest has") {
		t.Errorf("a sandbox larger than any node: %d %s", r.status, r.detail)
	}
	// A sandbox that waits for room can be closed, too.
	f.close(waiting[2].SandboxID)
	if job, err := f.Job(t.Context(), waiting[2].ID); err != nil || job.State != "canceled" {
		t.Errorf("the create of a sandbox that was closed: %v %+v", err, job)
	}
	// Each engine with room takes one. Of two that a worker takes at once, the later may get the room: only after half a minute one goes first.
	f.close(second[0])
	var next wire.Job
	until(t.Context(), t, "one that waits starts", time.Minute, func() bool {
		for i := range waiting[:2] {
			var err error
			if next, err = f.Job(t.Context(), waiting[i].ID); err == nil && next.State == "completed" {
				waiting = []wire.Job{waiting[i], waiting[1-i]}
				return true
			}
		}
		return false
	})
	if !f.onSecond(next.SandboxID) {
		t.Errorf("the one that starts is not where the room is: %+v", next)
	}
	f.close(first[0])
	if job, err := f.Wait(t.Context(), waiting[1].ID); err != nil || job.State != "completed" || f.onSecond(job.SandboxID) {
		t.Errorf("the other that waits: %v %+v", err, job)
	}

	f.awaitScale("nothing waits any more", func(n wire.NodeNeed) bool { return n.Nodes == 2 && n.Wanted == 2 && n.Waiting == 0 })

	f.second.Kill()
	died := time.Now()
	for _, id := range append(second[1:], waiting[0].SandboxID) {
		until(t.Context(), t, "the sandbox of the dead engine is marked lost", time.Minute, func() bool {
			s, err := f.Sandbox(t.Context(), id)
			return err == nil && s.State == string(farm.SandboxLost) && strings.Contains(s.Reason, "does not answer")
		})
	}
	t.Logf("the sandboxes of the dead engine were marked lost after %v", time.Since(died))
	f.close(first[1])
	f.close(first[2])
	for range 2 {
		s := f.sandbox(small())
		f.run(s.ID, "print(1)")
	}
	testbed.Diff(t, "a sandbox of the other engine", "3\n", f.run(first[3], "print(open('mark').read())").Stdout)
}

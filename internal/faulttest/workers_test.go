//go:build faults

package faulttest_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/faulttest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A worker is taken away for a while, or for ever, while it runs jobs.
func TestWorkersAreAway(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t)
	f := newFarm(t, faulttest.Config{Workers: 3, Links: true, Command: func(name string, argv []string) []string {
		if name != "worker-3" {
			return argv
		}
		return append([]string{"env", "TMPDIR=" + disk, "SANDFARM_DATA=" + disk}, argv...)
	}})
	workers := f.Workers()
	for _, d := range []time.Duration{12 * time.Second, 60 * time.Second}[:min(2, rounds())] {
		t.Run("Paused"+d.String(), func(t *testing.T) { away(t, f, "worker paused while code prints", d, f.Pause, f.Resume) })
	}
	t.Run("CutOff", func(t *testing.T) {
		away(t, f, "worker cut off from Redis, beside its successor", 15*time.Second,
			func(names ...string) { f.Link(names[0]).Hold(true) }, func(names ...string) { f.Link(names[0]).Hold(false) })
	})
	t.Run("DiskFull", func(t *testing.T) { diskFull(t, f, disk) })
	t.Run("OutOfMemory", func(t *testing.T) { outOfMemory(t, f) })
	t.Run("AllKilled", func(t *testing.T) {
		c := f.Case(t, "all workers killed, one started")
		boxes := c.Boxes(4)
		for range rounds() {
			work(c, boxes)
			moment(2 * time.Second)
			c.Fault(func() { f.Kill(workers...) }, func() { f.Back(workers[0]) })
			f.Back(workers[1:]...)
		}
		c.End()
	})
	t.Run("LeaderPaused", func(t *testing.T) {
		c := f.Case(t, "leading scheduler paused for 12 s, a worker killed")
		boxes := c.Boxes(3)
		for range rounds() {
			jobs := work(c, boxes)
			leader := f.AwaitLeader()
			holder := f.AwaitHolder(jobs[0].ID)
			c.Fault(func() { f.Pause(leader); f.Kill(holder) }, func() {
				<-time.After(12 * time.Second)
				f.Resume(leader)
			})
			f.Back(holder)
		}
		c.End()
	})
	f.End()
}

// away takes the worker of jobs that print away for a while. Another one takes them over; then the first comes back and believes that it has
// them still. No text appears twice.
func away(t *testing.T, f *faulttest.Farm, name string, d time.Duration, take, give func(names ...string)) {
	c := f.Case(t, fmt.Sprintf("%s, %s", name, d))
	boxes := c.Boxes(4)
	for range rounds() {
		var jobs []*faulttest.Job
		for _, box := range boxes {
			jobs = append(jobs, c.Insist(box, faulttest.Run{Lines: int(d/(100*time.Millisecond)) + 40, Files: 1}))
		}
		holder := f.AwaitHolder(jobs[0].ID)
		moment(time.Second)
		c.Fault(func() { take(holder) }, func() {
			<-time.After(d)
			give(holder)
		})
		for _, j := range jobs {
			f.Completed("a job", j.ID)
		}
	}
	c.End()
}

// smallDisk mounts a disk of 4 MiB. It needs root.
func smallDisk(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	testbed.Must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"))
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// diskFull fills the disk of the only worker: output and files pass through it all the same.
func diskFull(t *testing.T, f *faulttest.Farm, disk string) {
	c := f.Case(t, "disk of the worker full")
	boxes := c.Boxes(3)
	others := f.Workers()[:2]
	f.Term(others...)
	file := filepath.Join(disk, "full")
	c.Fault(func() {
		if err := os.WriteFile(file, make([]byte, 5<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("fill the disk: %v", err)
		}
	}, nil)
	for range rounds() {
		work(c, boxes)
		c.Insist(boxes[0], faulttest.Run{Code: "open('large.bin', 'wb').write(bytes(20 << 20))\nfor _ in range(100): print('x' * 100_000)", Want: []string{"completed"}})
		if err := f.Files(boxes[1]).Write(t.Context(), "sent.bin", bytes.NewReader(make([]byte, 20<<20))); err != nil {
			t.Errorf("upload: %v", err)
		}
		c.Completed("a job")
	}
	if err := os.Remove(file); err != nil {
		t.Error(err)
	}
	f.Back(others...)
	c.End()
}

// outOfMemory lets the kernel kill a worker for its memory: it is moved into a cgroup in which it cannot have any more.
func outOfMemory(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, "worker killed for its memory")
	boxes := c.Boxes(4)
	for range rounds() {
		jobs := work(c, boxes)
		holder := f.AwaitHolder(jobs[0].ID)
		c.Fault(func() {
			squeeze(t, f.PID(holder))
			for began := time.Now(); f.Alive(holder); <-time.After(200 * time.Millisecond) {
				if time.Since(began) > 3*time.Minute {
					t.Fatal("the kernel did not kill the worker")
				}
				c.Insist(boxes[0], faulttest.Run{Code: "print('x' * 200_000)", Out: xs(200_000)}) // it needs memory
			}
		}, nil)
		f.Back(holder)
	}
	c.End()
}

// xs is what print('x' * n) prints.
func xs(n int) string { return string(slices.Repeat([]byte("x"), n)) + "\n" }

// squeeze moves a process into a memory cgroup of 1 MiB. What it has stays where it was charged.
func squeeze(t *testing.T, pid int) {
	t.Helper()
	for _, l := range [][2]string{{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"}} {
		dir := filepath.Join(l[0], fmt.Sprintf("sandfarm-faults-%d", pid))
		if _, err := os.Stat(filepath.Join(l[0], "cgroup.procs")); err != nil || os.Mkdir(dir, 0o755) != nil { //nolint:gosec // a cgroup
			continue
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		err := os.WriteFile(filepath.Join(dir, l[1]), []byte(strconv.Itoa(1<<20)), 0)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
		}
		if err == nil {
			return
		}
		t.Logf("%s: %v", dir, err)
	}
	t.Fatal("no memory cgroup can be made here")
}

// nodeGone takes a node away, engine and worker, for longer than the farm's timeout: its sandboxes and their jobs are lost, with a sentence
// that says so, what was not ready starts elsewhere, and its queue is gone. Then the node comes back: its old containers are removed, and it
// takes new work. The scheduler that ends the node is killed at a point; the next one goes on.
func (e *engineCase) nodeGone(t *testing.T, p point) {
	c := e.Case(t, "a node gone for ever, then back")
	boxes := e.boxesThere(t, c, 3)
	c.Forget() // the effects of ended jobs are lost with the node
	var jobs []*faulttest.Job
	for n, box := range boxes {
		want := []string{"lost"}
		if n == 2 { // it may be closed before the node is gone
			want = []string{"lost", "canceled"}
		}
		jobs = append(jobs,
			c.Accept(box, faulttest.Run{Lines: 600, Want: want}),
			c.Accept(box, faulttest.Run{Want: []string{"canceled", "lost"}, Never: true}))
		e.AwaitHolder(jobs[len(jobs)-2].ID)
	}
	closing, err := e.Close(t.Context(), boxes[2])
	testbed.Must(t, err)
	node := e.nodeOf(t, boxes[0])
	with := map[string]string{"node_lease": "drop", "hdel": node, "srem": node}[p.call] // else the leader calls it also for others
	creates := e.startSome(t)
	t.Cleanup(func() {
		if t.Failed() {
			e.engine.Resume()
		}
	})
	c.Fault(func() {
		e.engine.Pause() // nothing in the containers notices
		e.Kill(e.doomed)
	}, killLeader(t, e.Farm, p, with, 1))
	for _, made := range creates {
		e.Completed("create", made.Job.ID)
	}
	for _, j := range jobs {
		end, err := e.Wait(t.Context(), j.ID)
		if err != nil || end.Error == nil || len(end.Error.Message) < 20 {
			t.Errorf("a job of the node that is gone: %v %+v", err, end)
		}
	}
	e.Completed("the close of a sandbox of the node that is gone", closing.ID)
	for _, box := range boxes {
		e.AwaitState(box, "lost", "closed", "expired")
	}
	e.Until(30*time.Second, "the node's queue is gone", func() bool {
		left, err := e.Redis().Keys(t.Context(), "asynq:{node-"+node+"}:*").Result()
		return err == nil && !slices.ContainsFunc(left, func(key string) bool {
			ends, err := e.Redis().TTL(t.Context(), key).Result()
			return err != nil || ends == -1 // the queue's counts of a day end by themselves
		})
	})
	e.engine.Resume()
	e.Back(e.doomed)
	e.Until(60*time.Second, "the old containers of the node are removed", func() bool {
		return !slices.ContainsFunc(e.Containers(), func(box string) bool { return slices.Contains(boxes, box) })
	})
	for _, made := range creates {
		c.Own(made.Sandbox.ID)
	}
	c.Abandon(boxes...)
	e.boxesThere(t, c, 1)
	c.End()
}

// nodeOf is the node of a sandbox.
func (e *engineCase) nodeOf(t *testing.T, box string) string {
	t.Helper()
	node, err := e.Redis().HGet(t.Context(), "sf:{default}:sbx:"+box, "node").Result()
	if err != nil || node == "" || strings.ContainsAny(node, "*?[") {
		t.Fatalf("the node of %s: %q, %v", box, node, err)
	}
	return node
}

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
	"syscall"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/faulttest"
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
			c.Fault(func() { f.Kill(workers...) }, func() { f.Start(workers[0]); f.AwaitReady() })
			f.Start(workers[1:]...)
			f.AwaitReady()
		}
		c.End()
	})
	t.Run("LeaderPaused", func(t *testing.T) {
		c := f.Case(t, "leading scheduler paused for 12 s, a worker killed")
		boxes := c.Boxes(3)
		for range rounds() {
			jobs := work(c, boxes)
			var leader string
			f.Until(60*time.Second, "a scheduler leads", func() bool { leader = f.Leader(); return leader != "" })
			holder := f.AwaitHolder(jobs[0].ID)
			c.Fault(func() { f.Pause(leader); f.Kill(holder) }, func() {
				<-time.After(12 * time.Second)
				f.Resume(leader)
			})
			f.Start(holder)
			f.AwaitReady()
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
			if end, err := f.Wait(t.Context(), j.ID); err != nil || end.State != "completed" {
				t.Errorf("a job: %v %+v", err, end.Error)
			}
		}
	}
	c.End()
}

// smallDisk mounts a disk of 4 MiB. It needs root.
func smallDisk(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatalf("mount a small disk: %v", err)
	}
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
		settled(t, f, c)
	}
	if err := os.Remove(file); err != nil {
		t.Error(err)
	}
	f.Start(others...)
	f.AwaitReady()
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
		f.Start(holder)
		f.AwaitReady()
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

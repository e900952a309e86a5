//go:build faults

package faulttest_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/faulttest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Redis hangs, is full, or goes back to an older state.
func TestRedisIsAway(t *testing.T) {
	t.Parallel()
	f := newFarm(t, faulttest.Config{Workers: 2, Links: true})
	for range rounds() {
		t.Run("Restored", func(t *testing.T) { redisRestored(t, f) })
	}
	t.Run("PausedAtTheEnd3s", func(t *testing.T) { redisPaused(t, f, 3*time.Second, rounds()) })
	t.Run("PausedAtTheEndForLong", func(t *testing.T) { redisPaused(t, f, short(25*time.Second, 150*time.Second), rounds()) })
	if rounds() > 1 {
		t.Run("PausedAtTheEnd400s", func(t *testing.T) { redisPaused(t, f, 400*time.Second, rounds()) })
	}
	t.Run("Full", func(t *testing.T) { redisFull(t, f) })
	f.End()
}

// redisPaused stops Redis with SIGSTOP when jobs want to end: their code ran, so they complete, and it does not run again.
func redisPaused(t *testing.T, f *faulttest.Farm, d time.Duration, times int) {
	c := f.Case(t, fmt.Sprintf("Redis paused for %s at a job's end", d))
	boxes := c.Boxes(3)
	t.Cleanup(func() { f.Resume(faulttest.Redis) })
	for range times {
		var jobs []*faulttest.Job
		stopped := make(chan struct{})
		var first sync.Once // the end of another job, after the pause, must not begin it anew
		for _, box := range boxes {
			jobs = append(jobs, c.Insist(box, faulttest.Run{Lines: 8, Files: 1}))
		}
		c.Fault(func() {
			for _, worker := range f.Workers() {
				f.Link(worker).At(testbed.Stop{Call: "job_finish", Do: func([]string) bool {
					first.Do(func() { f.Pause(faulttest.Redis); close(stopped) })
					return true
				}})
			}
			select {
			case <-stopped:
			case <-time.After(60 * time.Second):
				t.Fatal("no job ended")
			}
		}, func() {
			<-time.After(d)
			for _, worker := range f.Workers() {
				f.Link(worker).Clear()
			}
			f.Resume(faulttest.Redis)
		})
		for _, j := range jobs {
			f.Completed("a job", j.ID)
		}
	}
	c.End()
}

// redisFull lets Redis refuse every write for want of memory, while jobs run and end.
func redisFull(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, "Redis at maxmemory for 8 s")
	boxes := c.Boxes(4)
	limit := func(bytes string) {
		testbed.Must(t, f.Redis().ConfigSet(t.Context(), "maxmemory", bytes).Err())
	}
	for range rounds() {
		work(c, boxes)
		moment(2 * time.Second)
		c.Fault(func() { limit("1") }, func() {
			<-time.After(8 * time.Second)
			limit("0")
		})
	}
	c.End()
}

// redisRestored puts Redis back to a copy of its data, after which much has happened. Jobs that ran when the copy was made, or later, do not run
// again, old sandboxes are as they were, and those that are younger than the copy stay usable. One that was closed after the
// copy was made ends once more.
func redisRestored(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, "Redis restored from an older copy")
	old := c.Boxes(2)
	for n, box := range old {
		c.Insist(box, faulttest.Run{Code: fmt.Sprintf("kept = %d", n)})
		f.AwaitHolder(c.Insist(box, faulttest.Run{Lines: 40}).ID)
		c.Insist(box, faulttest.Run{Lines: 1})
	}
	closed := f.Box(wire.CreateRequest{})
	copied := f.CopyRedis()
	f.CloseIdle()
	closing, err := f.Close(t.Context(), closed)
	testbed.Must(t, err)
	f.Completed("close", closing.ID)
	young := c.Boxes(2)
	for n, box := range young {
		c.Insist(box, faulttest.Run{Code: fmt.Sprintf("kept = %d", n+len(old))})
	}
	c.Completed("a job")
	<-time.After(short(0, time.Minute))
	c.Forget() // their callers were told; how often they ran still counts
	c.Fault(func() { f.RestoreRedis(copied) }, nil)
	for n, box := range append(old, young...) {
		f.AwaitState(box, "ready", "busy")
		c.Insist(box, faulttest.Run{Code: "print(kept)", Out: fmt.Sprintln(n)})
	}
	f.AwaitState(closed, "lost", "closed", "expired")
	c.End()
	f.CloseIdle()
}

// The object store is away, slow, full, or fails at random while files are uploaded.
func TestObjectStoreIsSpoiled(t *testing.T) {
	t.Parallel()
	f := newFarm(t, faulttest.Config{Workers: 2, Schedulers: 1, Links: true})
	s3 := f.S3Link()
	for _, d := range []time.Duration{time.Second, short(15*time.Second, 60*time.Second)} {
		t.Run(fmt.Sprintf("Away%s", d), func(t *testing.T) {
			spoiled(t, f, fmt.Sprintf("object store away for %s at upload", d), func() { s3.Away(true) }, func() { <-time.After(d); s3.Away(false) })
		})
	}
	t.Run("Slow", func(t *testing.T) {
		spoiled(t, f, "object store slow, 1 KiB/s, for 8 s", func() { s3.Slow(1024) }, func() { <-time.After(8 * time.Second); s3.Slow(0) })
	})
	t.Run("Full", func(t *testing.T) { storeFull(t, f) })
	t.Run("Failing", func(t *testing.T) {
		spoiled(t, f, "object store fails at random, 3 of 10 requests", func() { s3.Failing(0.3) }, func() { <-time.After(8 * time.Second); s3.Failing(0) })
	})
	if rounds() > 1 {
		for range rounds() {
			t.Run("AwayForLong", func(t *testing.T) { storeAwayForLong(t, f) })
		}
	}
	f.End()
}

// spoiled lets jobs with files end while the store is spoiled: their files are stored once it is well again. Jobs without files do not wait.
func spoiled(t *testing.T, f *faulttest.Farm, name string, harm, heal func()) {
	c := f.Case(t, name)
	boxes := c.Boxes(4)
	for range rounds() {
		for _, box := range boxes[:3] {
			c.Insist(box, faulttest.Run{Lines: 3, Files: 2, Code: "open('large.bin', 'wb').write(bytes(6000))"})
		}
		moment(300 * time.Millisecond)
		c.Fault(harm, func() {
			beside := c.Insist(boxes[3], faulttest.Run{Lines: 3})
			f.Completed("a job without files", beside.ID)
			heal()
		})
		c.Completed("a job")
	}
	c.End()
}

// storeFull fills the store. An upload is not repeated then, for that would only hold up what waits behind it: the caller is told so, the code
// does not run again, the files are still in the workspace, and the files of the next job are stored once there is room.
func storeFull(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, "object store full")
	for _, box := range c.Boxes(3) {
		const made, size = "open('made.bin', 'wb').write(bytes(6000))", "import os\nprint(os.path.getsize('made.bin'))\nos.remove('made.bin')"
		job := c.Insist(box, faulttest.Run{Held: true, Files: 2, Code: made, Want: []string{"failed"}}) // it still runs when the store is full
		f.AwaitHolder(job.ID)
		c.Fault(func() { f.S3Link().Full(true) }, func() {
			c.Release(job)
			end, err := f.Wait(t.Context(), job.ID)
			if err != nil || end.Error == nil || end.Error.Code != "unavailable" || !strings.Contains(end.Error.Message, "full") {
				t.Errorf("a job whose files have no room: %v %s %+v", err, end.State, end.Error)
			}
			f.S3Link().Full(false)
		})
		f.Completed("a job", c.Insist(box, faulttest.Run{Files: 2, Code: size, Out: "6000\n"}).ID)
	}
	c.End()
}

// storeAwayForLong keeps the store away for longer than uploads are repeated: the caller is told so, the code does not run again, and the files
// are still in the workspace.
func storeAwayForLong(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, "object store away for 10 minutes at upload")
	boxes := c.Boxes(1)
	job := c.Insist(boxes[0], faulttest.Run{Lines: 50, Files: 1, Want: []string{"failed"}}) // it still runs when the store goes
	f.AwaitHolder(job.ID)
	c.Fault(func() { f.S3Link().Away(true) }, func() {
		<-time.After(10 * time.Minute)
		f.S3Link().Away(false)
	})
	c.Insist(boxes[0], faulttest.Run{Code: "import glob\nprint(len(glob.glob('*.txt')))", Out: "1\n"})
	c.End()
}

//go:build faults

package faulttest_test

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/faulttest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Twenty workers are killed while they run jobs: each job is taken over, its output is complete, and it ran once.
func TestWorkersAreKilled(t *testing.T) {
	t.Parallel()
	f := newFarm(t, faulttest.Config{Workers: 6, Schedulers: 1})
	t.Run("MidRun", func(t *testing.T) {
		c := f.Case(t, "20 workers killed mid-run")
		boxes := c.Boxes(10)
		for killed := 0; killed < 20; {
			busy := map[string]bool{}
			var jobs []*faulttest.Job
			for _, box := range boxes {
				j := c.Accept(box, faulttest.Run{Lines: 20, Held: true}) // it runs until its worker is dead, however long that takes
				jobs, busy[f.AwaitHolder(j.ID)] = append(jobs, j), true
			}
			victims := slices.Sorted(maps.Keys(busy))
			victims = victims[:min(len(victims), 5, 20-killed)] // one is left to take over
			c.Fault(func() { f.Kill(victims...) }, nil)
			c.Release(jobs...)
			killed += len(victims)
			f.Back(victims...)
		}
		if r := c.End(); len(r.Takeovers) < 20 { // how long they take is for the benchmarks
			t.Errorf("%d takeovers", len(r.Takeovers))
		}
	})
	for range rounds() {
		t.Run("Poison", func(t *testing.T) { poison(t, f) })
	}
	f.End()
}

// A job that kills its workers is lost after the third, with an error; the other jobs of its queue and its sandbox continue.
func poison(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, "a job that kills its worker three times")
	boxes := c.Boxes(2)
	bad := c.Accept(boxes[0], faulttest.Run{Lines: 3000, Want: []string{"lost", "failed"}})
	behind, beside := c.Accept(boxes[0], faulttest.Run{Lines: 1, Want: []string{"completed", "timed_out"}}), c.Accept(boxes[1], faulttest.Run{Lines: 1})
	for range 3 {
		holder := f.AwaitHolder(bad.ID)
		c.Fault(func() { f.Kill(holder) }, nil)
		f.Start(holder)
	}
	end, err := f.Wait(t.Context(), bad.ID)
	if err != nil || end.Error == nil || len(end.Error.Message) < 20 || end.Attempt < 3 {
		t.Errorf("the job that kills its workers: %v %+v", err, end)
	}
	t.Logf("the job that kills its workers: %+v", end.Error)
	for _, j := range []*faulttest.Job{behind, beside} {
		f.Completed("the job after it", j.ID)
	}
	c.End()
}

func TestParts(t *testing.T) {
	t.Parallel()
	f := newFarm(t, faulttest.Config{Workers: 2, Links: true})
	for _, step := range []struct {
		name string
		do   func(*testing.T, *faulttest.Farm)
	}{
		{"WorkerIsStopped", stopped},
		{"RedisIsKilled", redisKilled},
		{"LeaderIsKilled", leaderKilled},
		{"CancelAtEveryStage", canceled},
		{"ObjectStoreIsDownAtCollect", collectWithoutStore},
		{"InsideSandbox", insideSandbox},
		{"DeadlineWithoutItsWorker", deadline},
		{"RecordsAreWiped", wiped},
	} {
		for range rounds() {
			t.Run(step.name, func(t *testing.T) { step.do(t, f) })
		}
	}
	f.End()
}

// A worker is stopped in order while it has ten runs: it offers them for takeover at once. Repeated stops, as in a roll-out, do not count
// as crashes.
func stopped(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, "worker stopped with 10 runs, 5 times over")
	boxes := c.Boxes(10)
	workers := f.Workers()
	one, other := workers[0], workers[1]
	f.Term(other)
	var jobs []*faulttest.Job
	for _, box := range boxes {
		jobs = append(jobs, c.Accept(box, faulttest.Run{Lines: 20, Held: true})) // each runs until the last stop, however long that takes
	}
	for _, j := range jobs {
		f.AwaitHolder(j.ID)
	}
	for range 5 {
		f.Back(other)
		c.Fault(func() { f.Term(one) }, nil)
		one, other = other, one
	}
	for _, j := range jobs { // the worker that is left has the last of them, too
		f.AwaitHolder(j.ID)
	}
	c.Release(jobs...)
	f.Start(other)
	c.End()
	for _, j := range jobs {
		if end, err := f.Job(t.Context(), j.ID); err != nil || end.Attempt != 1 || f.Claims(j.ID) != 6 {
			t.Errorf("job that was offered for takeover 5 times: %v, claimed %d times, attempt %d", err, f.Claims(j.ID), end.Attempt)
		}
	}
}

// Redis is killed with a hundred jobs in flight; its append-only file has all of them.
func redisKilled(t *testing.T, f *faulttest.Farm) {
	c := f.Case(t, "Redis killed with 100 jobs in flight")
	boxes := c.Boxes(10)
	for range 10 {
		for _, box := range boxes {
			c.Accept(box, faulttest.Run{Lines: 2})
		}
	}
	c.Fault(func() { f.Kill(faulttest.Redis) }, func() { f.Start(faulttest.Redis) })
	c.End()
}

// The leading scheduler is killed: its lease lapses, another one leads, and ends what expired meanwhile.
func leaderKilled(t *testing.T, f *faulttest.Farm) {
	const lease = 5 * time.Second
	c := f.Case(t, "leading scheduler killed")
	leader := f.AwaitLeader()
	c.Accept(c.Boxes(1)[0], faulttest.Run{Lines: 30})
	short := f.Box(wire.CreateRequest{})
	var box wire.Sandbox
	c.Fault(func() {
		f.Kill(leader)
		if left := f.Lease(); left > lease {
			t.Errorf("the lease of a dead scheduler lasts for another %s", left)
		}
		box = expireSoon(t, f, short)
	}, func() {
		began := time.Now()
		f.AwaitLeader()
		t.Logf("another scheduler leads after %s", time.Since(began))
	})
	f.Until(time.Until(box.ExpiresAt)+hang, "the sandbox whose time is up is gone", func() bool {
		return !slices.Contains(f.Containers(), short)
	})
	t.Logf("the sandbox was gone %s after its end", time.Since(box.ExpiresAt))
	f.Start(leader)
	c.End()
}

// hang is after what time something hangs that should take seconds.
const hang = time.Minute

// rounds is how often each kind of fault happens: once, or 20 times in the whole suite.
func rounds() int {
	n, err := strconv.Atoi(os.Getenv("SANDFARM_TEST_ROUNDS"))
	if err != nil {
		return 1
	}
	return n
}

// seed is where chosen begins: SANDFARM_TEST_SEED, or another one for each run.
var seed = sync.OnceValue(func() uint64 {
	n, err := strconv.ParseUint(os.Getenv("SANDFARM_TEST_SEED"), 10, 64)
	if err != nil {
		n = 1 + rand.Uint64N(1<<32) //nolint:gosec // chance, not a secret
	}
	return n
})

// chosen takes n of the points at random, or all of them in the whole suite. The same seed chooses the same ones for the same test.
func chosen(t *testing.T, points []point, n int) []point {
	t.Helper()
	name := fnv.New64()
	_, _ = name.Write([]byte(t.Name()))
	chance := rand.New(rand.NewPCG(seed(), name.Sum64())) //nolint:gosec // chance, not a secret
	chance.Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
	if rounds() == 1 {
		points = points[:min(n, len(points))]
	}
	t.Logf("SANDFARM_TEST_SEED=%d chooses %v", seed(), points)
	return points
}

// short is the first of two lengths of a fault, and in the whole suite the second, which takes longer than a test should.
func short(sample, whole time.Duration) time.Duration {
	if rounds() > 1 {
		return whole
	}
	return sample
}

// moment waits up to d.
func moment(d time.Duration) { <-time.After(rand.N(d)) } //nolint:gosec // chance, not a secret

// work submits a mix of jobs to each sandbox, one behind the other, and one with a sandbox of its own.
func work(c *faulttest.Case, boxes []string) (jobs []*faulttest.Job) {
	for _, box := range boxes {
		jobs = append(jobs, c.Insist(box, faulttest.Run{Lines: 5 + rand.IntN(20), Files: 2}), c.Insist(box, faulttest.Run{Lines: 1, Files: 1}))
	}
	return append(jobs, c.Insist("", faulttest.Run{Alone: true, Lines: 10, Files: 1}))
}

// The clock of one worker is wrong, or jumps, while it runs jobs: neither its own jobs notice nor those of the other worker, both are seen as
// alive, and a dead worker is noticed all the same. A store refuses requests whose time is wrong by more than a quarter of an hour.
func TestClockOfAWorkerIsWrong(t *testing.T) {
	t.Parallel()
	skewed := os.Getenv("SANDFARM_TEST_SKEWED")
	if skewed == "" {
		var err error
		skewed, err = filepath.Abs("../../bin/sandfarm-skewed")
		testbed.Must(t, err)
	}
	clock := faulttest.NewClock(t)
	f := newFarm(t, faulttest.Config{
		Workers: 2, Schedulers: 1, Links: true,
		Command: func(name string, argv []string) []string {
			if name != "worker-1" {
				return argv
			}
			return append([]string{"env", clock.Env(), skewed}, argv[1:]...)
		},
	})
	for _, ahead := range []time.Duration{40 * time.Second, -40 * time.Second} {
		t.Run(fmt.Sprintf("By%s", ahead), func(t *testing.T) {
			c := f.Case(t, fmt.Sprintf("clock of a worker wrong by %s", ahead))
			boxes := c.Boxes(4)
			for range rounds() {
				work(c, boxes)
				clock.Shift(ahead)
				c.Fault(func() { work(c, boxes) }, nil)
				c.Completed("a job")
				one := f.Box(wire.CreateRequest{})
				c.Own(one)
				f.Completed("a job", c.Insist(one, faulttest.Run{Lines: 1}).ID)
				f.Until(60*time.Second, "the farm sees both workers", func() bool { // a beat may be late on a busy machine
					workers, err := f.Client.Workers(t.Context())
					return err == nil && len(workers) == 2
				})
				clock.Shift(0)
			}
			c.End()
		})
	}
	t.Run("Jumps", func(t *testing.T) {
		c := f.Case(t, "clock of a worker jumps, then the other is killed")
		boxes := c.Boxes(4)
		for range rounds() {
			work(c, boxes)
			for _, ahead := range []time.Duration{10 * time.Minute, -10 * time.Minute, 40 * time.Second, -40 * time.Second} {
				clock.Shift(ahead)
				moment(time.Second)
			}
			work(c, boxes)
			c.Fault(func() { f.Kill("worker-2") }, nil)
			c.Completed("a job")
			clock.Shift(0)
			f.Back("worker-2")
		}
		c.End()
	})
	f.End()
}

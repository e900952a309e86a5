//go:build faults

package faulttest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/faulttest"
)

// The clock of one worker is wrong, or jumps, while it runs jobs: neither its own jobs notice nor those of the other worker, both are seen as
// alive, and a dead worker is noticed all the same. A store refuses requests whose time is wrong by more than a quarter of an hour.
func TestClockOfAWorkerIsWrong(t *testing.T) {
	t.Parallel()
	skewed := os.Getenv("SANDFARM_TEST_SKEWED")
	if skewed == "" {
		var err error
		if skewed, err = filepath.Abs("../../bin/sandfarm-skewed"); err != nil {
			t.Fatal(err)
		}
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
				settled(t, f, c)
				one := f.Box(wire.CreateRequest{})
				c.Own(one)
				settledOne(t, f, c.Insist(one, faulttest.Run{Lines: 1}))
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
			settled(t, f, c)
			clock.Shift(0)
			f.Start("worker-2")
			f.AwaitReady()
		}
		c.End()
	})
	f.End()
}

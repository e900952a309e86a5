package server

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The last deadline set counts, and the sandbox ends one grace period after it.
func TestDeadline(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sets []time.Duration // one per second
		want time.Duration   // time since the first; 0: never
	}{
		"None":      {},
		"One":       {[]time.Duration{time.Minute}, 66 * time.Second},
		"Extended":  {[]time.Duration{time.Minute, time.Hour}, time.Hour + 7*time.Second},
		"Shortened": {[]time.Duration{time.Hour, 10 * time.Second}, 17 * time.Second},
		"Past":      {[]time.Duration{-time.Hour}, 6 * time.Second},
		"InGrace":   {[]time.Duration{0, 0, 0, 0, time.Minute}, 70 * time.Second},
		"Huge":      {[]time.Duration{1 << 62}, maxDeadline + deadlineGrace},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began, took := time.Now(), atomic.Int64{}
				d := deadline{end: func() { took.Store(int64(time.Since(began))) }}
				for i, in := range c.sets {
					if i > 0 {
						time.Sleep(time.Second)
					}
					d.set(in)
				}
				time.Sleep(c.want - time.Since(began) - time.Millisecond)
				synctest.Wait()
				if at := time.Duration(took.Load()); at != 0 {
					t.Errorf("it ended after %s", at)
				}
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
				if at := time.Duration(took.Load()); at != c.want {
					t.Errorf("it ended after %s, want %s", at, c.want)
				}
			})
		})
	}
}

// A stopped deadline never ends the sandbox.
func TestDeadlineStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := deadline{end: func() { t.Error("it ended") }}
		d.set(time.Second)
		d.stop()
		d.set(time.Second)
		time.Sleep(time.Hour)
	})
}

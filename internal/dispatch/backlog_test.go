package dispatch_test

import (
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
)

// The depth of a queue counts its tasks and its parked jobs; its age is that of the oldest of both.
func TestDepthsCountParkedJobs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	share := farm.DefaultLimits().QueueShare
	for range share {
		b.submit(t, storetest.Create())
	}
	b.SetNow(func() time.Time { return time.Now().Add(time.Hour) })
	depth := func() farm.QueueDepth {
		t.Helper()
		depths, err := b.Depths(t.Context())
		if err != nil || len(depths) != 1 || depths[0].Name != farm.QueueCPU {
			t.Fatalf("Depths = %+v, %v", depths, err)
		}
		return depths[0]
	}
	if d := depth(); d.Depth != share || d.OldestSeconds > 1800 { // the queue itself uses the real clock
		t.Errorf("nothing is parked: %+v", d)
	}
	for range 3 {
		b.submit(t, storetest.Create())
	}
	b.SetNow(func() time.Time { return time.Now().Add(time.Hour + 2*time.Second) }) // answers are cached for a second of the dispatcher's clock
	if d := depth(); d.Depth != share+3 || d.OldestSeconds < 3600 || d.OldestSeconds > 3700 {
		t.Errorf("three are parked: %+v", d)
	}
}

package execution

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

var errLate = errors.New("late")

// Time in which the worker waits for Redis does not count; the time of an agent that keeps it busy does.
func TestDeadlineCountsTheAgentsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, d, stop := withDeadline(t.Context(), time.Minute, errLate)
		defer stop()
		for range 5 {
			d.pause()
			time.Sleep(time.Hour) // Redis is away
			d.resume()
			time.Sleep(10 * time.Second)
		}
		if ctx.Err() != nil {
			t.Fatalf("after 50 s of a minute: %v", context.Cause(ctx))
		}
		time.Sleep(10*time.Second + 1)
		synctest.Wait()
		if !errors.Is(context.Cause(ctx), errLate) {
			t.Errorf("after a minute: %v", context.Cause(ctx))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, d, stop := withDeadline(t.Context(), time.Minute, errLate)
		defer stop()
		for range 100 {
			d.pause()
			time.Sleep(freeAfter - 1)
			d.resume()
		}
		synctest.Wait()
		if ctx.Err() == nil {
			t.Error("an agent that sends frame after frame has no deadline")
		}
	})
	var none *deadline
	none.pause()
	none.resume()
}

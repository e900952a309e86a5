package execution

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// What prints as fast as it can is handled for a tenant's share of the executions only: the other ones of the tenant wait, short output and that of
// other tenants does not.
func TestLongOutputTakesTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := &Runner{turns: budget.NewPlaces(4)}
		newExecution := func(tenant string) *execution {
			e := &execution{job: &farm.Job{Tenant: tenant}, collect: collectorOf(code(), 0), staged: &staging{}}
			e.collect.quiet = true
			return e
		}
		take := func(tenant string, bytes int) (taken *bool) {
			taken = new(bool)
			go func() {
				if _, err := x.take(t.Context(), newExecution(tenant), nil, out(1, strings.Repeat("y", bytes))); err != nil {
					t.Error(err)
				}
				*taken = true
			}()
			synctest.Wait()
			return taken
		}
		var ends []func()
		for range 2 {
			ends = append(ends, x.turn(t.Context(), newExecution("acme"), shortBytes+1))
		}
		waits := take("acme", shortBytes+1)
		testbed.Check(t, !*waits, "long output was handled beyond the share of its tenant")
		installed := make(chan error, 1)
		go func() {
			f := &installer{x: x, e: newExecution("acme")}
			installed <- f.take(t.Context(), nil, agent.Frame{Seq: 1, Type: agent.FrameStdout, Payload: make([]byte, shortBytes+1)})
		}()
		synctest.Wait()
		testbed.Check(t, len(installed) == 0, "long output of an install was handled beyond the share of its tenant")
		testbed.Check(t, *take("acme", shortBytes), "short output waits for the long one of its tenant")
		testbed.Check(t, *take("rival", shortBytes+1), "output waits for that of another tenant")
		ends[0]()
		synctest.Wait()
		testbed.Check(t, *waits, "output waits although the turn of another one has ended")
		testbed.Must(t, <-installed)
		ends[0] = x.turn(t.Context(), newExecution("acme"), shortBytes+1)
		waits = take("acme", shortBytes+1)
		time.Sleep(turnTimeout) // of the bubble
		synctest.Wait()
		testbed.Check(t, *waits, "output waits for longer than %s for one that does not end", turnTimeout)
		ends[0]()
		ends[1]()
		for _, tenant := range []string{"acme", "acme", "rival"} {
			select {
			case <-x.turns.Ask(tenant).Granted():
			default:
				t.Error("at the end not all turns have ended")
			}
		}
	})
}

// A panic of one execution must not take a turn from all others for good.
func TestTurnEndsWithAPanic(t *testing.T) {
	t.Parallel()
	x := &Runner{turns: budget.NewPlaces(2)} // without a store
	e := &execution{job: &farm.Job{Tenant: "acme"}, collect: collectorOf(code(), 0), taken: shortBytes + 1}
	e.collect.events = []farm.Event{{}}
	func() {
		defer func() {
			testbed.Check(t, recover() != nil, "events are published without a store")
		}()
		_ = x.publishSoon(t.Context(), e)
	}()
	select {
	case <-x.turns.Ask("acme").Granted():
	default:
		t.Error("the turn is lost")
	}
}

package farm_test

import (
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func TestDrainProgress(t *testing.T) {
	t.Parallel()
	late := time.Unix(2000, 0)
	ready := &farm.Sandbox{State: farm.SandboxReady, ExpiresAt: late}
	asleep := &farm.Sandbox{State: farm.SandboxHibernated, ExpiresAt: time.Unix(1000, 0)}
	knows, busy, unaware := farm.Worker{Draining: true}, farm.Worker{Draining: true, Running: 2}, farm.Worker{}
	for name, c := range map[string]struct {
		workers []farm.Worker
		open    []*farm.Sandbox
		want    farm.DrainProgress
	}{
		"nothing is left":               {[]farm.Worker{knows, knows}, nil, farm.DrainProgress{State: farm.DrainDone}},
		"no worker is left":             {nil, nil, farm.DrainProgress{State: farm.DrainDone}},
		"a worker does not know yet":    {[]farm.Worker{knows, unaware}, nil, farm.DrainProgress{State: farm.DrainRuns}},
		"a job runs":                    {[]farm.Worker{knows, busy}, nil, farm.DrainProgress{Jobs: 2, State: farm.DrainRuns}},
		"a sandbox is open":             {[]farm.Worker{knows}, []*farm.Sandbox{asleep, ready}, farm.DrainProgress{Sandboxes: 2, Hibernated: 1, Ends: late, State: farm.DrainRuns}},
		"only hibernated ones are left": {[]farm.Worker{knows}, []*farm.Sandbox{asleep}, farm.DrainProgress{Sandboxes: 1, Hibernated: 1, Ends: time.Unix(1000, 0), State: farm.DrainHibernated}},
	} {
		if got := farm.ProgressOfDrain(c.workers, c.open); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

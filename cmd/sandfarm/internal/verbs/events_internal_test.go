package verbs

import (
	"testing"

	"github.com/sandfarm/sandfarm/api/wire"
)

func TestEventsInWords(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]wire.FleetEvent{
		"worker started":                    {Kind: "worker_started"},
		"worker lost, 3 jobs taken over":    {Kind: "worker_lost", Jobs: 3},
		"worker lost, 1 job taken over":     {Kind: "worker_lost", Jobs: 1},
		"node ended, 1 sandbox lost":        {Kind: "node_ended", Sandboxes: 1},
		"node ended, 2 sandboxes lost":      {Kind: "node_ended", Sandboxes: 2},
		"node drained: hibernated":          {Kind: "node_drained", Detail: "hibernated"},
		"worker problem: no engine answers": {Kind: "worker_problem", Detail: "no engine answers"},
	} {
		if got := happened(e); got != want {
			t.Errorf("%q instead of %q", got, want)
		}
	}
}

package execution

import (
	"slices"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// evict stops code of ended jobs, also their installs, but not code of the current job and of jobs that have not ended.
func TestEvictEndsCodeOfEndedJobs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, n := b.runner()
	box := b.Ready()
	a := b.Agent(box, n)
	ended, open, own := b.Command(box, "true"), b.Command(box, "true"), b.Command(box, "true")
	_, err := b.Store.Force(t.Context(), ended, farm.JobLost, nil)
	workertest.Must(t, err)
	spec := agent.Spec{Kind: farm.KindCommand, Commands: []string{"sleep 60"}, Timeout: time.Minute, Background: true}
	for _, id := range []string{ended.ID, ended.ID + requestedSuffix, ended.ID + importsSuffix, open.ID, open.ID + importsSuffix, own.ID, own.ID + requestedSuffix} {
		workertest.Must(t, a.Start(t.Context(), id, spec))
	}
	workertest.Must(t, x.evict(t.Context(), b.Sandbox(box), own.ID))
	list, err := a.Executions(t.Context())
	workertest.Must(t, err)
	var left []string
	for _, e := range list {
		left = append(left, e.ID)
	}
	slices.Sort(left)
	want := []string{open.ID, open.ID + importsSuffix, own.ID, own.ID + requestedSuffix}
	slices.Sort(want)
	if !slices.Equal(left, want) {
		t.Errorf("executions left %v, want %v", left, want)
	}
}

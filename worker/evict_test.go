package worker

import (
	"slices"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Code of a job that has ended is ended too, also an install that came before the job's own work; that of the job at hand
// and of one that has not ended goes on.
func TestEvictEndsCodeOfEndedJobs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	box := b.ready()
	a := b.agent(box, w)
	ended, open, own := b.command(box, "true"), b.command(box, "true"), b.command(box, "true")
	_, err := b.store.Force(t.Context(), ended, farm.JobLost, nil)
	must(t, err)
	spec := agent.Spec{Kind: farm.KindCommand, Commands: []string{"sleep 60"}, Timeout: time.Minute, Background: true}
	for _, id := range []string{ended.ID, ended.ID + asAsked, ended.ID + asNeeds, open.ID, open.ID + asNeeds, own.ID, own.ID + asAsked} {
		must(t, a.Start(t.Context(), id, spec))
	}
	must(t, w.evict(t.Context(), b.sandbox(box), own.ID))
	list, err := a.Executions(t.Context())
	must(t, err)
	var left []string
	for _, e := range list {
		left = append(left, e.ID)
	}
	slices.Sort(left)
	want := []string{open.ID, open.ID + asNeeds, own.ID, own.ID + asAsked}
	slices.Sort(want)
	if !slices.Equal(left, want) {
		t.Errorf("executions left %v, want %v", left, want)
	}
}

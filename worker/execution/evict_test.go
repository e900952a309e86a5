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

// Code of an ended job is interrupted before it is killed: a kernel keeps its variables, and a program can save what it has.
func TestEvictInterruptsFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, n := b.runner()
	box := b.Ready()
	a := b.Agent(box, n)
	ended := b.Command(box, "true")
	_, err := b.Store.Force(t.Context(), ended, farm.JobLost, nil)
	workertest.Must(t, err)
	workertest.Must(t, a.Start(t.Context(), ended.ID, agent.Spec{
		Kind: farm.KindCommand, Timeout: 2 * time.Minute, Commands: []string{"trap 'echo saved > saved; exit 1' TERM; echo begun > begun; while :; do sleep 0.05; done"},
	}))
	for end := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
		if _, err := a.Stat(t.Context(), "begun"); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatalf("the command does not begin: %v", err)
		}
	}
	workertest.Must(t, x.evict(t.Context(), b.Sandbox(box), "job_other"))
	if _, err := a.Stat(t.Context(), "saved"); err != nil {
		t.Errorf("the program was killed before it could save what it has: %v", err)
	}
	if list, err := a.Executions(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("executions left: %v, %v", list, err)
	}
}

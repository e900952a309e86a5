package worker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/execution"
)

func TestActivityIsBoundedAndStoredWhenItChanges(t *testing.T) {
	t.Parallel()
	var a activity
	var stored []farm.Minute
	writes := 0
	write := func(_ context.Context, m []farm.Minute) error {
		stored = m
		writes++
		return nil
	}
	start := time.Unix(60_000_000, 0)
	job := &farm.Job{CreatedAt: start, StartedAt: start.Add(30 * time.Millisecond)}
	for i := range 200 { // more than an hour of minutes with a job
		a.add(start.Add(time.Duration(i)*time.Minute), "cpu", job, execution.Outcome{State: farm.JobCompleted, Run: 5 * time.Millisecond})
	}
	end := start.Add(199 * time.Minute)
	a.add(end, "cpu", &farm.Job{CreatedAt: start, StartedAt: start.Add(50 * time.Millisecond)}, execution.Outcome{State: farm.JobTimedOut})
	a.add(end.Add(-5*time.Minute), "cpu", job, execution.Outcome{State: farm.JobCanceled}) // the clock was set back
	if err := a.store(t.Context(), func(context.Context, []farm.Minute) error { return errors.New("no Redis") }); err == nil {
		t.Error("the error is lost")
	}
	for range 2 {
		if err := a.store(t.Context(), write); err != nil {
			t.Fatal(err)
		}
	}
	if writes != 1 || len(stored) != 60 {
		t.Errorf("%d writes, %d minutes", writes, len(stored))
	}
	want := farm.Minute{At: farm.MinuteOf(end), Ended: 3, Failed: 1, WaitMS: 110, MaxWaitMS: 50, RunMS: 5, Queues: map[string]int{"cpu": 3}}
	if diff := cmp.Diff(want, stored[len(stored)-1]); diff != "" {
		t.Error(diff)
	}
}

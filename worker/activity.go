package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/execution"
)

// activity counts the jobs that a worker ended, by the minute, for an hour.
type activity struct {
	mu      sync.Mutex
	minutes []farm.Minute // the oldest first; at most one for each minute of farm.ActivityKept
	changed bool          // since they were stored
}

// add counts a job of a queue whose end was committed. A worker serves few queues.
func (a *activity) add(now time.Time, queue string, job *farm.Job, v execution.Outcome) {
	one := farm.Minute{At: farm.MinuteOf(now), Ended: 1, RunMS: v.Run.Milliseconds(), Queues: map[string]int{queue: 1}}
	if v.State != farm.JobCompleted && v.State != farm.JobCanceled {
		one.Failed = 1
	}
	if !job.StartedAt.IsZero() && !job.CreatedAt.IsZero() {
		one.WaitMS = max(job.StartedAt.Sub(job.CreatedAt), 0).Milliseconds()
		one.MaxWaitMS = one.WaitMS
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.changed = true
	if last := len(a.minutes) - 1; last >= 0 && a.minutes[last].At >= one.At { // also where the clock was set back
		a.minutes[last] = a.minutes[last].Plus(one)
		return
	}
	oldest := farm.MinuteOf(now.Add(-farm.ActivityKept))
	a.minutes = append(slices.DeleteFunc(a.minutes, func(m farm.Minute) bool { return m.At <= oldest }), one)
}

// store writes what has changed.
func (a *activity) store(ctx context.Context, write func(context.Context, []farm.Minute) error) error {
	a.mu.Lock()
	minutes, changed := slices.Clone(a.minutes), a.changed
	a.changed = false
	a.mu.Unlock()
	if !changed {
		return nil
	}
	err := write(ctx, minutes)
	if err != nil {
		a.mu.Lock()
		a.changed = true
		a.mu.Unlock()
	}
	return err
}

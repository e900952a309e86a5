package jobs

import (
	"context"
	"strconv"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Wait is what the records say about what a queued job waits for. The zero value is that of a job that does not wait.
type Wait struct {
	Position int // in its sandbox's FIFO among the jobs that wait, 1 is next; also 1 of jobs that do not wait in the FIFO

	Before    int    // jobs that come first in the FIFO, with the one that runs
	Head      string // id of the first of them; "": there is none
	HeadKind  farm.JobKind
	HeadState farm.JobState

	Parked     bool // it gets a task when a slot of its queue share is free and max_running allows it
	Slots      int  // of its queue share that are taken
	Share      int  // slots of its queue share
	Running    int  // jobs of the tenant that count against max_running
	MaxRunning int  // negative: no bound

	Queue        string // of its task
	Node         string // of its sandbox; "": none is chosen
	SandboxState farm.SandboxState
}

// Wait reads what a queued job waits for, in one step. It is cheap: it looks at the job, its sandbox, and a few counts of its tenant.
func (s *Store) Wait(ctx context.Context, job *farm.Job) (Wait, error) {
	if job.State != farm.JobQueued {
		return Wait{}, nil
	}
	r, err := s.Run(ctx, "read what a job waits for", "job_wait", job.Tenant, job.ID)
	if err != nil || r.Text(0) != "ok" {
		return Wait{}, err
	}
	f := r.Fields(1)
	number := func(name string) int { n, _ := strconv.ParseFloat(f[name], 64); return int(n) }
	return Wait{
		Position: number("position"), Before: number("before"), Head: f["head"], HeadKind: farm.JobKind(f["head_kind"]), HeadState: farm.JobState(f["head_state"]),
		Parked: f["parked"] == "1", Slots: number("slots"), Share: s.Limits.QueueShare, Running: number("running"), MaxRunning: number("max_running"),
		Queue: f["queue"], Node: f["node"], SandboxState: farm.SandboxState(f["sandbox_state"]),
	}, nil
}

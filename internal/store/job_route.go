package store

import (
	"context"
	"strconv"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Route is what has to be known of a job to enqueue it, read in one step.
type Route struct {
	Ref            farm.Ref
	Kind           farm.JobKind
	State          farm.JobState
	Attempt        int
	Uncounted      int // attempts that do not count against the job: the worker gave it back
	Worker         string
	CreatedAt      time.Time
	Queue          string // the job's own; "": that of its sandbox's node
	TimeoutSeconds int
	Background     bool
	Inline         bool
	Head           bool // first in its sandbox's line
	OutsideFIFO    bool // runs beside the line
	Parked         bool // waits until fewer of its tenant's tasks are on its queue; no task is to be enqueued
	SandboxID      string
	SandboxState   farm.SandboxState // "" when the record is gone
	Node           string            // "" until one is chosen
}

// Route reads a job's route; CodeNotFound when there is no such job.
func (s *Store) Route(ctx context.Context, ref farm.Ref) (*Route, error) {
	r, err := s.run(ctx, "read route", s.scripts.route, ref.Tenant, ref.ID)
	if err != nil {
		return nil, err
	}
	rows := r.rows(1)
	if r.text(0) != "ok" || len(rows) == 0 {
		return nil, noJob(ref.ID)
	}
	return route(ref.Tenant, rows[0]), nil
}

// OpenRoutes walks the tenant's unfinished jobs that a queue should hold (running, inline, first in line) and those whose
// sandbox is final or gone: at most 200 are looked at for one call. after is "" at first; next is "" at the end.
func (s *Store) OpenRoutes(ctx context.Context, tenant, after string) (routes []Route, next string, err error) {
	if after == "" {
		after = "-1"
	}
	r, err := s.run(ctx, "list unfinished jobs", s.scripts.open, tenant, after, scanStretch)
	if err != nil {
		return nil, "", err
	}
	for _, row := range r.rows(2) {
		routes = append(routes, *route(tenant, row))
	}
	return routes, r.text(1), nil
}

// route reads a row as the prelude's row makes it.
func route(tenant string, r reply) *Route {
	attempt, _ := strconv.Atoi(r.text(2))
	timeout, _ := strconv.Atoi(r.text(8))
	spared, _ := strconv.Atoi(r.text(15))
	return &Route{
		Ref: farm.Ref{Tenant: tenant, ID: r.text(0)}, State: farm.JobState(r.text(1)), Attempt: attempt, Worker: r.text(3),
		Kind: farm.JobKind(r.text(4)), Inline: r.text(5) == "1", CreatedAt: moment(r.text(6)), Queue: r.text(7), TimeoutSeconds: timeout,
		Background: r.text(9) == "1", SandboxID: r.text(10), Node: r.text(11), SandboxState: farm.SandboxState(r.text(12)),
		Head: r.text(13) == "1", OutsideFIFO: r.text(14) == "1", Uncounted: spared, Parked: r.text(16) == "1",
	}
}

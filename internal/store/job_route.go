package store

import (
	"context"
	"strconv"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Route is what must be known of a job to enqueue it, read in one step.
type Route struct {
	Ref            farm.Ref
	Kind           farm.JobKind
	State          farm.JobState
	Attempt        int
	Uncounted      int // attempts that do not count as crashes: the job was requeued though no worker had died
	Worker         string
	CreatedAt      time.Time
	Queue          string // the job's own; "": that of its sandbox's node
	TimeoutSeconds int
	Background     bool
	Inline         bool
	Head           bool // of its sandbox's FIFO
	OutsideFIFO    bool // it left the FIFO and runs on
	Parked         bool // its tenant's queue share is used up; it must not be enqueued now
	SandboxID      string
	SandboxState   farm.SandboxState // "" if the record is gone
	Node           string            // "" until one is chosen
}

// Route reads a job's route; CodeNotFound if there is no such job.
func (s *Store) Route(ctx context.Context, ref farm.Ref) (*Route, error) {
	r, err := s.Run(ctx, "read route", "job_route", ref.Tenant, ref.ID)
	if err != nil {
		return nil, err
	}
	if r.text(0) != "ok" {
		return nil, noJob(ref.ID)
	}
	return decodeRoute(ref.Tenant, r.fields(1)), nil
}

// SandboxRoutes reads the routes of a sandbox's unfinished jobs, in the order in which the jobs were accepted, also of those outside its FIFO.
func (s *Store) SandboxRoutes(ctx context.Context, sandbox farm.Ref) ([]Route, error) {
	refs, err := s.UnfinishedJobs(ctx, sandbox)
	if err != nil {
		return nil, err
	}
	routes := make([]Route, 0, len(refs))
	for _, ref := range refs {
		r, err := s.Route(ctx, ref)
		if farm.CodeOf(err) == farm.CodeNotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !r.State.Final() {
			routes = append(routes, *r)
		}
	}
	return routes, nil
}

// OpenRoutes pages through the tenant's unfinished jobs. Each call looks at no more than 200 of them and returns those that a queue should
// hold (running, inline, head of a FIFO) and those whose sandbox is final or gone. after is "" at first; next is "" at the end.
func (s *Store) OpenRoutes(ctx context.Context, tenant, after string) (routes []Route, next string, err error) {
	if after == "" {
		after = "-1"
	}
	r, err := s.Run(ctx, "list unfinished jobs", "job_open_routes", tenant, after, scanStretch)
	if err != nil {
		return nil, "", err
	}
	rows := r.rows(2)
	for i := range rows {
		routes = append(routes, *decodeRoute(tenant, pairs(rows[i])))
	}
	return routes, r.text(1), nil
}

// decodeRoute reads the fields that the prelude's route gives.
func decodeRoute(tenant string, f map[string]string) *Route {
	attempt, _ := strconv.Atoi(f["attempt"])
	timeout, _ := strconv.Atoi(f["timeout"])
	uncounted, _ := strconv.Atoi(f["uncounted"])
	return &Route{
		Ref: farm.Ref{Tenant: tenant, ID: f["id"]}, Kind: farm.JobKind(f["kind"]), State: farm.JobState(f["state"]),
		Attempt: attempt, Uncounted: uncounted, Worker: f["worker"], CreatedAt: moment(f["created"]), Queue: f["queue"], TimeoutSeconds: timeout,
		Background: f["background"] == "1", Inline: f["inline"] == "1", Head: f["head"] == "1", OutsideFIFO: f["outside_fifo"] == "1",
		Parked: f["parked"] == "1", SandboxID: f["sandbox"], SandboxState: farm.SandboxState(f["sandbox_state"]), Node: f["node"],
	}
}

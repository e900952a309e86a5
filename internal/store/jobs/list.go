package jobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

// JobFilter picks jobs that meet all of its fields; zero fields pick all. Of a list of values one must match.
//
// The HTTP parameters map to it one by one: job_id, sandbox_id, state and kind (each repeatable or comma-separated), outcome, created_after and
// created_before (RFC 3339, exclusive). The caller checks the values; an unknown state picks nothing.
type JobFilter struct {
	JobID     string
	SandboxID string
	States    []farm.JobState
	Kinds     []farm.JobKind
	Outcome   farm.JobOutcome
	Created   db.TimeRange
}

func (f JobFilter) picks(job *farm.Job) bool {
	return (f.JobID == "" || job.ID == f.JobID) && (f.SandboxID == "" || job.SandboxID == f.SandboxID) &&
		(len(f.States) == 0 || slices.Contains(f.States, job.State)) && (len(f.Kinds) == 0 || slices.Contains(f.Kinds, job.Kind)) &&
		(f.Outcome == "" || job.Outcome == f.Outcome) && f.Created.Contains(job.CreatedAt)
}

// Jobs lists jobs, newest first, without hidden ones, except the one that JobID names. next is the cursor of the following page, "" at the
// end. A call looks at 2000 records at most and gives about 1 MiB of records with their documents, so a page may be short, or empty, before the end. A bad
// cursor is CodeInvalid.
func (s *Store) Jobs(ctx context.Context, tenant string, f JobFilter, p db.Page) (jobs []*farm.Job, next string, err error) {
	if f.JobID != "" {
		job, err := s.Job(ctx, farm.Ref{Tenant: tenant, ID: f.JobID})
		switch {
		case farm.CodeOf(err) == farm.CodeNotFound:
			return nil, "", nil
		case err != nil:
			return nil, "", err
		case !f.picks(job):
			return nil, "", nil
		}
		return []*farm.Job{job}, "", nil
	}
	l := db.Listing[listedJob]{
		Index: s.Index(tenant, db.IndexJobs),
		Load: func(ctx context.Context, ids []string) ([]db.Sized[listedJob], error) {
			return db.FetchSized(ctx, s.DB, tenant, db.KeyJob, ids, decodeListed)
		},
		ID:   func(j *listedJob) string { return j.job.ID },
		Want: func(j *listedJob) bool { return f.picks(j.job) }, Passed: func(j *listedJob) bool { return f.Created.Passed(j.job.CreatedAt) },
		Complete: func(ctx context.Context, j *listedJob) (int, error) { return s.readDocuments(ctx, j.job, j.documents) },
	}
	unfinished := s.Index(tenant, db.IndexOpenJobs)
	if f.SandboxID != "" {
		l.Index, unfinished = s.Key(tenant, db.KeyJobsOf, f.SandboxID), s.Key(tenant, db.KeyUnfinished, f.SandboxID)
	}
	if len(f.States) > 0 && !slices.ContainsFunc(f.States, farm.JobState.Final) {
		l.From = unfinished
	}
	if len(f.States) > 0 || len(f.Kinds) > 0 || f.Outcome != "" || f.Created != (db.TimeRange{}) {
		l.Prune = func(ctx context.Context, ids []string) ([]string, bool, error) {
			return s.pruneJobs(ctx, tenant, ids, f)
		}
	}
	found, next, err := db.Scan(ctx, s.DB, l, p)
	if err != nil {
		return nil, "", err
	}
	jobs = make([]*farm.Job, len(found))
	for i, j := range found {
		jobs[i] = j.job
	}
	return jobs, next, nil
}

// listedJob is a job whose documents are not read yet.
type listedJob struct {
	job       *farm.Job
	documents map[string]string
}

func decodeListed(ctx context.Context, fields map[string]string) (*listedJob, error) {
	leave, err := budget.Core(ctx, len(fields["doc"])+len(fields["result"]))
	if err != nil {
		return nil, err
	}
	defer leave()
	job, err := decodeJob(fields)
	return &listedJob{job: job, documents: map[string]string{"shown": fields["shown"], "result": fields["result"]}}, err
}

// pruneJobs looks at a few fields, so that the results of jobs that are not wanted are not read. It drops hidden jobs, which indexes of unfinished ones
// have, too.
func (s *Store) pruneJobs(ctx context.Context, tenant string, ids []string, f JobFilter) (kept []string, end bool, err error) {
	err = s.eachJob(ctx, "filter jobs", tenant, ids, []string{"state", "kind", "created", "outcome", "hidden"}, func(id string, fields db.Reply) (bool, error) {
		job := &farm.Job{
			ID: id, SandboxID: f.SandboxID, State: farm.JobState(fields.Text(0)), Kind: farm.JobKind(fields.Text(1)), CreatedAt: db.Moment(fields.Text(2)),
			Outcome: farm.JobOutcome(fields.Text(3)),
		}
		end = end || f.Created.Passed(job.CreatedAt)
		if job.State != "" && fields.Text(4) != "1" && f.picks(job) {
			kept = append(kept, id)
		}
		return true, nil
	})
	return kept, end, err
}

// eachJob reads some fields of jobs, db.ScanStretch of them in a round trip, and shows them in the order of the ids as long as show returns true. Fields
// of a job that is gone are empty.
func (s *Store) eachJob(
	ctx context.Context, action, tenant string, ids, fields []string, show func(id string, fields db.Reply) (more bool, err error),
) error {
	for part := range slices.Chunk(ids, db.ScanStretch) {
		pipe := s.Redis.Pipeline()
		cmds := make([]*redis.SliceCmd, len(part))
		for i, id := range part {
			cmds[i] = pipe.HMGet(ctx, s.Key(tenant, db.KeyJob, id), fields...)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return db.Wrap(action, err)
		}
		for i, cmd := range cmds {
			if more, err := show(part[i], db.Reply(cmd.Val())); err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// QueuedAndRunning lists a tenant's unfinished jobs, the newest of them, without hidden ones. Of each it reads the state, the queue, the sandbox and when it
// was accepted, and nothing else.
func (s *Store) QueuedAndRunning(ctx context.Context, tenant string, most int) (jobs []farm.Job, err error) {
	ids, err := s.Redis.ZRevRange(ctx, s.Index(tenant, db.IndexOpenJobs), 0, int64(most)-1).Result()
	if err != nil {
		return nil, db.Wrap("list unfinished jobs", err)
	}
	err = s.eachJob(ctx, "count unfinished jobs", tenant, ids, []string{"state", "queue", "sandbox", "created", "hidden"}, func(id string, fields db.Reply) (bool, error) {
		job := farm.Job{
			ID: id, Tenant: tenant, State: farm.JobState(fields.Text(0)), Queue: fields.Text(1), SandboxID: fields.Text(2), CreatedAt: db.Moment(fields.Text(3)),
		}
		if job.State != "" && !job.State.Final() && fields.Text(4) != "1" {
			jobs = append(jobs, job)
		}
		return true, nil
	})
	return jobs, err
}

// noCell is the field cell of executions that are no cells of notebooks.
const noCell = "-"

// cellField is the field cell of a job: the hash of the session whose cell it is, since clients choose the names of sessions. Jobs of other kinds
// than execute have none.
func cellField(job *farm.Job) string {
	switch c := job.Cell(); {
	case c != nil:
		return sessionHash(c.Session)
	case job.Kind == farm.KindExecute:
		return noCell
	default:
		return ""
	}
}

func sessionHash(session string) string {
	sum := sha256.Sum256([]byte(session))
	return hex.EncodeToString(sum[:])
}

// QueuedCells lists the cells of notebooks that wait in the FIFO of a sandbox, the newest first: all, or those of one session. Of each job that
// waits there it reads three fields.
func (s *Store) QueuedCells(ctx context.Context, sandbox farm.Ref, session string) ([]farm.Ref, error) {
	ids, err := s.Redis.LRange(ctx, s.Key(sandbox.Tenant, db.KeyFIFO, sandbox.ID), 0, -1).Result()
	if err != nil {
		return nil, db.Wrap("read FIFO", err)
	}
	slices.Reverse(ids)
	var out []farm.Ref
	wanted := sessionHash(session)
	err = s.eachJob(ctx, "look for cells", sandbox.Tenant, ids, []string{"state", "kind", "cell"}, func(id string, fields db.Reply) (bool, error) {
		if fields.Text(0) != string(farm.JobQueued) || fields.Text(1) != string(farm.KindExecute) {
			return true, nil
		}
		cell, ref := fields.Text(2), farm.Ref{Tenant: sandbox.Tenant, ID: id}
		if cell == "" { // the release before did not write it
			var err error
			if cell, err = s.readCell(ctx, ref); err != nil {
				return false, err
			}
		}
		if cell != noCell && (session == "" || cell == wanted) {
			out = append(out, ref)
		}
		return true, nil
	})
	return out, err
}

// readCell is cellField of an execution, from its whole record; noCell if it is gone. Nothing of it is held afterwards.
func (s *Store) readCell(ctx context.Context, ref farm.Ref) (string, error) {
	defer budget.Keep(ctx, budget.Held(ctx))
	job, err := s.Shown(ctx, ref)
	if farm.CodeOf(err) == farm.CodeNotFound {
		return noCell, nil
	}
	if err != nil {
		return "", err
	}
	return cellField(job), nil
}

// Route is what must be known of a job to enqueue it, read in one step.
type Route struct {
	Ref              farm.Ref
	Kind             farm.JobKind
	State            farm.JobState
	Attempt          int
	GracefulRequeues int // attempts that do not count as crashes: the job was requeued though no worker had died
	Worker           string
	CreatedAt        time.Time
	Queue            string // the job's own; "": that of its sandbox's node
	TimeoutSeconds   int
	Background       bool
	Inline           bool
	Head             bool // of its sandbox's FIFO
	OutsideFIFO      bool // it left the FIFO and runs on
	Parked           bool // its tenant's queue share is used up; it must not be enqueued now
	SandboxID        string
	SandboxState     farm.SandboxState // "" if the record is gone
	Node             string            // "" until one is chosen
}

// Route reads a job's route; CodeNotFound if there is no such job.
func (s *Store) Route(ctx context.Context, ref farm.Ref) (*Route, error) {
	routes, err := s.routes(ctx, ref.Tenant, ref.ID)
	if err != nil {
		return nil, err
	}
	if len(routes) == 0 {
		return nil, noJob(ref.ID)
	}
	return &routes[0], nil
}

// routes reads the routes of a tenant's jobs in one step, without those that are gone.
func (s *Store) routes(ctx context.Context, tenant string, ids ...any) ([]Route, error) {
	r, err := s.Run(ctx, "read route", "job_route", tenant, ids...)
	if err != nil {
		return nil, err
	}
	rows := r.Rows(1)
	out := make([]Route, len(rows))
	for i := range rows {
		out[i] = *decodeRoute(tenant, db.Pairs(rows[i]))
	}
	return out, nil
}

// SandboxRoutes reads the routes of a sandbox's unfinished jobs, in the order in which the jobs were accepted, also of those outside its FIFO.
func (s *Store) SandboxRoutes(ctx context.Context, sandbox farm.Ref) ([]Route, error) {
	refs, err := s.UnfinishedJobs(ctx, sandbox)
	if err != nil {
		return nil, err
	}
	routes := make([]Route, 0, len(refs))
	for part := range slices.Chunk(refs, db.ScanStretch) {
		ids := make([]any, len(part))
		for i, ref := range part {
			ids[i] = ref.ID
		}
		found, err := s.routes(ctx, sandbox.Tenant, ids...)
		if err != nil {
			return nil, err
		}
		routes = append(routes, slices.DeleteFunc(found, func(r Route) bool { return r.State.Final() })...)
	}
	return routes, nil
}

// HasJob reports whether a sandbox has an unfinished job, of one of these kinds if there are any. It looks at the newest first, at two fields of each.
func (s *Store) HasJob(ctx context.Context, sandbox farm.Ref, kinds ...farm.JobKind) (bool, error) {
	refs, err := s.UnfinishedJobs(ctx, sandbox)
	if err != nil {
		return false, err
	}
	ids := make([]string, len(refs))
	for i, ref := range refs {
		ids[len(refs)-1-i] = ref.ID
	}
	has := false
	err = s.eachJob(ctx, "look for jobs of sandbox", sandbox.Tenant, ids, []string{"state", "kind"}, func(_ string, fields db.Reply) (bool, error) {
		state, kind := farm.JobState(fields.Text(0)), farm.JobKind(fields.Text(1))
		has = state != "" && !state.Final() && (len(kinds) == 0 || slices.Contains(kinds, kind))
		return !has, nil
	})
	return has, err
}

// OpenRoutes pages through the tenant's unfinished jobs. Each call looks at no more than 200 of them and returns those that a queue should
// hold (running, inline, head of a FIFO) and those whose sandbox is final or gone. after is "" at first; next is "" at the end.
func (s *Store) OpenRoutes(ctx context.Context, tenant, after string) (routes []Route, next string, err error) {
	if after == "" {
		after = "-1"
	}
	r, err := s.Run(ctx, "list unfinished jobs", "job_open_routes", tenant, after, db.ScanStretch)
	if err != nil {
		return nil, "", err
	}
	rows := r.Rows(2)
	for i := range rows {
		routes = append(routes, *decodeRoute(tenant, db.Pairs(rows[i])))
	}
	return routes, r.Text(1), nil
}

// decodeRoute reads the fields that the prelude's route gives.
func decodeRoute(tenant string, f map[string]string) *Route {
	attempt, _ := strconv.Atoi(f["attempt"])
	timeout, _ := strconv.Atoi(f["timeout"])
	uncounted, _ := strconv.Atoi(f["uncounted"])
	return &Route{
		Ref: farm.Ref{Tenant: tenant, ID: f["id"]}, Kind: farm.JobKind(f["kind"]), State: farm.JobState(f["state"]),
		Attempt: attempt, GracefulRequeues: uncounted, Worker: f["worker"], CreatedAt: db.Moment(f["created"]), Queue: f["queue"], TimeoutSeconds: timeout,
		Background: f["background"] == "1", Inline: f["inline"] == "1", Head: f["head"] == "1", OutsideFIFO: f["outside_fifo"] == "1",
		Parked: f["parked"] == "1", SandboxID: f["sandbox"], SandboxState: farm.SandboxState(f["sandbox_state"]), Node: f["node"],
	}
}

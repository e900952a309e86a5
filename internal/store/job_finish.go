package store

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Finish is the end of a job as its runner saw it.
type Finish struct {
	Ref       farm.Ref
	Attempt   int           // the claim's; 0 ends a job that was never claimed
	State     farm.JobState // a final one
	Result    *farm.Result  // nil: none
	Error     *farm.JobError
	Timings   farm.Timings // run and upload; the time in the queue is known
	LastEvent uint64       // number of the last event that was appended: the final state's is the one behind
}

// ending is what the finish script is told.
type ending struct {
	mode    string
	ref     farm.Ref
	attempt int
	state   farm.JobState
	result  *farm.Result
	err     *farm.JobError
	timings *farm.Timings
	last    uint64
}

// Ended is what the end of a job asks for next.
type Ended struct {
	Next     *farm.Ref // first in line now and to be enqueued; nil: none
	Unparked *farm.Ref // waited for the job's place on its queue, and is to be enqueued; nil: none
	Callback bool      // the job's owner wants to be told
	Sandbox  *farm.Ref // the sandbox that ended with its creation: what waits for it has to end too; nil: none
}

// Finish ends a job if it is still this attempt's, else it gives ErrFenced. Result, final event, place in line, sandbox
// and indexes change in one step. next is the job that is now first in line and has to be enqueued.
func (s *Store) Finish(ctx context.Context, f Finish) (next *farm.Ref, err error) {
	end, err := s.FinishEnd(ctx, f)
	return end.Next, err
}

// FinishEnd is Finish with all that follows from the end.
func (s *Store) FinishEnd(ctx context.Context, f Finish) (Ended, error) {
	if !f.State.Final() {
		return Ended{}, fmt.Errorf("finish job %s: %q is not a final state: %w", f.Ref.ID, f.State, ErrMove)
	}
	_, end, err := s.end(ctx, ending{
		mode: "finish", ref: f.Ref, attempt: f.Attempt, state: f.State, result: f.Result, err: f.Error, timings: &f.Timings, last: f.LastEvent,
	})
	return end, err
}

// Force ends an unfinished job whoever runs it; its runner is fenced. A finished job stays as it is, without an error.
func (s *Store) Force(ctx context.Context, ref farm.Ref, state farm.JobState, jerr *farm.JobError) (next *farm.Ref, err error) {
	end, err := s.ForceEnd(ctx, ref, state, jerr)
	return end.Next, err
}

// ForceEnd is Force with all that follows from the end.
func (s *Store) ForceEnd(ctx context.Context, ref farm.Ref, state farm.JobState, jerr *farm.JobError) (Ended, error) {
	if !state.Final() {
		return Ended{}, fmt.Errorf("force job %s: %q is not a final state: %w", ref.ID, state, ErrMove)
	}
	_, end, err := s.end(ctx, ending{mode: "force", ref: ref, state: state, err: jerr})
	return end, err
}

// Cancel ends a queued job at once (next as with Finish) and asks the worker of a running one to end it. A finished job
// stays as it is. The job is given as it is now.
func (s *Store) Cancel(ctx context.Context, ref farm.Ref) (job *farm.Job, next *farm.Ref, err error) {
	job, end, err := s.CancelEnd(ctx, ref, nil)
	return job, end.Next, err
}

// CancelEnd is Cancel with all that follows from the end. jerr says why a queued job ends, where its caller did not ask for it;
// what a running one says is its worker's.
func (s *Store) CancelEnd(ctx context.Context, ref farm.Ref, jerr *farm.JobError) (*farm.Job, Ended, error) {
	return s.end(ctx, ending{mode: "cancel", ref: ref, state: farm.JobCanceled, err: jerr})
}

func (s *Store) end(ctx context.Context, e ending) (*farm.Job, Ended, error) {
	args, err := s.endArgs(e)
	if err != nil {
		return nil, Ended{}, err
	}
	r, err := s.run(ctx, e.mode+" job", s.scripts.finish, e.ref.Tenant, args...)
	if err != nil {
		return nil, Ended{}, err
	}
	switch r.text(0) {
	case "ok":
		end := Ended{
			Next: following(e.ref.Tenant, r.text(1)), Callback: r.text(2) == "1", Sandbox: following(e.ref.Tenant, r.text(3)),
			Unparked: following(e.ref.Tenant, r.text(5)),
		}
		if e.mode != "cancel" {
			return nil, end, nil
		}
		job, err := decodeJob(r.fields(4))
		return job, end, err
	case "notfound":
		return nil, Ended{}, noJob(e.ref.ID)
	case "fenced":
		return nil, Ended{}, fmt.Errorf("%s job %s: %w", e.mode, e.ref.ID, ErrFenced)
	default:
		return nil, Ended{}, fmt.Errorf("%s job %s: %s → %s: %w", e.mode, e.ref.ID, r.text(1), e.state, ErrMove)
	}
}

func (s *Store) endArgs(e ending) ([]any, error) {
	result, err := encodeMaybe("result", e.result)
	if err != nil {
		return nil, err
	}
	jerr, err := encodeMaybe("job error", e.err)
	if err != nil {
		return nil, err
	}
	reason := "Its creation was canceled."
	if e.err != nil {
		reason = e.err.Message
	}
	var runMS, uploadMS string
	if e.timings != nil {
		runMS, uploadMS = decimal(e.timings.RunMS), decimal(e.timings.UploadMS)
	}
	return []any{
		e.ref.ID, e.mode, e.attempt, string(e.state), result, jerr, runMS, uploadMS, strconv.FormatUint(e.last, 10), rand.Text(),
		s.limits.RetentionSeconds, s.limits.HiddenSeconds, s.limits.ClosedSeconds, hint(e.ref), reason,
	}, nil
}

// Leave takes a running background command out of its sandbox's line: it holds back nobody and does not count as use.
func (s *Store) LeaveFIFO(ctx context.Context, ref farm.Ref, attempt int) (next *farm.Ref, err error) {
	r, err := s.run(ctx, "leave line", s.scripts.leave, ref.Tenant, ref.ID, attempt)
	if err != nil {
		return nil, err
	}
	if err := fenced("leave line", ref, r); err != nil {
		return nil, err
	}
	return following(ref.Tenant, r.text(1)), nil
}

// fenced reads the reply of a script that only a job's own attempt may run.
func fenced(what string, ref farm.Ref, r reply) error {
	switch r.text(0) {
	case "ok":
		return nil
	case "notfound":
		return noJob(ref.ID)
	default:
		return fmt.Errorf("%s of job %s: %w", what, ref.ID, ErrFenced)
	}
}

func following(tenant, id string) *farm.Ref {
	if id == "" {
		return nil
	}
	return &farm.Ref{Tenant: tenant, ID: id}
}

func decimal(f float64) string { return strconv.FormatFloat(f, 'f', 3, 64) }

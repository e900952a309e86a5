package store

import (
	"context"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Claim is a job in the hands of a worker, with all that it needs.
type Claim struct {
	Job     *farm.Job // running, under the attempt that fences everything that follows
	Request *farm.Request
	Sandbox *farm.Sandbox // nil when its record is gone
	Cancel  bool          // a cancel was asked for already
	Next    *farm.Ref     // a job that waited for this one's place on its queue and is to be enqueued; nil: none
}

// Claim gives a queued job to a worker: queued → running, attempt 1. A running job is given too when its worker is the
// same one or has no heartbeat any more (a takeover: the attempt rises, nothing else starts anew). Anything else gives
// ErrNotClaimable, a job that is not there CodeNotFound. A lined job makes its ready sandbox busy.
func (s *Store) Claim(ctx context.Context, ref farm.Ref, worker string) (*Claim, error) {
	r, err := s.run(ctx, "claim job", s.scripts.claim, ref.Tenant, ref.ID, worker, "")
	if err != nil {
		return nil, err
	}
	if r.text(0) == "held" {
		holder := r.text(1)
		alive, err := s.Alive(ctx, holder)
		if err != nil {
			return nil, err
		}
		if alive {
			return nil, fmt.Errorf("claim job %s: worker %s runs it: %w", ref.ID, holder, ErrNotClaimable)
		}
		if r, err = s.run(ctx, "take job over", s.scripts.claim, ref.Tenant, ref.ID, worker, holder); err != nil {
			return nil, err
		}
	}
	switch r.text(0) {
	case "ok":
		return decodeClaim(r)
	case "notfound":
		return nil, noJob(ref.ID)
	default:
		return nil, fmt.Errorf("claim job %s: it is %s %s: %w", ref.ID, r.text(0), r.text(1), ErrNotClaimable)
	}
}

func decodeClaim(r reply) (*Claim, error) {
	fields := r.fields(1)
	job, err := decodeJob(fields)
	if err != nil {
		return nil, err
	}
	request, err := decodeRequest(r.text(2))
	if err != nil {
		return nil, err
	}
	c := &Claim{Job: job, Request: request, Cancel: fields["cancel"] == "1", Next: following(job.Tenant, r.text(4))}
	if box := r.fields(3); len(box) > 0 {
		if c.Sandbox, err = decodeSandbox(box); err != nil {
			return nil, err
		}
	}
	return c, nil
}

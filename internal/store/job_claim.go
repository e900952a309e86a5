package store

import (
	"context"
	"fmt"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Claim is a job that a worker has claimed, with all that it needs.
type Claim struct {
	Job     *farm.Job     // running, under the attempt that fences everything that follows
	Request *farm.Request // nil until LoadRequest if it is a document
	Sandbox *farm.Sandbox // nil if its record is gone
	Cancel  bool          // a cancel was requested before

	request string // stored value that refers to documents; empty: it does not
}

// Claim gives a job to a worker. A queued job becomes running, under attempt 1. A running job is given too if it is this worker's, or if
// its worker has no heartbeat any more: that is a takeover, which only raises the attempt. The end of an attempt whose worker claims the job
// again is no crash (Route.Uncounted). Any other job gives ErrNotClaimable, an unknown one CodeNotFound. A job of the FIFO makes its ready
// sandbox busy. A parked job that gets the slot of the claimed one is enqueued.
func (s *Store) Claim(ctx context.Context, ref farm.Ref, worker string) (*Claim, error) {
	r, err := s.Run(ctx, "claim job", "job_claim", ref.Tenant, ref.ID, worker, "")
	if err != nil {
		return nil, err
	}
	if r.text(0) == "owned" {
		owner := r.text(1)
		alive, err := s.Alive(ctx, owner)
		if err != nil {
			return nil, err
		}
		if alive {
			return nil, fmt.Errorf("claim job %s: worker %s runs it: %w", ref.ID, owner, ErrNotClaimable)
		}
		if r, err = s.Run(ctx, "take job over", "job_claim", ref.Tenant, ref.ID, worker, owner); err != nil {
			return nil, err
		}
	}
	switch r.text(0) {
	case "ok":
		return s.decodeClaim(ctx, r)
	case "notfound":
		return nil, noJob(ref.ID)
	default:
		return nil, fmt.Errorf("claim job %s: it is %s %s: %w", ref.ID, r.text(0), r.text(1), ErrNotClaimable)
	}
}

// LoadRequest reads the request of a claim from the object store if it is there. It may be called again.
func (s *Store) LoadRequest(ctx context.Context, c *Claim) error {
	if c.Request != nil {
		return nil
	}
	request, err := s.readRequest(ctx, c.request)
	if farm.CodeOf(err) == farm.CodeNotFound {
		return farm.Wrap(err, farm.CodeInternal, "The request of the job is no longer in the object store. Send the job again.")
	}
	if err != nil {
		return fmt.Errorf("read request of job %s: %w", c.Job.ID, err)
	}
	c.Request = request
	return nil
}

// ForgetRequest drops a request that is a document, so that its memory becomes free, and reports whether it did. LoadRequest reads it again.
func (c *Claim) ForgetRequest() bool {
	if c.request == "" {
		return false
	}
	c.Request = nil
	return true
}

func (s *Store) decodeClaim(ctx context.Context, r reply) (*Claim, error) {
	fields := r.fields(1)
	job, err := decodeJob(fields)
	if err != nil {
		return nil, err
	}
	c := &Claim{Job: job, Cancel: fields["cancel"] == "1"}
	if request := r.text(2); isReference(request) {
		c.request = request
	} else if c.Request, err = decodeRequest(request); err != nil {
		return nil, err
	}
	if box := r.fields(3); len(box) > 0 {
		if c.Sandbox, err = s.readSandbox(ctx, box); err != nil {
			return nil, err
		}
	}
	return c, nil
}

package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// maxKey is the longest idempotency key.
const maxKey = 255

// Call has the fields that every request that starts work has.
type Call struct {
	Tenant  string
	Wait    time.Duration // how long the answer may be delayed until the job is final; 0: not at all
	Key     string        // idempotency key; empty: none
	Route   string        // with Body: identifies the request under a key
	Body    [32]byte      // SHA-256 of the request's body, where there is a key and the body is not staged
	Cell    *farm.Cell    // of a notebook, which asks for code; nil: none
	Data    bool          // figures, tables, lists and dicts that code shows are shown as data, too
	Awaited bool          // of a process: the caller reads its output from the beginning
	// Problems are the fields of the body that the decoder could not read. A call with any is refused, together with all
	// other problems of its body.
	Problems []farm.FieldError
}

// Outcome is the answer to a request that starts work.
type Outcome struct {
	Job     wire.Job
	Sandbox *wire.Sandbox // create, run
	Entries []wire.FileEntry
	record  *farm.Job
}

// Done reports whether the job has ended.
func (o Outcome) Done() bool { return o.Job.Final() }

// idempotency returns the key of the call with its fingerprint; extra are hashes of staged bodies.
func (c Call) idempotency(extra ...string) (*store.Idempotency, error) {
	if c.Key == "" {
		return nil, nil // no key is not an error
	}
	if len(c.Key) > maxKey {
		return nil, farm.Invalidf("the Idempotency-Key has %d characters; at most %d are allowed", len(c.Key), maxKey)
	}
	for _, r := range c.Key {
		if r <= ' ' || r > '~' {
			return nil, farm.Invalidf("the Idempotency-Key may hold visible ASCII characters only")
		}
	}
	sum := sha256.New()
	sum.Write([]byte(c.Route + "\x00"))
	sum.Write(c.Body[:])
	for _, e := range extra {
		sum.Write([]byte("\x00" + e))
	}
	return &store.Idempotency{Key: c.Key, Fingerprint: hex.EncodeToString(sum.Sum(nil))}, nil
}

// submit submits a job and waits for it as long as the call says. The watch starts before the job, so the end of the job
// is never missed. A job that creates a sandbox claims a member of the warm pool if one fits; nothing can fail between
// the claim and the acceptance. If the wait fails, the outcome beside the error has the accepted job.
//
// A caller of a verb that starts a job may have a core until here (budget.TakeCore), for what the verb checks. What waits before calls budget.LeaveCore, too.
func (s *Service) submit(ctx context.Context, c Call, a store.Accept) (Outcome, error) {
	budget.LeaveCore(ctx)
	var watch *store.Watch
	if c.Wait > 0 {
		var err error
		if watch, err = s.Store.Watch(ctx, a.Job.ID); err != nil {
			return Outcome{}, err
		}
		defer func() { watch.Close() }()
		watch.OnlyEnd()
	}
	if a.Sandbox != nil {
		s.fromPool(ctx, a.Job, a.Sandbox)
	}
	if !a.Job.Hidden {
		whole := shown(a.Request)
		if a.Job.Redacted, a.Job.Truncated = abridged(whole); a.Job.Truncated {
			a.Whole = whole
		}
	}
	submitting := ctx
	if a.Sandbox != nil && a.Sandbox.Pooled {
		submitting = context.WithoutCancel(ctx) // of a caller that leaves now the member would be nobody's
	}
	accepted, err := s.Submitter.Submit(submitting, a)
	s.settle(ctx, a, accepted, err)
	if err != nil {
		if e, ok := errors.AsType[*farm.Error](err); ok && e.Quota != nil {
			s.Refused(e.Quota.Name)
		}
		return Outcome{}, err
	}
	job := accepted.Job
	if !accepted.Existing {
		budget.Keep(ctx, 0) // the request's body is not needed while the job is waited for
		s.Accepted(ctx, job)
		level := slog.LevelInfo
		if job.Hidden { // a read, of which there are many
			level = slog.LevelDebug
		}
		s.Logger.Log(ctx, level, "job accepted", slog.String("job_id", job.ID), slog.String("kind", string(job.Kind)),
			slog.String("sandbox_id", job.SandboxID), slog.String("tenant", job.Tenant))
	}
	if c.Wait > 0 && !job.State.Final() {
		if accepted.Existing {
			watch.Close()
			if watch, err = s.Store.Watch(ctx, job.ID); err != nil {
				return Outcome{}, err
			}
			watch.OnlyEnd()
		}
		ended, err := s.await(ctx, watch, job, c.Wait, accepted.Existing)
		if err != nil {
			return Outcome{Job: s.job(ctx, job), record: job}, err
		}
		job = ended
	}
	return s.outcome(ctx, job, accepted.Sandbox)
}

// outcome puts an answer together. The sandbox of a create or run is read again when its job has moved on.
func (s *Service) outcome(ctx context.Context, job *farm.Job, box *farm.Sandbox) (Outcome, error) {
	out := Outcome{Job: s.job(ctx, job), record: job}
	if job.Kind != farm.KindCreate && job.Kind != farm.KindRun {
		return out, nil
	}
	if box == nil || job.State != farm.JobQueued {
		now, err := s.Store.Sandbox(ctx, farm.Ref{Tenant: job.Tenant, ID: job.SandboxID})
		switch {
		case err == nil:
			box = now
		case box == nil:
			return Outcome{}, err
		}
	}
	shown := sandboxOf(box)
	out.Sandbox = &shown
	return out, nil
}

// await waits until the job is final, the time is up, the caller leaves or the server stops. It returns the job as it
// is then. With look, the record is read before the first wait.
func (s *Service) await(ctx context.Context, watch *store.Watch, job *farm.Job, wait time.Duration, look bool) (*farm.Job, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for last := false; ; {
		if look {
			now, err := s.Store.Reload(ctx, job, watch)
			if err != nil {
				return nil, err
			}
			if job = now; job.State.Final() || last {
				return job, nil
			}
		}
		look = true
		select {
		case <-watch.C():
		case <-timer.C:
			last = true
		case <-s.draining:
			last = true
		case <-ctx.Done():
			return nil, farm.Wrap(ctx.Err(), farm.CodeUnavailable, "the request ended before its job")
		}
	}
}

// record makes the record of a job that this call asks for.
func (s *Service) record(c Call, kind farm.JobKind, sandboxID string) *farm.Job {
	return &farm.Job{
		ID: s.Store.NewJobID(), Tenant: c.Tenant, Kind: kind, SandboxID: sandboxID,
		CreatedAt: s.Now().UTC(), TimeoutSeconds: s.limits.TimeoutDefaultSeconds,
	}
}

// problems collects the problems of a request's body, so that all are reported at once. Pointers are those of RFC 6901; ""
// is for problems that do not belong to a single field.
type problems struct {
	decoded []farm.FieldError // found by the decoder
	found   []farm.FieldError // the first strict.MaxProblems
	invalid bool              // one of those found, kept or not, is not farm.CodeTooLarge
	other   error             // an error that is not about the body; the first one
}

// problems starts with the problems that the decoder found.
func (c Call) problems() *problems { return &problems{decoded: c.Problems} }

// check adds the error of a check; nil is none.
func (p *problems) check(pointer string, err error) {
	if err == nil {
		return
	}
	e, ok := errors.AsType[*farm.Error](err)
	if !ok || e.Code != farm.CodeInvalid && e.Code != farm.CodeTooLarge {
		if p.other == nil {
			p.other = err
		}
		return
	}
	if p.unread(pointer) {
		return
	}
	p.invalid = p.invalid || e.Code == farm.CodeInvalid
	if !p.full() {
		p.found = append(p.found, farm.FieldError{Pointer: pointer, Detail: e.Message})
	}
}

// addf adds a problem of a field.
func (p *problems) addf(pointer, format string, args ...any) {
	p.check(pointer, farm.Invalidf(format, args...))
}

// unread reports whether the decoder could not read a field: its value is not the caller's then.
func (p *problems) unread(pointer string) bool {
	return slices.ContainsFunc(p.decoded, func(d farm.FieldError) bool {
		return pointer == "" || pointer == d.Pointer || strings.HasPrefix(pointer, d.Pointer+"/")
	})
}

// full reports whether no more problems are kept.
func (p *problems) full() bool { return len(p.found) >= strict.MaxProblems }

// of reports whether one of these fields, or a field inside them, has a problem, or may have one that was not kept.
func (p *problems) of(pointers ...string) bool {
	return p.full() || slices.ContainsFunc(slices.Concat(p.decoded, p.found), func(f farm.FieldError) bool {
		return slices.ContainsFunc(pointers, func(pointer string) bool {
			return f.Pointer == pointer || strings.HasPrefix(f.Pointer, pointer+"/")
		})
	})
}

// err is the error for a body with problems; nil if there are none.
func (p *problems) err() error {
	all := slices.Concat(p.decoded, p.found)
	all = all[:min(len(all), strict.MaxProblems)]
	switch {
	case len(p.decoded) > 0:
		return &strict.Error{Fields: all}
	case len(all) > 0 && !p.invalid:
		return farm.FieldsError(farm.CodeTooLarge, all)
	case len(all) > 0:
		return farm.FieldsError(farm.CodeInvalid, all)
	default:
		return p.other
	}
}

package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Accept is a job to be taken in.
type Accept struct {
	Job         *farm.Job     // without its state; SandboxID names an existing sandbox or that of Sandbox
	Request     *farm.Request //
	Sandbox     *farm.Sandbox // create, run: the new sandbox, written in the same step; with its node where it comes from the pool
	Idempotency *Idempotency  // nil: none
	Packages    []string      // names that the job installs, as farm.NormalPackage has them; see PackageJobs
}

// Idempotency makes a call that comes again find what the first one made.
type Idempotency struct {
	Key         string
	Fingerprint string // of everything that makes a request the same one
}

// Accepted is a job that was taken in, durably.
type Accepted struct {
	Job      *farm.Job
	Sandbox  *farm.Sandbox // the job's; nil when its record is gone
	Existing bool          // an earlier job answers this call: the same idempotency key, or a close that is under way
	Ready    bool          // a task must be enqueued now: nothing is before it
}

// Accept takes a job in, in one step: idempotency, the state of the sandbox, limits, then the record, its first event
// and its place in line. What it refuses leaves nothing behind. Errors: CodeNotFound (no such sandbox), CodeConflict
// (state of the sandbox, key used for another request), CodeExhausted (limits), CodeUnavailable.
func (s *Store) Accept(ctx context.Context, a Accept) (Accepted, error) {
	job := *a.Job
	if err := s.checkAccept(&job, a.Sandbox); err != nil {
		return Accepted{}, err
	}
	if !urgent(job.Kind) {
		if err := s.crowded(ctx); err != nil {
			return Accepted{}, err
		}
	}
	if err := s.remember(ctx, job.Tenant); err != nil {
		return Accepted{}, err
	}
	args, err := s.acceptArgs(&job, a)
	if err != nil {
		return Accepted{}, err
	}
	r, err := s.run(ctx, "accept job", s.scripts.accept, job.Tenant, args...)
	if err != nil {
		return Accepted{}, err
	}
	if r.text(0) != "ok" {
		return Accepted{}, s.refused(r, &job)
	}
	out := Accepted{Existing: r.text(1) == "1", Ready: r.text(2) == "1"}
	if out.Job, err = decodeJob(r.fields(3)); err != nil {
		return Accepted{}, err
	}
	if fields := r.fields(4); len(fields) > 0 {
		if out.Sandbox, err = decodeSandbox(fields); err != nil {
			return Accepted{}, err
		}
	}
	return out, nil
}

// checkAccept refuses what would make a broken record: that is a mistake of ours, not of the caller.
func (s *Store) checkAccept(job *farm.Job, box *farm.Sandbox) error {
	switch {
	case job.ID == "" || job.Tenant == "" || job.Kind == "" || job.SandboxID == "":
		return fmt.Errorf("accept job %q of tenant %q: id, tenant, kind and sandbox are needed", job.ID, job.Tenant)
	case strings.ContainsAny(job.Tenant, "{}:/"):
		return farm.Invalidf("the tenant's name holds one of {}:/")
	case box != nil && (box.ID != job.SandboxID || box.Tenant != job.Tenant):
		return fmt.Errorf("accept job %s: its sandbox is %s, not %s", job.ID, job.SandboxID, box.ID)
	case box != nil && job.Inline:
		return fmt.Errorf("accept job %s: a job that makes its sandbox can not be inline", job.ID)
	}
	if job.CreatedAt.IsZero() {
		job.CreatedAt = s.now()
	}
	job.CreatedAt = job.CreatedAt.UTC().Truncate(time.Microsecond)
	return nil
}

func (s *Store) acceptArgs(job *farm.Job, a Accept) ([]any, error) {
	doc, err := encodeJob(job)
	if err != nil {
		return nil, err
	}
	request := a.Request
	if request == nil {
		request = &farm.Request{}
	}
	body, err := encode("request", request)
	if err != nil {
		return nil, err
	}
	var idem, fingerprint string
	if a.Idempotency != nil {
		sum := sha256.Sum256([]byte(a.Idempotency.Key))
		idem, fingerprint = hex.EncodeToString(sum[:]), a.Idempotency.Fingerprint
	}
	var boxDoc []byte
	var expires, idle, node string
	if box := a.Sandbox; box != nil {
		if boxDoc, err = encode("sandbox", box); err != nil {
			return nil, err
		}
		ends := box.ExpiresAt
		if ends.IsZero() {
			ends = job.CreatedAt.Add(time.Duration(box.Spec.TTLSeconds) * time.Second)
		}
		expires, idle, node = micros(ends), strconv.Itoa(box.Spec.IdleSeconds), box.Node
	}
	expired, reason := false, ""
	if request.Close != nil {
		expired, reason = request.Close.Expired, request.Close.Reason
	}
	args := []any{
		job.ID, string(job.Kind), job.SandboxID, flag(a.Sandbox != nil), flag(job.Inline), flag(job.Hidden),
		flag(job.CallbackURL != ""), flag(request.Command != nil && request.Command.Background), micros(job.CreatedAt), doc, body,
		idem, fingerprint, s.limits.IdempotencySeconds, s.limits.MaxWaiting, s.limits.MaxQueued,
		boxDoc, expires, idle, flag(expired), reason, need(job), job.Queue, job.TimeoutSeconds, node,
	}
	for _, name := range a.Packages {
		args = append(args, name)
	}
	return args, nil
}

// need says what a job asks of its sandbox's state.
func need(job *farm.Job) string {
	switch {
	case job.Kind == farm.KindClose:
		return "close"
	case job.Inline:
		return "ready" // it would not wait in line for the sandbox to start
	default:
		return "line"
	}
}

// refused turns a refusal of the script into the caller's sentence.
func (s *Store) refused(r reply, job *farm.Job) error {
	state := r.text(1)
	switch r.text(0) {
	case "notfound":
		return farm.NotFoundf("There is no sandbox %s.", job.SandboxID)
	case "reused":
		return farm.Conflictf("The Idempotency-Key was used for another request, job %s. Use a new key.", r.text(1))
	case "early":
		return farm.Conflictf("The sandbox %s is not ready yet: it is %s. Wait until it is ready, then try again.", job.SandboxID, state)
	case "full":
		return farm.Errorf(farm.CodeExhausted, "%d jobs are not finished yet, which is the most allowed. Try again when some are.", s.limits.MaxQueued)
	case "deep":
		return farm.Errorf(farm.CodeExhausted, "%d jobs wait in the queue %s, which is the most allowed. Try again when some have begun.", s.limits.MaxQueueDepth, state)
	case "waiting":
		return farm.Errorf(farm.CodeExhausted, "%d jobs wait for the sandbox %s, which is the most allowed. Try again when some are done.", s.limits.MaxWaiting, job.SandboxID)
	case "state":
		if farm.SandboxState(state) == farm.SandboxHibernated {
			return farm.Conflictf("The sandbox %s is hibernated. Resume it first.", job.SandboxID)
		}
		return farm.Conflictf("The sandbox %s is %s and takes no more work. Create a new one.", job.SandboxID, state)
	default:
		return fmt.Errorf("accept job: script answered %q", r.text(0))
	}
}

// seen remembers for a while which tenants are written down, to save the call.
type seen struct {
	mu   sync.Mutex
	keep time.Duration
	last map[string]time.Time
}

func newSeen(keep time.Duration) *seen { return &seen{keep: keep, last: map[string]time.Time{}} }

func (c *seen) fresh(name string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.last[name]
	return ok && now.Sub(at) < c.keep
}

func (c *seen) mark(name string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last[name] = now
}

// remember writes a tenant down for the loops that look after all of them. Once a minute is enough, also for a Redis
// that came back empty.
func (s *Store) remember(ctx context.Context, tenant string) error {
	now := time.Now()
	if s.tenants.fresh(tenant, now) {
		return nil
	}
	if err := s.rdb.SAdd(ctx, s.prefix+"tenants", tenant).Err(); err != nil {
		return wrap("write down tenant", err)
	}
	s.tenants.mark(tenant, now)
	return nil
}

// Tenants lists every tenant that Accept has seen.
func (s *Store) Tenants(ctx context.Context) ([]string, error) {
	names, err := s.rdb.SMembers(ctx, s.prefix+"tenants").Result()
	return names, wrap("list tenants", err)
}

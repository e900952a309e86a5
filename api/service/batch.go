package service

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/api/strict"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// BatchKinds are the kinds of jobs that a batch may hold.
func BatchKinds() []farm.JobKind {
	return []farm.JobKind{
		farm.KindCreate, farm.KindExecute, farm.KindCommand, farm.KindRun, farm.KindInstall, farm.KindInterrupt, farm.KindRestart, farm.KindClose,
	}
}

// batchHead is the part of a batch entry that is not the body of its route.
type batchHead struct {
	Kind      string `json:"kind" required:"true"`
	SandboxID string `json:"sandbox_id"`
}

// BatchOutcome is the outcome of one entry: an accepted job or an error.
type BatchOutcome struct {
	Outcome
	Err  error
	read bool // the job must be read again: it is waited for, has ended, or was not kept whole
}

// keptBytes is how much text the entries have together whose jobs are kept whole until they are sent, which nobody is charged for.
const keptBytes = budget.SmallBytes

// Batch is a batch of accepted jobs. What they show of their requests and their results are read one job at a time, so that one answer
// never holds all of them in memory.
type Batch struct {
	s        *Service
	waits    bool
	deadline time.Time // of the wait for all of them
	outcomes []BatchOutcome
}

// Batch accepts many jobs in order, each with its own outcome. Outcomes then waits for them as long as the call says. Each job counts as a
// request: admit, which is called once, says how many beside the first one are allowed, and why the others are not.
func (s *Service) Batch(ctx context.Context, c Call, entries []json.RawMessage, admit func(more int) (int, error)) (*Batch, error) {
	p := c.problems()
	switch {
	case len(entries) == 0:
		p.addf("/jobs", "jobs is empty")
	case len(entries) > s.limits.MaxBatch:
		p.addf("/jobs", "there are %d jobs; at most %d are allowed", len(entries), s.limits.MaxBatch)
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	if _, err := c.idempotency(); err != nil {
		return nil, err
	}
	b := &Batch{s: s, waits: c.Wait > 0, deadline: time.Now().Add(c.Wait), outcomes: make([]BatchOutcome, len(entries))}
	admitted, refusal := admit(len(entries) - 1)
	text := 0
	for i, entry := range entries {
		one := c
		one.Wait = 0
		if c.Key != "" {
			one.Key = entryKey(c.Key, i)
		}
		out := &b.outcomes[i]
		if i > admitted {
			out.Err = refusal
			continue
		}
		out.Outcome, out.Err = s.entry(ctx, one, entry)
		if text += len(entry); out.Err == nil && (b.waits || out.Done() || text > keptBytes) {
			record := *out.record
			record.Redacted, record.Result = nil, nil
			out.record, out.read = &record, true
			out.Job.Request, out.Job.Result = nil, nil
			if box := out.Sandbox; box != nil {
				box.Labels, box.EnvNames, box.AllowHosts = map[string]string{}, []string{}, []string{}
			}
		}
	}
	budget.Keep(ctx, 0)
	return b, nil
}

// Outcomes gives the outcomes in the order of the entries, each job as it is when it has ended or when the time of the batch is up. What
// it gives is dropped before the next one is read.
func (b *Batch) Outcomes(ctx context.Context) iter.Seq[*BatchOutcome] {
	return func(yield func(*BatchOutcome) bool) {
		for i := range b.outcomes {
			out := &b.outcomes[i]
			if out.read {
				b.read(ctx, &out.Outcome)
			}
			if !yield(out) {
				return
			}
			*out = BatchOutcome{}
			budget.Keep(ctx, 0)
		}
	}
}

// read waits for a job if the batch does, and reads it. One that cannot be read keeps the state in which it was accepted: it exists, so the
// caller must see it.
func (b *Batch) read(ctx context.Context, out *Outcome) {
	job, err := out.record, error(nil)
	if b.waits && !out.Done() {
		job, err = b.s.watchTo(ctx, job, max(0, time.Until(b.deadline)))
		budget.Keep(ctx, 0)
	}
	if err == nil {
		job, err = b.s.Store.Job(ctx, job.Ref())
	}
	if err == nil {
		var now Outcome
		if now, err = b.s.outcome(ctx, job, nil); err == nil {
			*out = now
			return
		}
	}
	b.s.Logger.WarnContext(ctx, "job of a batch is shown as it was accepted", slog.String("job_id", out.Job.ID), slog.Any("error", err))
}

// entryKey derives the key of an entry from that of the batch. Its fingerprint covers the whole batch.
func entryKey(key string, i int) string {
	suffix := fmt.Sprintf("#%d", i)
	return key[:min(len(key), maxKey-len(suffix))] + suffix
}

// entryBytes is what an entry counts for beside its text where its work needs a core: a thousand that are refused take as long as a large body.
const entryBytes = 1 << 10

// entry accepts one entry. It has a core until its verb waits for something, see submit.
func (s *Service) entry(ctx context.Context, c Call, raw json.RawMessage) (Outcome, error) {
	if err := budget.TakeCore(ctx, len(raw)+entryBytes); err != nil {
		return Outcome{}, err
	}
	defer budget.LeaveCore(ctx)
	ctx = budget.Without(ctx) // an accepted entry gives back nothing of the body, which the others need
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil || fields == nil {
		return Outcome{}, strict.Wholef("an entry must be an object {kind, sandbox_id, …the body of the kind's route}")
	}
	head, rest, err := split(fields)
	if err != nil {
		return Outcome{}, err
	}
	kind := farm.JobKind(head.Kind)
	makes := kind == farm.KindCreate || kind == farm.KindRun
	switch {
	case !slices.Contains(BatchKinds(), kind):
		return Outcome{}, farm.Invalidf("kind %q cannot be in a batch; it is one of %s", farm.Shorten(head.Kind), listed(BatchKinds()))
	case makes && head.SandboxID != "":
		return Outcome{}, farm.Invalidf("sandbox_id cannot be given for the kind %s, which makes a sandbox", kind)
	case !makes && head.SandboxID == "":
		return Outcome{}, &strict.Error{Fields: []farm.FieldError{{Pointer: "/sandbox_id", Detail: "sandbox_id is missing: a job of the kind " + head.Kind + " needs it"}}}
	}
	switch kind {
	case farm.KindCreate:
		return with(c, rest, func(c Call, r wire.CreateRequest) (Outcome, error) { return s.CreateSandbox(ctx, c, r) })
	case farm.KindRun:
		return with(c, rest, func(c Call, r wire.RunRequest) (Outcome, error) { return s.Run(ctx, c, r) })
	case farm.KindExecute:
		return with(c, rest, func(c Call, r wire.ExecuteRequest) (Outcome, error) { return s.Execute(ctx, c, head.SandboxID, r) })
	case farm.KindCommand:
		return with(c, rest, func(c Call, r wire.CommandRequest) (Outcome, error) { return s.Command(ctx, c, head.SandboxID, r) })
	case farm.KindInstall:
		return with(c, rest, func(c Call, r wire.PackagesRequest) (Outcome, error) { return s.Install(ctx, c, head.SandboxID, r) })
	case farm.KindInterrupt, farm.KindRestart:
		return with(c, rest, func(c Call, r wire.ControlRequest) (Outcome, error) {
			return s.Control(ctx, c, kind, head.SandboxID, r)
		})
	default: // close
		return with(c, rest, func(c Call, _ struct{}) (Outcome, error) {
			if err := c.problems().err(); err != nil {
				return Outcome{}, err
			}
			return s.CloseSandbox(ctx, c, head.SandboxID)
		})
	}
}

// split separates kind and sandbox_id of an entry from the body of its route.
func split(fields map[string]json.RawMessage) (batchHead, []byte, error) {
	own := make(map[string]json.RawMessage, 2)
	for _, key := range []string{"kind", "sandbox_id"} {
		if value, ok := fields[key]; ok {
			own[key] = value
			delete(fields, key)
		}
	}
	text, err := json.Marshal(own)
	if err != nil {
		return batchHead{}, nil, fmt.Errorf("encode entry: %w", err)
	}
	var head batchHead
	if err := strict.Decode(text, &head); err != nil {
		return head, nil, err
	}
	rest, err := json.Marshal(fields)
	if err != nil {
		return head, nil, fmt.Errorf("encode entry: %w", err)
	}
	return head, rest, nil
}

// with decodes the body of an entry and calls the verb of its kind.
func with[R any](c Call, body []byte, work func(Call, R) (Outcome, error)) (Outcome, error) {
	var r R
	var err error
	if c.Problems, err = strict.Fields(strict.Decode(body, &r)); err != nil {
		return Outcome{}, err
	}
	return work(c, r)
}

package execution

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// errStorageFull says that the tenant has used up its quota max_stored_mb.
var errStorageFull = errors.New("the storage of the tenant is full")

// storage is what an execution has reserved of its tenant's storage. Bytes are reserved before they are uploaded; the record of artifacts
// counts them, and the end of the job frees the rest.
type storage struct {
	mu       sync.Mutex
	reserved int64
}

// release takes back bytes that are not stored after all. The next reservation says so.
func (s *storage) release(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved -= bytes
}

// reserve reserves more bytes for artifacts of a job. If that is more than is left it returns errStorageFull, and how much is left.
func (x *Runner) reserve(ctx context.Context, e *execution, bytes int64) (free int64, err error) {
	s := &e.storage
	s.mu.Lock()
	defer s.mu.Unlock()
	want := s.reserved + bytes
	var ok bool
	err = x.retry(ctx, func(ctx context.Context) (err error) {
		ok, free, err = x.store.ReserveStored(ctx, e.job.Ref(), e.job.Attempt, want)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("reserve storage: %w", err)
	}
	if !ok {
		return max(free-s.reserved, 0), errStorageFull
	}
	s.reserved = want
	return 0, nil
}

// reserveFiles reserves the bytes of changed files: of all of them or, if that is too much, of those that fit, in their order. It reports
// which of them fit.
func (x *Runner) reserveFiles(ctx context.Context, e *execution, files []agent.ChangedFile) ([]bool, error) {
	fits := make([]bool, len(files))
	free := int64(1<<63 - 1)
	for {
		total := int64(0)
		for i, f := range files {
			size := farm.StoredBytes(f.Size)
			if fits[i] = size <= free-total; fits[i] {
				total += size
			}
		}
		if total == 0 {
			return fits, nil
		}
		left, err := x.reserve(ctx, e, total)
		if !errors.Is(err, errStorageFull) {
			return fits, err
		}
		free = min(left, total-1) // less each time: another job may have taken some
	}
}

// kept is how many bytes of a collector are reserved for what is in the object store already.
func (c *collector) kept() int64 {
	kept := c.stored
	for _, r := range c.rich {
		if r.Artifact != nil {
			kept += farm.ObjectBytes
		}
	}
	for _, o := range c.outputs {
		for _, s := range o.both() {
			if s.artifact != nil {
				kept += farm.StoredBytes(s.artifact.Size)
			} else {
				kept += int64(s.parts) * blob.PartBytes
			}
		}
	}
	return kept
}

// maxSkippedNames is how many skipped files a note names.
const maxSkippedNames = 10

// noteSkipped tells the caller which files are not artifacts: those that the storage of the tenant has no room for now, and those that it never has.
func (x *Runner) noteSkipped(ctx context.Context, e *execution) {
	skipped := e.collect.skipped
	if len(skipped) == 0 {
		return
	}
	slices.SortFunc(skipped, func(a, b agent.ChangedFile) int { return strings.Compare(a.Path, b.Path) })
	quota := float64(farm.NoQuota)
	if quotas, _, err := x.store.TenantQuotas(ctx, e.job.Tenant); err == nil { // without it no file is known to be too large
		quota = quotas.Get(farm.QuotaStoredMB)
	}
	var large, rest []string
	for _, f := range skipped {
		if quota >= 0 && float64(farm.StoredBytes(f.Size)) > quota*(1<<20) {
			large = append(large, f.Path)
		} else {
			rest = append(rest, f.Path)
		}
	}
	where := "these files stayed in the workspace"
	if e.sandbox.OneShot {
		where = "these files are lost with the sandbox of the run"
	}
	if len(rest) > 0 {
		e.collect.note("The storage of your tenant is full (quota max_stored_mb), so %s: %s. Delete artifacts to make room.", where, firstOf(rest))
	}
	if len(large) > 0 {
		e.collect.note("The quota max_stored_mb of your tenant allows %s MiB in all, less than each of these files needs, so %s: %s. Make them smaller, or ask the farm's operator to raise it.",
			farm.QuotaText(quota), where, firstOf(large))
	}
}

// firstOf names the first of some files.
func firstOf(paths []string) string {
	names := make([]string, 0, maxSkippedNames)
	for _, p := range paths[:min(len(paths), maxSkippedNames)] {
		names = append(names, noted(p, 100))
	}
	text := strings.Join(names, ", ")
	if n := len(paths) - len(names); n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// giveUpOutputs ends the uploads of streams that this worker has no room for.
func (x *Runner) giveUpOutputs(ctx context.Context, e *execution) {
	for _, s := range e.collect.current() {
		if s.noRoom && !s.lost {
			x.log.WarnContext(ctx, "a long output is cut: neither memory nor disk has room for it (worker.output_spool_mb)", "job_id", e.job.ID, "output", s.path)
			x.giveUp(ctx, e, s)
		}
	}
}

// giveUp ends the upload of a stream that does not fit into the storage. The record has its head and tail.
func (x *Runner) giveUp(ctx context.Context, e *execution, s *sink) {
	e.storage.release(int64(s.parts) * blob.PartBytes)
	if s.upload != "" {
		if _, err := x.blobs.AbortUploadsOf(ctx, x.artifact(e, s.path, outputType).Key); err != nil {
			x.log.WarnContext(ctx, "upload of an output was not aborted", "job_id", e.job.ID, "error", err)
		}
	}
	s.lost, s.upload, s.parts, s.sum = true, "", 0, nil
	s.unsent.close()
}

// eventsStopped tells the caller that there are no more events of output.
const eventsStopped = "The storage of your tenant is full (quota max_stored_mb), so no more output is sent as events: the result has it, as far as there is room. Delete artifacts to make room."

// stopEvents drops events of output that the storage of the tenant has no room for, and sends no more of them. The other ones, which are few
// and small, are queued again under their ids, since they may be stored, with one that says so. It reports whether there are any to be sent: not if they were refused before.
func (c *collector) stopEvents(events []farm.Event) (more bool) {
	first := !c.stopped()
	for i := range c.sent {
		c.sent[i] = c.limits.MaxStreamEvents + 1
	}
	c.richFull = true
	c.note(eventsStopped)
	if first {
		c.take()
		for _, e := range events {
			if e.Name == farm.EventProgress {
				c.events = append(c.events, e)
			}
		}
		c.events = append(c.events, farm.Event{Name: farm.EventProgress, Progress: &farm.Progress{Message: eventsStopped}})
	}
	return first
}

// stopped reports whether no more events of output are sent.
func (c *collector) stopped() bool {
	return c.richFull && c.sent[0] > c.limits.MaxStreamEvents && c.sent[1] > c.limits.MaxStreamEvents
}

// noteLost tells the caller which streams were given up.
func (c *collector) noteLost() {
	for _, o := range c.outputs {
		for _, s := range o.both() {
			if s.noRoom {
				c.note("The worker had no room for more long outputs, so %s is not an artifact: the result has head and tail. Send the job again later, or write the output to a file.", s.path)
			} else if s.lost {
				c.note("The storage of your tenant is full (quota max_stored_mb), so %s is not an artifact: the result has head and tail. Delete artifacts to make room.", s.path)
			}
		}
	}
}

// evictAfter is how long a job runs before its sandbox is searched for code that blocks it. Most jobs end earlier.
const evictAfter = 2 * time.Second

// evictGrace is how long stopped code may take to end before it is forgotten, which kills it: longer than the agent waits after its interrupt.
const evictGrace = 5 * time.Second

// evictPoll is how often evict looks whether stopped code has ended.
const evictPoll = 50 * time.Millisecond

// evictLater calls evict after evictAfter, unless stop is called first.
func (x *Runner) evictLater(ctx context.Context, sandbox *farm.Sandbox, job string) (stop func()) {
	ctx, done := context.WithCancel(ctx)
	x.background.Go(func() {
		if retry.Sleep(ctx, evictAfter) != nil {
			return
		}
		if err := x.evict(ctx, sandbox, job); err != nil && ctx.Err() == nil {
			x.log.WarnContext(ctx, "code of ended jobs may block a sandbox", "job_id", job, "sandbox_id", sandbox.ID, "error", err)
		}
	})
	return done
}

// evict stops code in a sandbox whose job has ended, or is unknown since Redis has lost it. No worker has such code and could stop it, and it
// would block the next job of the sandbox. It is interrupted as by a cancel, so that its kernel keeps what the jobs before it have left there.
func (x *Runner) evict(ctx context.Context, sandbox *farm.Sandbox, exceptJob string) error {
	ctx, done := context.WithTimeout(ctx, retry.CommitTimeout)
	defer done()
	c, err := x.node.Connect(ctx, sandbox)
	if err != nil {
		return err
	}
	list, err := c.Executions(ctx)
	if err != nil {
		return fmt.Errorf("list executions: %w", err)
	}
	var errs []error
	var stopped []string
	for _, e := range list {
		id := jobOf(e.ID)
		if e.Done || id == exceptJob || !farm.ValidID(farm.JobPrefix, id) {
			continue
		}
		job, err := x.store.Job(ctx, farm.Ref{Tenant: sandbox.Tenant, ID: id})
		switch {
		case farm.CodeOf(err) == farm.CodeNotFound:
		case err != nil:
			errs = append(errs, fmt.Errorf("read job of an execution: %w", err))
			continue
		case !job.State.Final():
			continue
		}
		x.log.InfoContext(ctx, "code of an ended job is stopped", "job_id", e.ID, "sandbox_id", sandbox.ID)
		stopped = append(stopped, e.ID)
	}
	return errors.Join(append(errs, stopAndForget(ctx, c, stopped...))...)
}

// stopAndForget interrupts executions, as a cancel does, and forgets them when they have ended. One that does not end in time is killed, and its
// kernel with it.
func stopAndForget(ctx context.Context, c *client.Client, executions ...string) error {
	var errs []error
	for _, id := range executions {
		if e, err := c.Execution(ctx, id); err == nil && e != nil && !e.Done {
			if err = c.Stop(ctx, id, agent.StopCancel); err != nil {
				errs = append(errs, fmt.Errorf("stop execution: %w", err))
			}
		}
	}
	end := time.Now().Add(evictGrace)
	for _, id := range executions {
		e, err := c.Execution(ctx, id)
		for err == nil && e != nil && !e.Done && time.Now().Before(end) {
			if err = retry.Sleep(ctx, evictPoll); err == nil {
				e, err = c.Execution(ctx, id)
			}
		}
		if err == nil {
			err = c.Forget(ctx, id)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("forget stopped execution: %w", err))
		}
	}
	return errors.Join(errs...)
}

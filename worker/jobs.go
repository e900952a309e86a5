package worker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/execution"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// activeJobs are the jobs that this worker has claimed or is about to claim, so that a cancel finds them.
type activeJobs struct {
	mu   sync.Mutex
	byID map[string]*activeJob
}

// activeJob is one job that this worker has claimed, or is about to claim: a cancel may come before the answer to the claim.
type activeJob struct {
	ref          farm.Ref
	*store.Claim               // nil while the job is being claimed
	cancel       chan struct{} // closed by a cancel, or when the job has ended unclaimed
	waiting      waiting       // for a place
	once         sync.Once
	cell         *farm.Cell                              // of a notebook, whose code the job runs; nil: none
	start        atomic.Pointer[context.CancelCauseFunc] // ends the start of the job's sandbox; nil: the sandbox is not being started
	asked        asked                                   // starts of its container
}

// asked are starts of a container that the engine has not answered: it goes on with them also when nobody waits.
type asked struct {
	sync.WaitGroup
	open atomic.Int32
}

func (a *asked) begin() {
	a.Add(1)
	a.open.Add(1)
}

func (a *asked) end() {
	a.open.Add(-1)
	a.Done()
}

// waiting is a wait for a place; the zero value: the job does not wait.
type waiting struct {
	queue string
	since time.Time
}

func newActiveJob(ref farm.Ref) *activeJob {
	return &activeJob{ref: ref, cancel: make(chan struct{})}
}

// task is the job for package execution.
func (j *activeJob) task() execution.Task { return execution.Task{Claim: j.Claim, Cancel: j.cancel} }

// requestCancel has the job's work cancelled. It may be called again.
func (j *activeJob) requestCancel() { j.once.Do(func() { close(j.cancel) }) }

// stopStart ends the start of the job's sandbox, if the sandbox is being started.
func (j *activeJob) stopStart(cause error) {
	if stop := j.start.Load(); stop != nil {
		(*stop)(cause)
	}
}

// reserve notes a job before it is claimed. It returns nil when this worker has the job already: the records give a job to its own
// worker again, so a task that is delivered twice would otherwise run the job twice at once.
func (js *activeJobs) reserve(ref farm.Ref) *activeJob {
	js.mu.Lock()
	defer js.mu.Unlock()
	if _, active := js.byID[ref.ID]; active {
		return nil
	}
	j := newActiveJob(ref)
	js.byID[ref.ID] = j
	return j
}

// remove forgets a job.
func (js *activeJobs) remove(id string) {
	js.mu.Lock()
	defer js.mu.Unlock()
	delete(js.byID, id)
}

// claimed notes the claim of a reserved job.
func (js *activeJobs) claimed(j *activeJob, c *store.Claim) {
	if c.Cancel {
		j.requestCancel()
	}
	js.mu.Lock()
	defer js.mu.Unlock()
	j.Claim = c
}

// all returns the claimed jobs.
func (js *activeJobs) all() []*activeJob {
	js.mu.Lock()
	defer js.mu.Unlock()
	list := make([]*activeJob, 0, len(js.byID))
	for _, j := range js.byID {
		if j.Claim != nil {
			list = append(list, j)
		}
	}
	return list
}

// refs names the claimed jobs and those that are not claimed yet.
func (js *activeJobs) refs() []farm.Ref {
	js.mu.Lock()
	defer js.mu.Unlock()
	list := make([]farm.Ref, 0, len(js.byID))
	for _, j := range js.byID {
		list = append(list, j.ref)
	}
	return list
}

// attempts are the jobs that this worker has claimed, with their attempts, and those that it has not claimed yet, with 0.
func (js *activeJobs) attempts() map[string]int {
	js.mu.Lock()
	defer js.mu.Unlock()
	list := make(map[string]int, len(js.byID))
	for id, j := range js.byID {
		list[id] = 0
		if j.Claim != nil {
			list[id] = j.Job.Attempt
		}
	}
	return list
}

// wait notes that a reserved job waits for a place, or does no more.
func (js *activeJobs) wait(j *activeJob, w waiting) {
	js.mu.Lock()
	defer js.mu.Unlock()
	j.waiting = w
}

// waiting counts the jobs that wait for a place, by queue.
func (js *activeJobs) waiting() map[string]farm.WaitingJobs {
	js.mu.Lock()
	defer js.mu.Unlock()
	queues := map[string]farm.WaitingJobs{}
	for _, j := range js.byID {
		if w := j.waiting; w != (waiting{}) {
			queues[w.queue] = queues[w.queue].And(farm.WaitingJobs{Jobs: 1, Since: w.since})
		}
	}
	return queues
}

// requestCancel has a job's work cancelled. It does nothing if this worker does not have the job.
func (js *activeJobs) requestCancel(id string) {
	if j := js.get(id); j != nil {
		j.requestCancel()
	}
}

func (js *activeJobs) get(id string) *activeJob {
	js.mu.Lock()
	defer js.mu.Unlock()
	return js.byID[id]
}

// count returns the number of jobs and of the sandboxes that they use.
func (js *activeJobs) count() (jobs, sandboxes int) {
	js.mu.Lock()
	defer js.mu.Unlock()
	seen := map[string]bool{}
	for _, j := range js.byID {
		if j.Claim != nil {
			jobs++
			seen[j.Job.SandboxID] = true
		}
	}
	return jobs, len(seen)
}

// watchCancels cancels jobs, and has changed deadlines and rules of sandboxes take effect, as messages come in. After the subscription was interrupted it
// reads the cancel flag of every job.
func (w *Worker) watchCancels(c *store.Cancels) {
	defer c.Close()
	for {
		select {
		case <-w.base.Done():
			return
		case ref, ok := <-c.C():
			if !ok {
				return
			}
			if farm.ValidID(farm.SandboxPrefix, ref.ID) {
				w.apply(&w.newRules, ref, w.refreshRules)
				w.apply(&w.newDeadlines, ref, w.sendDeadline)
				continue
			}
			if ref != (farm.Ref{}) {
				w.jobs.requestCancel(ref.ID)
				continue
			}
			// A missed message does not come again, so a read that fails is repeated.
			for w.readCancels(w.base) != nil && retry.Sleep(w.base, time.Second) == nil {
				continue
			}
		}
	}
}

func (w *Worker) readCancels(ctx context.Context) error {
	var errs []error
	for _, ref := range w.jobs.refs() {
		requested, err := w.store.CancelRequested(ctx, ref)
		if requested {
			w.jobs.requestCancel(ref.ID)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// changes are those of sandboxes that take effect at the moment: of each sandbox one, and the next one for all that came meanwhile.
type changes struct {
	mu    sync.Mutex
	again map[farm.Ref]bool // of the sandboxes with one: another one came
}

// begin reports whether the caller has the change take effect; otherwise somebody else does, after its own.
func (c *changes) begin(sandbox farm.Ref) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, runs := c.again[sandbox]
	if c.again == nil {
		c.again = map[farm.Ref]bool{}
	}
	c.again[sandbox] = runs
	return !runs
}

// more reports whether another change came since begin or the last more. If not, this one has ended.
func (c *changes) more(sandbox farm.Ref) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.again[sandbox] {
		c.again[sandbox] = false
		return true
	}
	delete(c.again, sandbox)
	return false
}

// apply has a change of a sandbox take effect in the background. It does not wait.
func (w *Worker) apply(c *changes, sandbox farm.Ref, change func(farm.Ref)) {
	if !c.begin(sandbox) {
		return
	}
	w.background.Go(func() {
		for again := true; again; again = c.more(sandbox) {
			change(sandbox)
		}
	})
}

// refreshRules puts a sandbox's new rules in force at once, if it is on this node. Otherwise rules are read again.
func (w *Worker) refreshRules(sandbox farm.Ref) {
	if err := w.egress.Refresh(w.base, sandbox); err != nil && w.base.Err() == nil {
		w.log.DebugContext(w.base, "new rules of a sandbox are not in force yet", "sandbox_id", sandbox.ID, "error", err)
	}
}

// sendDeadline sends a sandbox's new deadline to its agent, if it is on this node. Otherwise the reconciler does.
func (w *Worker) sendDeadline(sandbox farm.Ref) {
	if here, err := w.store.IsOnNode(w.base, sandbox, w.node.ID()); err != nil || !here { // every worker learns of every change, and a record may be long
		return
	}
	s, err := w.store.Sandbox(w.base, sandbox)
	if err != nil || s.State != farm.SandboxReady && s.State != farm.SandboxBusy {
		return
	}
	if err := w.node.SendDeadline(w.base, s); err != nil && w.base.Err() == nil {
		w.log.DebugContext(w.base, "agent does not know its new deadline yet", "sandbox_id", s.ID, "error", err)
	}
}

// activity counts the jobs that a worker ended, by the minute, for an hour.
type activity struct {
	mu      sync.Mutex
	minutes []farm.Minute // the oldest first; at most one for each minute of farm.ActivityKept
	changed bool          // since they were stored
}

// add counts a job of a queue whose end was committed. A worker serves few queues.
func (a *activity) add(now time.Time, queue string, job *farm.Job, v execution.Outcome) {
	one := farm.Minute{At: farm.MinuteOf(now), Ended: 1, RunMS: v.Run.Milliseconds(), Queues: map[string]int{queue: 1}}
	if v.State != farm.JobCompleted && v.State != farm.JobCanceled {
		one.Failed = 1
	}
	if !job.StartedAt.IsZero() && !job.CreatedAt.IsZero() {
		one.WaitMS = max(job.StartedAt.Sub(job.CreatedAt), 0).Milliseconds()
		one.MaxWaitMS = one.WaitMS
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.changed = true
	if last := len(a.minutes) - 1; last >= 0 && a.minutes[last].At >= one.At { // also where the clock was set back
		a.minutes[last] = a.minutes[last].Plus(one)
		return
	}
	oldest := farm.MinuteOf(now.Add(-farm.ActivityKept))
	a.minutes = append(slices.DeleteFunc(a.minutes, func(m farm.Minute) bool { return m.At <= oldest }), one)
}

// store writes what has changed.
func (a *activity) store(ctx context.Context, write func(context.Context, []farm.Minute) error) error {
	a.mu.Lock()
	minutes, changed := slices.Clone(a.minutes), a.changed
	a.changed = false
	a.mu.Unlock()
	if !changed {
		return nil
	}
	err := write(ctx, minutes)
	if err != nil {
		a.mu.Lock()
		a.changed = true
		a.mu.Unlock()
	}
	return err
}

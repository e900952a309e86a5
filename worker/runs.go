package worker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// runs are the jobs that this worker has in hand, so that a cancel finds them.
type runs struct {
	mu    sync.Mutex
	byJob map[string]*run
}

// run is one job in hand.
type run struct {
	*store.Claim
	cancel chan struct{} // closed by a cancel
	once   sync.Once
	start  atomic.Pointer[context.CancelCauseFunc] // ends the start of the job's sandbox; nil: none is under way
}

func (r *run) stop() { r.once.Do(func() { close(r.cancel) }) }

// canceled reports whether the job is to be cancelled.
func (r *run) canceled() bool {
	select {
	case <-r.cancel:
		return true
	default:
		return false
	}
}

// stopStart ends the start of the job's sandbox, if it is under way.
func (r *run) stopStart(cause error) {
	if stop := r.start.Load(); stop != nil {
		(*stop)(cause)
	}
}

// reserve takes a job in hand before it is claimed. It is false when it is in hand already: a record gives a job to its
// own worker again, so a task that is delivered twice would otherwise run beside itself.
func (rs *runs) reserve(job string) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if _, held := rs.byJob[job]; held {
		return false
	}
	rs.byJob[job] = nil
	return true
}

// release lets go of a job.
func (rs *runs) release(job string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.byJob, job)
}

// add makes the run of a job that is reserved.
func (rs *runs) add(c *store.Claim) *run {
	r := &run{Claim: c, cancel: make(chan struct{})}
	if c.Cancel {
		r.stop()
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.byJob[c.Job.ID] = r
	return r
}

func (rs *runs) all() []*run {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	list := make([]*run, 0, len(rs.byJob))
	for _, r := range rs.byJob {
		if r != nil {
			list = append(list, r)
		}
	}
	return list
}

func (rs *runs) get(job string) *run {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.byJob[job]
}

// count gives the number of jobs and of the sandboxes that they use.
func (rs *runs) count() (jobs, sandboxes int) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	seen := map[string]bool{}
	for _, r := range rs.byJob {
		if r != nil {
			jobs++
			seen[r.Job.SandboxID] = true
		}
	}
	return jobs, len(seen)
}

// watchCancels stops jobs that are cancelled. After the subscription was interrupted every job's flag is looked at.
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
				w.background.Go(func() { w.followPatch(ref) })
				continue
			}
			if ref != (farm.Ref{}) {
				if r := w.runs.get(ref.ID); r != nil {
					r.stop()
				}
				continue
			}
			// What was missed is not told again, so a look that fails is taken again.
			for w.lookForCancels(w.base) != nil && sleep(w.base, time.Second) == nil {
				continue
			}
		}
	}
}

func (w *Worker) lookForCancels(ctx context.Context) error {
	var errs []error
	for _, r := range w.runs.all() {
		asked, err := w.store.CancelRequested(ctx, r.Job.Ref())
		if asked {
			r.stop()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

package worker

import (
	"context"
	"sync"

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
}

func (r *run) stop() { r.once.Do(func() { close(r.cancel) }) }

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

func (rs *runs) remove(r *run) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.byJob[r.Job.ID] == r {
		delete(rs.byJob, r.Job.ID)
	}
}

func (rs *runs) all() []*run {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	list := make([]*run, 0, len(rs.byJob))
	for _, r := range rs.byJob {
		list = append(list, r)
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
		seen[r.Job.SandboxID] = true
	}
	return len(rs.byJob), len(seen)
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
			if ref != (farm.Ref{}) {
				if r := w.runs.get(ref.ID); r != nil {
					r.stop()
				}
				continue
			}
			w.lookForCancels(w.base)
		}
	}
}

func (w *Worker) lookForCancels(ctx context.Context) {
	for _, r := range w.runs.all() {
		if asked, err := w.store.CancelRequested(ctx, r.Job.Ref()); err == nil && asked {
			r.stop()
		}
	}
}

package jupyter

import (
	"context"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// kindExecution is the kind of the kernel's message that a job begins which is no cell.
	kindExecution = "execution"
	// otherSession is the session of such jobs in what clients get.
	otherSession = "v1"
	// maxOthers bounds the jobs whose output is still to be shown. Beyond them the oldest are not.
	maxOthers = 32
)

// other has clients see the output of a job that is no cell, as that of another client. One that ended long ago is left out: clients were
// not here. k.feeding is held.
//
//nolint:contextcheck // the work outlives who is told of the job: its context is that of a client
func (k *kernel) other(job string) {
	if !farm.ValidID(farm.JobPrefix, job) { // such as the installation of packages
		return
	}
	k.others = append(k.others, job)
	k.others = k.others[max(0, len(k.others)-maxOthers):]
	if k.shows {
		return
	}
	ctx := k.caller()
	if ctx == nil {
		return
	}
	k.shows = true
	k.server.work.Go(func() { k.showOthers(ctx) })
}

// caller is the context of one of the clients; nil: there is none.
func (k *kernel) caller() context.Context {
	for _, s := range k.all() {
		s.mu.Lock()
		ctx := s.ctx
		s.mu.Unlock()
		if ctx != nil {
			return ctx
		}
	}
	return nil
}

// showOthers shows one job after another.
func (k *kernel) showOthers(caller context.Context) {
	s := newSession(caller, k, otherSession) // it has no client: what it says goes to all others
	s.ctx, s.gone = caller, true
	for {
		k.feeding.Lock()
		if len(k.others) == 0 || k.server.life.Err() != nil {
			k.shows = false
			k.feeding.Unlock()
			return
		}
		job := k.others[0]
		k.others = k.others[1:]
		k.feeding.Unlock()
		ctx, done := s.context()
		s.showJob(ctx, job) //nolint:contextcheck // it is made of caller
		done()
	}
}

// showJob shows one job from its beginning to its end.
func (s *session) showJob(ctx context.Context, id string) {
	k := s.kernel
	out, err := k.server.cfg.Service.Job(ctx, k.ref.Tenant, id, 0)
	if err != nil || out.Job.FinishedAt != nil && out.Job.FinishedAt.Before(k.server.cfg.Now().Add(-replayFor)) {
		return
	}
	w := &work{job: id, early: true, cell: &executeContent{}, message: message{channel: channelShell}}
	if out.Job.Request != nil {
		w.cell.Code = out.Job.Request.Code
	}
	w.header = executeHeader(id, otherSession, out.Job.CreatedAt)
	budget.Keep(ctx, 0)
	s.cell(ctx, w)
}

package worker

import (
	"context"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// deadlineTimeout bounds one telling: an agent that does not answer is told later, and ends at the deadline it knows.
const deadlineTimeout = 5 * time.Second

// deadlines are what the agents were told of the ends of their sandboxes. An agent ends its sandbox some seconds after its
// deadline by itself, so that the promise holds without any worker; so it must learn of every change.
type deadlines struct {
	telling sync.Mutex // one round at a time

	mu   sync.Mutex
	told map[string]time.Time // by sandbox
}

// known reports whether an agent was told of this deadline, by this worker or by the one that made its container.
func (d *deadlines) known(s *farm.Sandbox, made time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	told, ok := d.told[s.ID]
	if !ok {
		told = made
	}
	return told.Sub(s.ExpiresAt).Abs() < time.Second // the label of a container has whole seconds
}

// keep notes what was told, and forgets sandboxes that are not among these.
func (d *deadlines) keep(open []*farm.Sandbox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	told := make(map[string]time.Time, len(open))
	for _, s := range open {
		if at, ok := d.told[s.ID]; ok {
			told[s.ID] = at
		}
	}
	d.told = told
}

// tellDeadline tells a sandbox's agent when its time is up.
func (w *Worker) tellDeadline(ctx context.Context, s *farm.Sandbox) error {
	ctx, done := context.WithTimeout(ctx, deadlineTimeout)
	defer done()
	c, err := w.link(ctx, s)
	if err == nil {
		err = c.SetDeadline(ctx, s.ExpiresAt.Sub(w.now()))
	}
	if err != nil {
		return err
	}
	w.ends.mu.Lock()
	defer w.ends.mu.Unlock()
	if w.ends.told == nil {
		w.ends.told = map[string]time.Time{}
	}
	w.ends.told[s.ID] = s.ExpiresAt
	return nil
}

// tellDeadlines tells the agents of sandboxes here whose deadline was changed since they were told. It does not wait.
func (w *Worker) tellDeadlines(here []*farm.Sandbox, containers []engine.Container) {
	made := make(map[string]time.Time, len(containers))
	for _, c := range containers {
		made[c.SandboxID] = c.Deadline
	}
	w.ends.keep(here)
	var news []*farm.Sandbox
	for _, s := range here {
		if !w.ends.known(s, made[s.ID]) && s.State.Accepts() {
			news = append(news, s)
		}
	}
	if len(news) == 0 || !w.ends.telling.TryLock() {
		return
	}
	w.background.Go(func() {
		defer w.ends.telling.Unlock()
		for _, s := range news {
			if err := w.tellDeadline(w.base, s); err != nil && w.base.Err() == nil {
				w.log.DebugContext(w.base, "agent does not know its new deadline yet", "sandbox_id", s.ID, "error", err)
			}
		}
	})
}

// followPatch tells a sandbox's agent of its new deadline at once, if the sandbox is here.
func (w *Worker) followPatch(r farm.Ref) {
	s, err := w.store.Sandbox(w.base, r)
	if err != nil || s.Node != w.node || s.State != farm.SandboxReady && s.State != farm.SandboxBusy {
		return // the reconciler looks again
	}
	if err := w.tellDeadline(w.base, s); err != nil && w.base.Err() == nil {
		w.log.DebugContext(w.base, "agent does not know its new deadline yet", "sandbox_id", s.ID, "error", err)
	}
}

// overdue reports whether a sandbox that is gone was past its deadline: then its agent has ended it, and it is expired, not
// lost. What is left of it is the reconciler's to remove.
func (w *Worker) overdue(ctx context.Context, s *farm.Sandbox) bool {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer done()
	now, err := w.store.Sandbox(ctx, ref(s))
	if err != nil || w.now().Before(now.ExpiresAt) {
		return false
	}
	_, err = w.store.MoveSandbox(ctx, store.Move{Ref: ref(s), To: farm.SandboxClosing, Reason: "Its time was up.", Expired: true})
	return err == nil
}

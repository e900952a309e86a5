package scheduler

import (
	"context"
	"time"
)

const (
	// stepTimeout bounds one step, so that a server that hangs does not block a loop forever.
	stepTimeout = time.Minute
	// unstageEvery is how often the loop looks for staged objects that were never fetched: there are few, and they are days old.
	unstageEvery = time.Hour
	// rulesEvery is how often the bucket's rules are checked, since an operator may change them.
	rulesEvery = 5 * time.Minute
	// storedEvery is how often what tenants store is compared with the truth, and storedFor how long one comparison of the bucket takes at most;
	// the next one continues from there.
	storedEvery = time.Hour
	storedFor   = stepTimeout / 2
	// memoryEvery is how often the memory of Redis is read: a tenant that runs jobs as fast as it can fills a MiB in less.
	memoryEvery = time.Second
)

// Names of the loops in logs and metrics.
const (
	loopLead    = "lead"
	loopExpire  = "expire"
	loopSweep   = "sweep"
	loopRetain  = "retain"
	loopUnstage = "unstage"
	loopTrim    = "trim"
	loopRules   = "rules"
	loopPool    = "pool"
	loopQuotas  = "quotas"
	loopStored  = "stored"
	loopNodes   = "nodes"
	loopDrain   = "drain"
	loopMemory  = "memory"
)

func loopNames() []string {
	return []string{loopLead, loopExpire, loopSweep, loopRetain, loopUnstage, loopTrim, loopRules, loopPool, loopQuotas, loopStored, loopNodes, loopDrain, loopMemory}
}

// loop is a step that is repeated. Each loop has a goroutine of its own, so a slow one does not delay the others.
type loop struct {
	name   string
	every  time.Duration // from start to start, at most
	always bool          // also while this scheduler does not lead
	step   func(context.Context) error
}

func (s *Scheduler) loops() []loop {
	loops := []loop{
		{name: loopLead, every: leaseTTL / 4, always: true, step: s.lead},
		{name: loopExpire, every: s.cfg.ExpireEvery, step: s.expire},
		{name: loopSweep, every: s.cfg.SweepEvery, step: s.sweep},
		{name: loopRetain, every: s.cfg.RetainEvery, step: s.retain},
		{name: loopUnstage, every: unstageEvery, step: s.unstage},
		{name: loopTrim, every: s.cfg.TrimEvery, step: s.trim},
		{name: loopRules, every: rulesEvery, step: s.rules},
		{name: loopStored, every: storedEvery, step: s.compareStored},
		{name: loopMemory, every: memoryEvery, step: s.forget},
	}
	if s.deps.Pool != nil {
		loops = append(loops, loop{name: loopPool, every: s.cfg.PoolEvery, step: s.checkPool})
	}
	if s.deps.Nodes != nil {
		loops = append(loops, loop{name: loopNodes, every: s.nodesEvery(), step: s.checkNodes})
	}
	if s.deps.Drains != nil {
		loops = append(loops, loop{name: loopDrain, every: s.cfg.SweepEvery, step: s.drain})
	}
	if s.deps.Quotas != nil {
		loops = append(loops, loop{name: loopQuotas, every: s.cfg.TrimEvery, step: s.checkQuotas})
	}
	return loops
}

// run repeats the step of a loop until ctx ends: at once, when this scheduler becomes the leader, and after each interval less its jitter.
func (s *Scheduler) run(ctx context.Context, l loop) {
	for {
		next, gained := time.NewTimer(s.pause(l)), s.gains()
		if l.always {
			gained = nil
		}
		if l.always || s.leading() {
			s.once(ctx, l)
		}
		select {
		case <-ctx.Done():
			next.Stop()
			return
		case <-gained:
			next.Stop()
		case <-next.C:
		}
	}
}

// pause is the loop's interval less its jitter, so that schedulers and loops that were started together drift apart.
func (s *Scheduler) pause(l loop) time.Duration {
	return l.every - time.Duration(float64(l.every)*s.cfg.Jitter*s.deps.Random())
}

func (s *Scheduler) once(ctx context.Context, l loop) {
	inner, done := context.WithTimeout(ctx, stepTimeout)
	defer done()
	began := time.Now()
	err := l.step(inner)
	if ctx.Err() != nil { // it was stopped: not an error of the step
		return
	}
	s.seen.ran(l.name, began, time.Now(), err)
	if err != nil {
		s.log.WarnContext(ctx, "periodic step failed; it will be retried", "loop", l.name, "error", err)
	}
}

package worker

import (
	"context"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// silence is what is known of an engine that does not answer.
type silence struct {
	mu    sync.Mutex
	since time.Time // zero: it answers
	told  bool      // its sandboxes are told lost
}

// note takes a look at the engine, and reports whether its sandboxes are to be told lost now.
func (s *silence) note(up bool, now time.Time, patience time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case up:
		s.since, s.told = time.Time{}, false
	case s.since.IsZero():
		s.since = now
	case !s.told && now.Sub(s.since) >= patience:
		s.told = true
		return true
	}
	return false
}

// lasts is for how long the engine has been silent.
func (s *silence) lasts(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		return 0
	}
	return now.Sub(s.since)
}

// again has the sandboxes told lost by the next look, because not all of them were.
func (s *silence) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = false
}

// engineIs follows a look at the engine. While it does not answer no creates are taken and the node counts as one without
// room; when that lasts, its sandboxes are told lost, so that their owners do not wait for it, and what is being started goes
// on elsewhere.
func (w *Worker) engineIs(ctx context.Context, up bool) error {
	w.room.mu.Lock()
	w.room.down = !up
	w.room.mu.Unlock()
	if w.silent.note(up, w.now(), w.cfg.EnginePatience) {
		w.background.Go(func() {
			if err := w.giveUpNode(w.base); err != nil && w.base.Err() == nil { //nolint:contextcheck // it outlives the heartbeat
				w.log.WarnContext(w.base, "not all sandboxes of the silent engine are told lost; they are looked at again", "error", err)
				w.silent.again()
			}
		})
	}
	if up {
		return w.lookAtRooms(ctx)
	}
	nodes, err := w.store.ReportCapacity(ctx, w.node, farm.Capacity{})
	w.stopStarts(nodes)
	return err
}

// giveUpNode tells every open sandbox of this node lost that somebody has. One that is being made has its creation to move it:
// see sendElsewhere. The engine is not asked: what is left on it is removed when it answers again.
func (w *Worker) giveUpNode(ctx context.Context) error {
	return w.eachOpen(ctx, func(s *farm.Sandbox) error {
		if s.Node != w.node {
			return nil
		}
		if s.State == farm.SandboxQueued || s.State == farm.SandboxStarting {
			if making, err := w.inWork(ctx, s); err != nil || making {
				return err
			}
		}
		w.tellLost(ctx, s, "", "the container engine of its node does not answer")
		return nil
	})
}

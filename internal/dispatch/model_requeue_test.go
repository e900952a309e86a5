//go:build integration

package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// requeue gives a running job back, as a worker does that has no room for it, that stops, or whose engine is dead.
func (w *world) requeue(t *rapid.T) {
	running := slices.DeleteFunc(w.now.jobIDs(), func(id string) bool {
		return w.now.Jobs[id].State != farm.JobRunning || w.now.Jobs[id].Worker == "none"
	})
	id := pick(t, "job", running)
	if id == "" {
		return
	}
	j := w.now.Jobs[id]
	attempt := j.Attempt - rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "attempts ago")
	switch rapid.IntRange(0, 2).Draw(t, "why") {
	case 0:
		w.step(fmt.Sprintf("takeover of %s offered under attempt %d", id, attempt), w.takeoverRule(id, attempt), func(ctx context.Context) error {
			return w.OfferTakeover(ctx, w.ref(id), attempt)
		})
	case 1:
		w.step(fmt.Sprintf("requeue of %s under attempt %d", id, attempt), w.requeueRule(id, attempt), func(ctx context.Context) error {
			return w.Requeue(ctx, w.ref(id), attempt)
		})
	case 2:
		if j.creates() {
			w.call("unassign "+id, func(ctx context.Context) error {
				if err := w.store.UnassignNode(ctx, w.ref(id), attempt, farm.QueueCPU); err != nil {
					return nil
				}
				if err := w.Requeue(ctx, w.ref(id), attempt); !errors.Is(err, store.ErrCanceled) {
					return err
				}
				return nil
			})
		}
	}
}

func (w *world) takeoverRule(id string, attempt int) func(*steps) error {
	return func(s *steps) error {
		if j := s.last().Jobs[id]; j.State != farm.JobRunning || j.Attempt != attempt {
			return store.ErrFenced
		}
		if j := s.next().Jobs[id]; j.Worker != "none" {
			j.Worker = "none"
			j.Uncounted++
		}
		return nil
	}
}

func (w *world) requeueRule(id string, attempt int) func(*steps) error {
	return func(s *steps) error {
		j := s.last().Jobs[id]
		switch {
		case j.State != farm.JobRunning || j.Attempt != attempt:
			return store.ErrFenced
		case j.Cancel:
			return store.ErrCanceled
		}
		r := s.next()
		j = r.Jobs[id]
		if b := r.Boxes[j.Box]; b.State == farm.SandboxBusy && j.waits() {
			b.State = farm.SandboxReady
		}
		j.State, j.Worker = farm.JobQueued, ""
		j.Uncounted++
		return nil
	}
}

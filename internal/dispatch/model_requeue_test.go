//go:build integration

package dispatch_test

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// requeue gives a running job back, as a worker does that has no room for it, that stops, or whose engine or node is dead.
func (w *world) requeue(t *rapid.T) {
	running := slices.DeleteFunc(w.now.jobIDs(), func(id string) bool {
		return w.now.Jobs[id].State != farm.JobRunning || w.now.Jobs[id].Worker == "none"
	})
	id := pick(t, "job", running)
	if id == "" {
		return
	}
	j := w.now.Jobs[id]
	how := store.Requeue{
		Attempt:   j.Attempt - rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "attempts ago"),
		Elsewhere: j.creates() && rapid.Bool().Draw(t, "elsewhere"),
		Crashed:   rapid.Bool().Draw(t, "its worker died"),
	}
	how.Begun = !how.Elsewhere && rapid.Bool().Draw(t, "it goes on")
	w.step(fmt.Sprintf("requeue of %s: %+v", id, how), w.requeueRule(id, how), func(ctx context.Context) error {
		return w.Requeue(ctx, w.ref(id), how)
	})
}

// requeueRule predicts store.Requeue of a running job.
func (w *world) requeueRule(id string, how store.Requeue) func(*steps) error {
	return func(s *steps) error {
		j := s.last().Jobs[id]
		if j.State != farm.JobRunning || j.Attempt != how.Attempt {
			return store.ErrFenced
		}
		b := s.last().Boxes[j.Box]
		if how.Elsewhere && b.State != farm.SandboxQueued && b.State != farm.SandboxStarting {
			return store.ErrMove
		}
		r := s.next()
		j, b = r.Jobs[id], r.Boxes[j.Box]
		if how.Elsewhere {
			if b.State == farm.SandboxStarting || b.Node != "" {
				b.Generation++
			}
			b.State, b.Node = farm.SandboxQueued, ""
		}
		if j.Cancel && !how.Begun {
			return store.ErrCanceled
		}
		if j.Worker != "none" && !how.Crashed {
			j.Uncounted++
		}
		if how.Begun {
			j.Worker = "none"
			return nil
		}
		if how.Elsewhere && strings.HasPrefix(j.Queue, farm.NodeQueue("")) {
			j.Queue = farm.QueueCPU
		}
		if b.State == farm.SandboxBusy && j.waits() {
			b.State = farm.SandboxReady
		}
		j.State, j.Worker = farm.JobQueued, ""
		return nil
	}
}

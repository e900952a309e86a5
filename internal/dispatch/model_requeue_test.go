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

// requeue gives a job back, as a worker does that has no room for it, that stops, or whose engine or node is dead.
func (w *world) requeue(t *rapid.T) {
	active := slices.DeleteFunc(w.now.jobIDs(), func(id string) bool {
		j := w.now.Jobs[id]
		return j.State.Final() || j.Worker == "none" || j.State == farm.JobQueued && !j.creates()
	})
	id := pick(t, "job", active)
	if id == "" {
		return
	}
	j := w.now.Jobs[id]
	how := store.Requeue{
		Attempt:   j.Attempt - rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "attempts ago"),
		Elsewhere: j.creates() && (j.State == farm.JobQueued || rapid.Bool().Draw(t, "elsewhere")),
		Crashed:   rapid.Bool().Draw(t, "its worker died"),
	}
	how.Begun = !how.Elsewhere && rapid.Bool().Draw(t, "it goes on")
	w.step(fmt.Sprintf("requeue of %s: %+v", id, how), w.requeueRule(id, how), func(ctx context.Context) error {
		return w.store.Requeue(ctx, w.ref(id), how)
	})
}

// requeueRule predicts store.Requeue.
func (w *world) requeueRule(id string, how store.Requeue) func(*steps) error {
	return func(s *steps) error {
		j := s.last().Jobs[id]
		if j.State.Final() || j.Attempt != how.Attempt || how.Begun && j.State != farm.JobRunning {
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
		running := j.State == farm.JobRunning
		if j.Cancel && running && !how.Begun {
			return store.ErrCanceled
		}
		if running && j.Worker != "none" && !how.Crashed {
			j.GracefulRequeues++
		}
		if how.Begun {
			j.Worker = "none"
			return nil
		}
		if how.Elsewhere && strings.HasPrefix(j.Queue, farm.NodeQueue("")) {
			j.Queue = farm.QueueCPU
		}
		if !running {
			return nil
		}
		if b.State == farm.SandboxBusy && j.waits() {
			b.State = farm.SandboxReady
		}
		j.State, j.Worker = farm.JobQueued, ""
		return nil
	}
}

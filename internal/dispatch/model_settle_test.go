//go:build integration

package dispatch_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// queues are the queues with tasks.
func (w *world) queues() []string {
	keys, err := w.rdb.Keys(w.t.Context(), "asynq:{*}:pending").Result()
	w.must(err)
	slices.Sort(keys)
	for i, key := range keys {
		keys[i] = strings.TrimSuffix(strings.TrimPrefix(key, "asynq:{"), "}:pending")
	}
	return slices.DeleteFunc(keys, func(queue string) bool { return strings.HasPrefix(queue, "callback") })
}

// pop takes the next task of a queue, and returns the id of its job; "" if the queue is empty.
func (w *world) pop(queue string) string {
	id, err := w.rdb.RPop(w.t.Context(), "asynq:{"+queue+"}:pending").Result()
	if err != nil {
		return ""
	}
	w.must(w.rdb.Del(w.t.Context(), "asynq:{"+queue+"}:t:"+id).Err())
	job, _, _ := strings.Cut(id, ".")
	return job
}

// settle runs the farm without crashes until its queues are empty: then every accepted job has come to its end. The workers so far go on
// with what they have, or are dead.
func (w *world) settle() {
	dead := w.r == nil || rapid.Bool().Draw(w.r, "the workers are dead")
	w.r = nil
	registered, err := w.store.Workers(w.t.Context())
	w.must(err)
	workers := freshWorkers
	for _, worker := range registered {
		if dead {
			w.must(w.store.RemoveWorker(w.t.Context(), worker.ID))
			delete(w.running, worker.ID)
		} else {
			workers = append(workers, worker.ID)
		}
	}
	for n := 0; n < 20 && w.unfinished() > 0; n++ {
		for _, worker := range workers {
			w.beat(worker)
			for _, id := range slices.Sorted(maps.Keys(w.running[worker])) {
				w.fulfil(id)
			}
		}
		w.each(func() { w.sweep(nil) })
		for _, queue := range w.queues() {
			for id := w.pop(queue); id != ""; id = w.pop(queue) {
				w.carryOut(id, queue)
			}
		}
	}
	w.each(func() {
		for _, id := range w.unfinishedJobs() {
			w.t.Fatalf("%s never ends: %+v in sandbox %+v", id, *w.now.Jobs[id], w.now.Boxes[w.now.Jobs[id].Box])
		}
		w.repair(nil)
	})
}

// unfinished counts the unfinished jobs of all tenants.
func (w *world) unfinished() (n int) {
	w.each(func() { n += len(w.unfinishedJobs()) })
	return n
}

func (w *world) unfinishedJobs() []string {
	return slices.DeleteFunc(w.now.jobIDs(), func(id string) bool { return w.now.Jobs[id].State.Final() })
}

// freshWorkers are those of settle.
var freshWorkers = []string{"wrk_y", "wrk_z"}

// carryOut does what a worker does with a task.
func (w *world) carryOut(id, queue string) {
	worker := "wrk_y"
	if queue == farm.NodeQueue("n2") {
		worker = "wrk_z"
	}
	w.turn(id)
	j := w.now.Jobs[id]
	if j == nil {
		w.t.Fatalf("queue %s has a task of %s, which does not exist", queue, id)
	}
	if rule := w.claimRule(id, worker, w.alive); rule(&steps{w.now}) != nil {
		return // another task of the job was first
	}
	w.claimBy(id, worker)
	w.fulfil(id)
}

// fulfil takes a running job to its end.
func (w *world) fulfil(id string) {
	w.turn(id)
	j := w.now.Jobs[id]
	if j == nil { // Redis was restored from a snapshot that is older than the job
		if err := w.Finish(w.t.Context(), store.Finish{Ref: w.ref(id), Attempt: 1, State: farm.JobCompleted}); farm.CodeOf(err) != farm.CodeNotFound {
			w.t.Fatalf("end of %s, which Redis has lost: %v", id, err)
		}
		return
	}
	box := w.now.Boxes[j.Box]
	switch {
	case j.State != farm.JobRunning:
	case !box.State.Accepts() && j.Kind != farm.KindClose:
		w.end(id, w.now.Jobs[id].Attempt, farm.JobFailed)
	case j.creates():
		for range 2 {
			if state := w.now.Boxes[j.Box].State; state == farm.SandboxQueued || state == farm.SandboxStarting {
				w.advance(id)
			}
		}
		w.end(id, w.now.Jobs[id].Attempt, farm.JobCompleted)
	case j.Kind == farm.KindClose:
		w.call("close of "+box.ID, func(ctx context.Context) error {
			for _, other := range slices.Backward(w.now.unfinished(box.ID)) {
				if other != id {
					if err := w.Force(ctx, w.ref(other), farm.JobCanceled, nil); err != nil {
						return err
					}
				}
			}
			_, err := w.store.MoveSandbox(ctx, store.Move{Ref: w.ref(box.ID), To: farm.SandboxClosed})
			if box.State.Final() {
				return nil
			}
			return err
		})
		w.end(id, w.now.Jobs[id].Attempt, farm.JobCompleted)
	default:
		w.end(id, w.now.Jobs[id].Attempt, farm.JobCompleted)
	}
}

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

//go:build integration

package dispatch_test

import (
	"context"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

func (w *world) kill(t *rapid.T) {
	worker := rapid.SampledFrom(modelWorkers).Draw(t, "worker")
	w.call("end of "+worker, func(ctx context.Context) error { return w.store.RemoveWorker(ctx, worker) })
	delete(w.running, worker)
}

func (w *world) revive(t *rapid.T) {
	w.beat(rapid.SampledFrom(modelWorkers).Draw(t, "worker"))
}

// beat sends a heartbeat that does not expire: a slow machine must not change what is predicted.
func (w *world) beat(worker string) {
	for id, attempt := range w.jobsOf(worker) {
		if j := w.now.Jobs[id]; j != nil && (j.State != farm.JobRunning || j.Attempt != attempt) { // its writes are fenced
			delete(w.running[worker], id)
		}
	}
	w.beats++
	w.call("heartbeat of "+worker, func(ctx context.Context) error {
		return w.store.Heartbeat(ctx, farm.Worker{ID: worker, Node: nodeOf(worker), Beat: w.beats, Jobs: maps.Clone(w.running[worker])})
	})
	w.must(w.rdb.Persist(w.t.Context(), "sf:worker:"+worker).Err())
}

func (w *world) sweep(*rapid.T) {
	w.call("sweep", func(ctx context.Context) error {
		_, err := w.Sweep(ctx, w.tenant)
		return err
	})
}

// write writes what a worker writes while a job runs.
func (w *world) write(t *rapid.T) {
	id := pick(t, "job", w.now.jobIDs())
	if id == "" {
		return
	}
	j := w.now.Jobs[id]
	attempt := j.Attempt - rapid.SampledFrom([]int{0, 0, 1}).Draw(t, "attempts ago")
	w.step("checkpoint of "+id, w.writeRule(id, attempt), func(ctx context.Context) error {
		return w.store.Checkpoint(ctx, w.ref(id), attempt, []byte("{}"))
	})
	w.step("reservation of "+id, w.writeRule(id, attempt), func(ctx context.Context) error {
		_, _, err := w.store.ReserveStored(ctx, w.ref(id), attempt, 1000)
		return err
	})
}

// writeRule predicts a write of a job's worker, which changes no record.
func (w *world) writeRule(id string, attempt int) func(*steps) error {
	return func(s *steps) error {
		if j := s.last().Jobs[id]; j.State != farm.JobRunning || j.Attempt != attempt {
			return store.ErrFenced
		}
		return nil
	}
}

// repair compares all counts with the records: nothing may have drifted, and nothing may be trimmed. What is stored is compared record by
// record, so that other steps come between.
func (w *world) repair(*rapid.T) {
	ctx := w.t.Context()
	drift, err := w.store.RepairUse(ctx, w.tenant)
	if err != nil || len(drift) > 0 {
		w.t.Fatalf("what counts against quotas has drifted by %v, %v", drift, err)
	}
	stored, _, err := w.store.RepairStored(ctx, w.tenant, 1, false)
	if err != nil || stored != (store.StoredDrift{}) {
		w.t.Fatalf("what is stored has drifted by %+v, %v", stored, err)
	}
	trimmed, err := w.store.Trim(ctx, w.tenant)
	if err != nil || trimmed != (store.Trimmed{}) {
		w.t.Fatalf("trimmed %+v, %v", trimmed, err)
	}
}

// prolong changes deadlines.
func (w *world) prolong(t *rapid.T) {
	box := pick(t, "sandbox", slices.DeleteFunc(w.now.boxIDs(), func(id string) bool { return !w.now.Boxes[id].State.Accepts() }))
	if box == "" {
		return
	}
	ttl, idle := rapid.IntRange(10, 9000).Draw(t, "ttl"), rapid.IntRange(0, 900).Draw(t, "idle")
	w.call("update of "+box, func(ctx context.Context) error {
		_, err := w.store.UpdateSandbox(ctx, w.ref(box), store.SandboxPatch{TTLSeconds: &ttl, IdleSeconds: &idle})
		return err
	})
}

// loseTask takes a task out of its queue whose worker dies at once.
func (w *world) loseTask(t *rapid.T) {
	if queue := pick(t, "queue", w.queues()); queue != "" {
		w.pop(queue)
	}
}

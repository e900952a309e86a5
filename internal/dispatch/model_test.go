//go:build integration

package dispatch_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/redistest"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
)

var quiet = slog.New(slog.DiscardHandler)

// What TestModel does unless the flags of rapid say otherwise: 100 runs of about 100 steps, always the same ones. -rapid.seed=0 makes others.
var modelFlags = map[string]string{"rapid.checks": "100", "rapid.steps": "100", "rapid.seed": "13", "rapid.nofailfile": "true"}

// TestModel makes random calls, of which some crash in their middle, on the real store, queue and dispatcher. After each it compares what is
// stored with a model. At the end of each run every accepted job must come to its end.
func TestModel(t *testing.T) {
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, value := range modelFlags {
		if given[name] {
			continue
		}
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	server := redistest.New(t)
	crash := &crasher{}
	rdb, crashing := server.Client(t), server.Client(t)
	crashing.AddHook(crash)
	steps, crashes, settled := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rdb, crashing, crash)
		actions := w.actions()
		for name, action := range actions {
			actions[name] = func(t *rapid.T) {
				w.t, w.r = t, t
				steps++
				action(t)
			}
		}
		t.Repeat(actions)
		w.t = t
		w.settle()
		crashes += w.crashes
		settled += len(w.now.Jobs)
	})
	t.Logf("%d steps, %d crashes, %d jobs came to their end", steps, crashes, settled)
}

// actions are the steps of the model, by name. One that does not apply does nothing. Those that take jobs forward come more often.
func (w *world) actions() map[string]func(*rapid.T) {
	all := map[string]func(*rapid.T){
		"repeat": w.repeat, "claim": w.claim, "finish": w.finish, "force": w.force, "cancel": w.cancel, "leave": w.leave,
		"requeue": w.requeue, "close": w.close, "lose": w.lose, "kill": w.kill, "revive": w.revive, "sweep": w.sweep, "write": w.write,
		"repair": w.repair, "prolong": w.prolong, "lose a task": w.loseTask,
	}
	for name, action := range map[string]func(*rapid.T){"create": w.create, "work": w.work, "claim the next": w.claimNext, "start": w.startBox, "complete": w.complete} {
		for n := range 4 {
			all[fmt.Sprint(name, " ", n)] = action
		}
	}
	return all
}

var (
	modelWorkers = []string{"wrk_a", "wrk_b", "wrk_c"}
	modelNodes   = map[string]string{"wrk_a": "n1", "wrk_b": "n1", "wrk_c": "n2", "wrk_y": "n1", "wrk_z": "n2"}
)

// nodeOf is the node of a worker; "" if it is none of ours.
func nodeOf(worker string) string { return modelNodes[worker] }

// pick draws one of the ids; "" if there are none.
func pick(t *rapid.T, what string, ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	return rapid.SampledFrom(ids).Draw(t, what)
}

func (w *world) ref(id string) farm.Ref { return farm.Ref{Tenant: w.tenant, ID: id} }

// submit submits a job, and remembers it for repeat.
func (w *world) submit(a store.Accept) {
	w.step(fmt.Sprintf("submit %s %s in %s", a.Job.Kind, a.Job.ID, a.Job.SandboxID), w.acceptRule(a), func(ctx context.Context) (err error) {
		_, err = w.Submit(ctx, a)
		return err
	})
	w.accepted = append(w.accepted, a)
}

func (w *world) create(t *rapid.T) {
	a := storetest.Create()
	a.Sandbox.ID, a.Job.ID, a.Job.CreatedAt = w.newID("sbx"), w.newID("job"), w.tick()
	a.Job.SandboxID = a.Sandbox.ID
	a.Sandbox.Spec.Resources = farm.Resources{MemoryMB: 100, CPUs: 0.5}
	a.Sandbox.Spec.IdleSeconds = rapid.SampledFrom([]int{0, 60}).Draw(t, "idle")
	if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
		a.Job.Kind = farm.KindRun
	}
	if rapid.IntRange(0, 3).Draw(t, "from the pool") == 0 {
		a.Sandbox.Node, a.Sandbox.Pooled, a.Job.Queue = "n1", true, farm.NodeQueue("n1")
	}
	w.submit(a)
}

func (w *world) work(t *rapid.T) {
	boxes := w.now.boxIDs()
	if rapid.IntRange(0, 9).Draw(t, "ended ones too") > 0 {
		boxes = slices.DeleteFunc(boxes, func(id string) bool { return !w.now.Boxes[id].State.Accepts() })
	}
	box := pick(t, "sandbox", boxes)
	if box == "" {
		w.create(t)
		return
	}
	a := storetest.Execute(box)
	switch rapid.SampledFrom([]string{"execute", "execute", "execute", "background", "install", "read", "interrupt", "close", "callback"}).Draw(t, "kind") {
	case "background":
		a.Job.Kind, a.Request = farm.KindCommand, &farm.Request{Command: &farm.CommandRequest{Commands: []string{"true"}, Background: true}}
	case "install":
		a.Job.Kind, a.Packages = farm.KindInstall, []string{"humanize"}
	case "read":
		a = storetest.Read(box)
	case "interrupt":
		a.Job.Kind, a.Job.Inline = farm.KindInterrupt, true
	case "close":
		a = storetest.CloseJob(box)
	case "callback":
		a.Job.CallbackURL = "https://example.com"
	}
	a.Job.ID, a.Job.CreatedAt = w.newID("job"), w.tick()
	w.submit(a)
}

// repeat makes a call again, as a caller does who got no answer.
func (w *world) repeat(t *rapid.T) {
	if len(w.accepted) > 0 {
		w.submit(rapid.SampledFrom(w.accepted).Draw(t, "call"))
	}
}

func (w *world) claim(t *rapid.T) {
	if id := pick(t, "job", w.now.jobIDs()); id != "" {
		w.claimBy(id, rapid.SampledFrom(modelWorkers).Draw(t, "worker"))
	}
}

// claimNext claims a job that can be claimed.
func (w *world) claimNext(t *rapid.T) {
	runnable := slices.DeleteFunc(w.now.jobIDs(), func(id string) bool {
		j := w.now.Jobs[id]
		return j.State != farm.JobQueued || !j.Inline && !w.now.head(id)
	})
	if id := pick(t, "job", runnable); id != "" {
		w.claimBy(id, rapid.SampledFrom(modelWorkers).Draw(t, "worker"))
	}
}

func (w *world) claimBy(id, worker string) {
	claimed := 0
	w.step("claim of "+id+" by "+worker, w.claimRule(id, worker, w.alive), func(ctx context.Context) error {
		c, err := w.store.Claim(ctx, w.ref(id), worker)
		if err == nil {
			claimed = c.Job.Attempt // if the answer was lost, the worker does not know of its job
			w.EnqueueNext(ctx, c.Unparked)
		}
		return err
	})
	if claimed > 0 {
		w.holds(worker)[id] = claimed
	}
}

// holds are the jobs that a worker has, with their attempts.
func (w *world) holds(worker string) map[string]int {
	if w.held[worker] == nil {
		w.held[worker] = map[string]int{}
	}
	return w.held[worker]
}

func (w *world) alive(worker string) bool {
	n, err := w.rdb.Exists(w.t.Context(), "sf:worker:"+worker).Result()
	w.must(err)
	return n == 1
}

// startBox moves a sandbox forward, as the worker does that creates it.
func (w *world) startBox(t *rapid.T) {
	creating := slices.DeleteFunc(w.now.jobIDs(), func(id string) bool { j := w.now.Jobs[id]; return !j.creates() || j.State != farm.JobRunning })
	if id := pick(t, "job", creating); id != "" {
		w.advance(id)
	}
}

func (w *world) advance(id string) {
	j := w.now.Jobs[id]
	m := store.Move{Ref: w.ref(j.Box), To: farm.SandboxReady, Node: nodeOf(j.Worker), Generation: w.now.Boxes[j.Box].Generation, Job: id, Attempt: j.Attempt}
	if w.now.Boxes[j.Box].State == farm.SandboxQueued {
		m.To = farm.SandboxStarting
	}
	if m.Node == "" { // offered for takeover
		return
	}
	w.step(fmt.Sprintf("move of %s to %s", j.Box, m.To), w.moveRule(m), func(ctx context.Context) error {
		_, err := w.store.MoveSandbox(ctx, m)
		return err
	})
}

func (w *world) finish(t *rapid.T) {
	id := pick(t, "job", w.now.jobIDs())
	if id == "" {
		return
	}
	state := rapid.SampledFrom([]farm.JobState{farm.JobCompleted, farm.JobFailed, farm.JobTimedOut, farm.JobCanceled, farm.JobLost}).Draw(t, "state")
	w.end(id, w.now.Jobs[id].Attempt-rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "attempts ago"), state)
}

// complete completes a job that runs.
func (w *world) complete(t *rapid.T) {
	running := slices.DeleteFunc(w.now.jobIDs(), func(id string) bool { return w.now.Jobs[id].State != farm.JobRunning })
	if id := pick(t, "job", running); id != "" {
		w.end(id, w.now.Jobs[id].Attempt, farm.JobCompleted)
	}
}

// end ends a job as its worker does. A create that succeeds has a ready sandbox, one that does not ends its sandbox before.
func (w *world) end(id string, attempt int, state farm.JobState) {
	j := w.now.Jobs[id]
	box := w.now.Boxes[j.Box]
	current := j.State == farm.JobRunning && attempt == j.Attempt
	if j.creates() && current && box.State.Accepts() && box.State != farm.SandboxReady && box.State != farm.SandboxBusy {
		if state == farm.JobCompleted {
			return
		}
		if box.State == farm.SandboxStarting {
			m := store.Move{Ref: w.ref(box.ID), To: farm.SandboxFailed, Job: id, Attempt: attempt}
			w.step("failure of "+box.ID, w.moveRule(m), func(ctx context.Context) error {
				_, err := w.store.MoveSandbox(ctx, m)
				return err
			})
		}
	}
	w.step(fmt.Sprintf("end of %s as %s under attempt %d", id, state, attempt), w.endRule("finish", id, attempt, state), func(ctx context.Context) error {
		return w.Finish(ctx, store.Finish{Ref: w.ref(id), Attempt: attempt, State: state, LastEvent: 3})
	})
}

func (w *world) force(t *rapid.T) {
	if id := pick(t, "job", w.now.jobIDs()); id != "" && rapid.IntRange(0, 2).Draw(t, "do it") == 0 {
		w.step("force of "+id, w.endRule("force", id, 0, farm.JobLost), func(ctx context.Context) error {
			return w.Force(ctx, w.ref(id), farm.JobLost, nil)
		})
	}
}

func (w *world) cancel(t *rapid.T) {
	if id := pick(t, "job", w.now.jobIDs()); id != "" {
		w.step("cancel of "+id, w.endRule("cancel", id, 0, farm.JobCanceled), func(ctx context.Context) error {
			_, err := w.Cancel(ctx, w.ref(id))
			return err
		})
	}
}

func (w *world) leave(t *rapid.T) {
	commands := slices.DeleteFunc(w.now.jobIDs(), func(id string) bool { return w.now.Jobs[id].Kind != farm.KindCommand })
	if id := pick(t, "job", commands); id != "" {
		attempt := w.now.Jobs[id].Attempt
		w.step("leave of "+id, w.leaveRule(id, attempt), func(ctx context.Context) error { return w.LeaveFIFO(ctx, w.ref(id), attempt) })
	}
}

// close ends a sandbox whose record says closing, as the worker of its close job does; lose one whose container is gone.
func (w *world) close(t *rapid.T) { w.endBox(t, farm.SandboxClosed, farm.SandboxClosing) }

func (w *world) lose(t *rapid.T) {
	if rapid.IntRange(0, 4).Draw(t, "do it") == 0 {
		w.endBox(t, farm.SandboxLost, farm.SandboxStarting, farm.SandboxReady, farm.SandboxBusy, farm.SandboxClosing)
	}
}

func (w *world) endBox(t *rapid.T, to farm.SandboxState, from ...farm.SandboxState) {
	box := pick(t, "sandbox", slices.DeleteFunc(w.now.boxIDs(), func(id string) bool { return !slices.Contains(from, w.now.Boxes[id].State) }))
	if box == "" {
		return
	}
	m := store.Move{Ref: w.ref(box), To: to}
	w.step(fmt.Sprintf("end of %s as %s", box, to), w.moveRule(m), func(ctx context.Context) error {
		_, err := w.store.MoveSandbox(ctx, m)
		return err
	})
}

func (w *world) kill(t *rapid.T) {
	worker := rapid.SampledFrom(modelWorkers).Draw(t, "worker")
	w.call("end of "+worker, func(ctx context.Context) error { return w.store.RemoveWorker(ctx, worker) })
	delete(w.held, worker)
}

func (w *world) revive(t *rapid.T) {
	w.beat(rapid.SampledFrom(modelWorkers).Draw(t, "worker"))
}

// beat sends a heartbeat that does not expire: a slow machine must not change what is predicted.
func (w *world) beat(worker string) {
	for id, attempt := range w.holds(worker) {
		if j := w.now.Jobs[id]; j.State != farm.JobRunning || j.Attempt != attempt { // its writes are fenced
			delete(w.held[worker], id)
		}
	}
	w.beats++
	w.call("heartbeat of "+worker, func(ctx context.Context) error {
		return w.store.Heartbeat(ctx, farm.Worker{ID: worker, Node: nodeOf(worker), Beat: w.beats, Holds: maps.Clone(w.held[worker])})
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

// repair compares all counts with the records: nothing may have drifted, and nothing may be trimmed.
func (w *world) repair(*rapid.T) {
	ctx := w.t.Context()
	drift, err := w.store.RepairUse(ctx, w.tenant)
	if err != nil || len(drift) > 0 {
		w.t.Fatalf("what counts against quotas has drifted by %v, %v", drift, err)
	}
	stored, checked, err := w.store.RepairStored(ctx, w.tenant)
	if err != nil || !checked || stored != (store.Stored{}) {
		w.t.Fatalf("what is stored has drifted by %+v, checked: %v, %v", stored, checked, err)
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
			delete(w.held, worker.ID)
		} else {
			workers = append(workers, worker.ID)
		}
	}
	for n := 0; n < 20 && len(w.unfinishedJobs()) > 0; n++ {
		for _, worker := range workers {
			w.beat(worker)
			for _, id := range slices.Sorted(maps.Keys(w.held[worker])) {
				w.fulfil(id)
			}
		}
		w.sweep(nil)
		for _, queue := range w.queues() {
			for id := w.pop(queue); id != ""; id = w.pop(queue) {
				w.carryOut(id, queue)
			}
		}
	}
	for _, id := range w.unfinishedJobs() {
		w.t.Fatalf("%s never ends: %+v in sandbox %+v", id, *w.now.Jobs[id], w.now.Boxes[w.now.Jobs[id].Box])
	}
	w.repair(nil)
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
	j := w.now.Jobs[id]
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

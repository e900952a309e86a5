//go:build integration

package dispatch_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

var quiet = slog.New(slog.DiscardHandler)

// TestModel makes random calls, of which some crash in their middle, on the real store, queue and dispatcher. After each it compares what is
// stored with a model. At the end of each run every accepted job must come to its end.
func TestModel(t *testing.T) {
	testbed.Runs(t, 120, 100) // more than 10,000 steps
	server := testbed.NewRedis(t)
	crash := &testbed.Crasher{}
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
		w.each(func() { settled += len(w.now.Jobs) })
	})
	t.Logf("%d steps, %d crashes, %d jobs came to their end", steps, crashes, settled)
}

// actions are the steps of the model, by name. One that does not apply does nothing. Those that take jobs forward come more often.
func (w *world) actions() map[string]func(*rapid.T) {
	all := map[string]func(*rapid.T){
		"repeat": w.repeat, "claim": w.claim, "finish": w.finish, "force": w.force, "cancel": w.cancel, "leave FIFO": w.leaveFIFO,
		"requeue": w.requeue, "close": w.close, "lose": w.lose, "kill": w.kill, "revive": w.revive, "sweep": w.sweep, "write": w.write,
		"repair": w.repair, "prolong": w.prolong, "lose a task": w.loseTask,
		"end a node": w.endNode, "save": w.save, "restore": w.restore, "expire": w.expire, "other tenant": w.otherTenant,
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
	a.Job.Tenant = w.tenant
	if a.Sandbox != nil {
		a.Sandbox.Tenant = w.tenant
	}
	w.step(fmt.Sprintf("submit %s %s in %s", a.Job.Kind, a.Job.ID, a.Job.SandboxID), w.acceptRule(a), func(ctx context.Context) (err error) {
		_, err = w.Submit(ctx, a)
		return err
	})
	w.accepted = append(w.accepted, a)
	w.owner[a.Job.ID] = w.tenant
}

func (w *world) create(t *rapid.T) {
	a := storetest.Create()
	a.Sandbox.ID, a.Job.ID, a.Job.CreatedAt = w.newID("sbx"), w.newID("job"), w.tick()
	a.Job.SandboxID = a.Sandbox.ID
	a.Sandbox.Spec.Resources = farm.Resources{MemoryMB: modelMemory, CPUs: 0.5}
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
	switch rapid.SampledFrom([]string{"execute", "execute", "execute", "background", "install", "read", "interrupt", "restart", "close", "callback"}).Draw(t, "kind") {
	case "background":
		a.Job.Kind, a.Request = farm.KindCommand, &farm.Request{Command: &farm.CommandRequest{Commands: []string{"true"}, Background: true}}
	case "install":
		a.Job.Kind, a.Packages = farm.KindInstall, []string{"humanize"}
	case "read":
		a = storetest.Read(box)
	case "interrupt":
		a.Job.Kind, a.Job.Inline = farm.KindInterrupt, true
	case "restart":
		a.Job.Kind, a.Job.Inline = farm.KindRestart, true
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
		return j.State != farm.JobQueued || !w.now.turn(id)
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
		}
		return err
	})
	if claimed > 0 {
		w.jobsOf(worker)[id] = claimed
	}
}

// holds are the jobs that a worker has, with their attempts.
func (w *world) jobsOf(worker string) map[string]int {
	if w.running[worker] == nil {
		w.running[worker] = map[string]int{}
	}
	return w.running[worker]
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

func (w *world) leaveFIFO(t *rapid.T) {
	commands := slices.DeleteFunc(w.now.jobIDs(), func(id string) bool { return w.now.Jobs[id].Kind != farm.KindCommand })
	if id := pick(t, "job", commands); id != "" {
		attempt := w.now.Jobs[id].Attempt
		w.step("leave FIFO of "+id, w.leaveFIFORule(id, attempt), func(ctx context.Context) error { return w.store.LeaveFIFO(ctx, w.ref(id), attempt) })
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

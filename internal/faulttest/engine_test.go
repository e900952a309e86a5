//go:build faults

package faulttest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/faulttest"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// One of two engines dies, or does not answer, while sandboxes are started on it: their creates move to the other engine, or wait for it
// to come back when it is the only one. None is lost, none is created twice, and nothing stays on the engine. Then the engine is killed
// while jobs run in it. The engine belongs to the test.
func TestEngineIsGone(t *testing.T) {
	t.Parallel()
	engine := enginetest.New(t, enginetest.Options{})
	engine.Load("sandfarm/python")
	f := newFarm(t, faulttest.Config{
		Workers: 2, Links: true, Second: strings.TrimPrefix(engine.Host, "unix://"),
		Env: []string{"SANDFARM_WORKER_ENGINE_TIMEOUT=5s", "SANDFARM_WORKER_RECONCILE_EVERY=2s", "SANDFARM_SCHEDULER_NODE_TIMEOUT=15s"},
	})
	e := &engineCase{Farm: f, engine: engine, other: f.Workers()[0], doomed: f.Workers()[1]}
	for range rounds() {
		t.Run("KilledMidCreate", func(t *testing.T) { e.midCreate(t, "engine killed mid-create", engine.Kill, engine.Start) })
		t.Run("PausedMidCreate", func(t *testing.T) { e.midCreate(t, "engine paused mid-create", engine.Pause, engine.Resume) })
		t.Run("KilledWithItsWorker", func(t *testing.T) {
			e.midCreate(t, "engine and worker killed mid-create", func() { engine.Kill(); f.Kill(e.doomed) }, func() { engine.Start(); f.Start(e.doomed) })
		})
		t.Run("OnlyOneKilledMidCreate", func(t *testing.T) {
			f.Term(e.other)
			e.midCreate(t, "the only engine killed mid-create", engine.Kill, engine.Start)
		})
		t.Run("KilledMidRun", func(t *testing.T) { e.midRun(t, "engine killed and started again mid-run", engine.Kill) })
		t.Run("RestartedMidRun", func(t *testing.T) { e.midRun(t, "engine restarted in order mid-run", engine.Stop) })
		t.Run("NodeGone", func(t *testing.T) { e.nodeGone(t, chosen(t, inNodeEnd(), 1)[0]) }) // in each round another point
	}
	f.End()
}

// engineCase is a farm whose last worker has an engine that the test kills.
type engineCase struct {
	*faulttest.Farm
	engine        *enginetest.Daemon
	other, doomed string // workers
}

// midCreate calls harm while sandboxes are started on the engine.
func (e *engineCase) midCreate(t *testing.T, name string, harm, heal func()) {
	c := e.Case(t, name)
	creates := e.startSome(t)
	c.Fault(harm, func() {
		alone := !e.Alive(e.other)
		if alone {
			e.Until(60*time.Second, "the creations wait for their engine", func() bool {
				return !slices.ContainsFunc(creates, func(made wire.Created) bool {
					job, err := e.Job(t.Context(), made.Job.ID)
					return err != nil || job.State == "running"
				})
			})
			heal()
		}
		for _, made := range creates {
			e.Completed("create", made.Job.ID)
		}
		if alone {
			e.Start(e.other)
		} else {
			heal()
		}
		e.AwaitReady()
	})
	for _, made := range creates {
		e.Until(60*time.Second, "a sandbox works or is told lost", func() bool {
			job, err := e.Execute(t.Context(), made.Sandbox.ID, wire.ExecuteRequest{Code: "print('works')"})
			if err == nil {
				job, err = e.Wait(t.Context(), job.ID)
			}
			if err == nil && job.State == "completed" {
				c.Own(made.Sandbox.ID)
				c.Accept(made.Sandbox.ID, faulttest.Run{Lines: 1})
				return true
			}
			box, err := e.Sandbox(t.Context(), made.Sandbox.ID)
			return err == nil && box.State == "lost" // it was ready on the engine, and its owner already had it
		})
	}
	e.Until(60*time.Second, "each sandbox has one container", func() bool {
		all := e.Containers()
		slices.Sort(all)
		return len(slices.Compact(slices.Clone(all))) == len(all)
	})
	c.End()
	e.CloseIdle()
}

// startSome submits creates until some sandboxes are starting on the engine.
func (e *engineCase) startSome(t *testing.T) (creates []wire.Created) {
	t.Helper()
	e.onlyThere(t, func() {
		e.Until(3*time.Minute, "two sandboxes are starting on the engine", func() bool {
			starting, open := 0, false
			for _, made := range creates {
				box, err := e.Sandbox(t.Context(), made.Sandbox.ID)
				open = open || err != nil || box.State == "queued" || box.State == "starting"
				if err == nil && box.State == "starting" && e.Holder(made.Job.ID) == e.doomed {
					starting++
				}
			}
			for range 6 {
				if open {
					break
				}
				made, err := e.CreateSandbox(t.Context(), wire.CreateRequest{})
				testbed.Must(t, err)
				creates = append(creates, made)
			}
			return starting >= 2
		})
	})
	return creates
}

// onlyThere calls do while the other node is drained, so that all new sandboxes are started on the engine: otherwise the first worker to ask takes
// a create, which can be the same one each time.
func (e *engineCase) onlyThere(t *testing.T, do func()) {
	t.Helper()
	if e.Alive(e.other) {
		node := e.Node(e.other)
		e.awaitRoom(t, node, true) // the worker knows of the end of the last drain
		_, err := e.DrainNode(t.Context(), node, wire.DrainRequest{})
		testbed.Must(t, err)
		defer func() {
			if err := e.EndNodeDrain(t.Context(), node); err != nil {
				t.Error(err)
			}
		}()
		e.awaitRoom(t, node, false)
	}
	do()
}

// awaitRoom waits until the worker of a node says that it takes new sandboxes, or none.
func (e *engineCase) awaitRoom(t *testing.T, node string, room bool) {
	t.Helper()
	e.Until(time.Minute, fmt.Sprintf("node %s has room: %t", node, room), func() bool {
		workers, err := e.Farm.Client.Workers(t.Context())
		return err == nil && slices.ContainsFunc(workers, func(w wire.Worker) bool { return w.Node == node && (w.Capacity != wire.Room{}) == room })
	})
}

// midRun ends the engine and all containers while jobs run, and starts it again: each job ends with an error, what was in the engine is
// removed, and new sandboxes can be used.
func (e *engineCase) midRun(t *testing.T, name string, end func()) {
	c := e.Case(t, name)
	boxes := e.boxesThere(t, c, 3)
	c.Forget() // the effects of ended jobs are lost with the engine
	var jobs []*faulttest.Job
	for _, box := range boxes {
		jobs = append(jobs, c.Accept(box, faulttest.Run{Lines: 600, Want: []string{"lost"}}), c.Accept(box, faulttest.Run{Want: []string{"canceled", "lost"}, Never: true}))
		e.AwaitHolder(jobs[len(jobs)-2].ID)
	}
	c.Fault(end, e.engine.Start)
	for _, j := range jobs {
		if end, err := e.Wait(t.Context(), j.ID); err != nil || end.Error == nil || len(end.Error.Message) < 20 {
			t.Errorf("a job whose sandbox was lost with the engine: %v %+v", err, end)
		}
	}
	c.Abandon(boxes...)
	e.boxesThere(t, c, 1)
	c.End()
}

// boxesThere creates n ready sandboxes on the engine for the case.
func (e *engineCase) boxesThere(t *testing.T, c *faulttest.Case, n int) (there []string) {
	t.Helper()
	e.CloseIdle() // they may be on the other engine
	e.onlyThere(t, func() { there = c.Boxes(n) })
	for _, box := range there {
		j := c.Accept(box, faulttest.Run{Lines: 1})
		e.Completed("a job", j.ID)
		if holder := e.Holder(j.ID); holder != e.doomed {
			t.Fatalf("a sandbox that only %s could start is of %q", e.doomed, holder)
		}
	}
	return there
}

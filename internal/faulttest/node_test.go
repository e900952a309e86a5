//go:build faults

package faulttest_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/faulttest"
)

// nodeGone takes a node away, engine and worker, for longer than the farm's timeout: its sandboxes and their jobs are lost, with a sentence
// that says so, what was not ready starts elsewhere, and its queue is gone. Then the node comes back: its old containers are removed, and it
// takes new work. The scheduler that ends the node is killed at a point; the next one goes on.
func (e *engineCase) nodeGone(t *testing.T, p point) {
	c := e.Case(t, "a node gone for ever, then back")
	boxes := e.boxesThere(t, c, 3)
	c.Forget() // the effects of ended jobs are lost with the node
	var jobs []*faulttest.Job
	for n, box := range boxes {
		want := []string{"lost"}
		if n == 2 { // it may be closed before the node is gone
			want = []string{"lost", "canceled"}
		}
		jobs = append(jobs,
			c.Accept(box, faulttest.Run{Lines: 600, Want: want}),
			c.Accept(box, faulttest.Run{Want: []string{"canceled", "lost"}, Never: true}))
		e.AwaitHolder(jobs[len(jobs)-2].ID)
	}
	closing, err := e.Close(t.Context(), boxes[2])
	if err != nil {
		t.Fatal(err)
	}
	node := e.nodeOf(t, boxes[0])
	with := map[string]string{"node_lease": "drop", "hdel": node, "srem": node}[p.call] // else the leader calls it also for others
	creates := e.startSome(t)
	t.Cleanup(func() {
		if t.Failed() {
			e.engine.Resume()
		}
	})
	c.Fault(func() {
		e.engine.Pause() // nothing in the containers notices
		e.Kill(e.doomed)
	}, killLeader(t, e.Farm, p, with, 1))
	for _, made := range creates {
		if end, err := e.Wait(t.Context(), made.Job.ID); err != nil || end.State != "completed" {
			t.Errorf("create: %v %s %+v", err, end.State, end.Error)
		}
	}
	for _, j := range jobs {
		end, err := e.Wait(t.Context(), j.ID)
		if err != nil || end.Error == nil || len(end.Error.Message) < 20 {
			t.Errorf("a job of the node that is gone: %v %+v", err, end)
		}
	}
	if end, err := e.Wait(t.Context(), closing.ID); err != nil || end.State != "completed" {
		t.Errorf("the close of a sandbox of the node that is gone: %v %+v", err, end)
	}
	for _, box := range boxes {
		e.Until(30*time.Second, "the sandbox has ended", func() bool {
			now, err := e.Sandbox(t.Context(), box)
			return err == nil && slices.Contains([]string{"lost", "closed", "expired"}, now.State)
		})
	}
	e.Until(30*time.Second, "the node's queue is gone", func() bool {
		left, err := e.Redis().Keys(t.Context(), "asynq:{node-"+node+"}:*").Result()
		return err == nil && !slices.ContainsFunc(left, func(key string) bool {
			ends, err := e.Redis().TTL(t.Context(), key).Result()
			return err != nil || ends == -1 // the queue's counts of a day end by themselves
		})
	})
	e.engine.Resume()
	e.Start(e.doomed)
	e.AwaitReady()
	e.Until(60*time.Second, "the old containers of the node are removed", func() bool {
		return !slices.ContainsFunc(e.Containers(), func(box string) bool { return slices.Contains(boxes, box) })
	})
	for _, made := range creates {
		c.Own(made.Sandbox.ID)
	}
	c.Abandon(boxes...)
	e.boxesThere(t, c, 1)
	c.End()
}

// nodeOf is the node of a sandbox.
func (e *engineCase) nodeOf(t *testing.T, box string) string {
	t.Helper()
	node, err := e.Redis().HGet(t.Context(), "sf:{default}:sbx:"+box, "node").Result()
	if err != nil || node == "" || strings.ContainsAny(node, "*?[") {
		t.Fatalf("the node of %s: %q, %v", box, node, err)
	}
	return node
}

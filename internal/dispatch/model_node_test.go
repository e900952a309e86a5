//go:build integration

package dispatch_test

import (
	"context"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// endNode loses a node with its workers, and ends what is recorded on it, as the leading scheduler does.
func (w *world) endNode(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "do it") > 0 {
		return
	}
	node := rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "node")
	for _, worker := range modelWorkers {
		if nodeOf(worker) == node {
			w.call("end of "+worker+" with its node", func(ctx context.Context) error { return w.store.RemoveWorker(ctx, worker) })
			delete(w.running, worker)
		}
	}
	before := map[string]*records{}
	w.each(func() { before[w.tenant] = w.now })
	var out dispatch.NodeEnded
	crashed := w.call("end of node "+node, func(ctx context.Context) (err error) {
		out, err = w.EndNode(ctx, dispatch.NodeEnd{Node: node, Reason: "its node has had no worker for 5m0s"})
		return err
	})
	w.swap()
	w.accept("end of node "+node, w.read())
	w.swap()
	if crashed {
		return // the next pass goes on
	}
	if !out.Done {
		w.t.Fatalf("the pass over %s did not end: %+v", node, out)
	}
	w.each(func() { w.ended(node, before[w.tenant], out) })
	if slices.Contains(w.queues(), "node-"+node) {
		w.t.Fatalf("the queue of %s still has tasks", node)
	}
}

// ended checks what a pass over a node has left of the tenant's records there.
func (w *world) ended(node string, before *records, out dispatch.NodeEnded) {
	for _, id := range w.now.boxIDs() {
		if b := w.now.Boxes[id]; b.Node == node && !b.State.Final() && !w.creating(id) {
			w.t.Fatalf("the sandbox %s is still %s on %s: %+v", id, b.State, node, out)
		}
	}
	for _, id := range before.jobIDs() {
		j, was := w.now.Jobs[id], before.Boxes[before.Jobs[id].Box]
		if was.Node == node && !was.State.Final() && !j.State.Final() && w.now.Boxes[j.Box].State.Final() {
			w.t.Fatalf("%s of the sandbox %s, which ended with %s, is still %s", id, j.Box, node, j.State)
		}
	}
}

// creating reports whether a live worker creates a sandbox: it moves what it creates.
func (w *world) creating(box string) bool {
	return slices.ContainsFunc(w.now.unfinished(box), func(id string) bool {
		j := w.now.Jobs[id]
		return j.creates() && j.State == farm.JobRunning && w.alive(j.Worker)
	})
}

// snapshot is all that Redis has at one moment.
type snapshot map[string]struct {
	value string
	ttl   time.Duration
}

// save remembers what Redis has now.
func (w *world) save(*rapid.T) {
	ctx := w.t.Context()
	keys, err := w.rdb.Keys(ctx, "*").Result()
	w.must(err)
	w.saved = snapshot{}
	for _, key := range keys {
		value, err := w.rdb.Dump(ctx, key).Result()
		w.must(err)
		ttl, err := w.rdb.PTTL(ctx, key).Result()
		w.must(err)
		kept := w.saved[key]
		kept.value, kept.ttl = value, max(ttl, 0)
		w.saved[key] = kept
	}
}

// restore gives Redis back what it had, which may be nothing: what was accepted, claimed and ended since then never happened. All workers live on
// with what they have.
func (w *world) restore(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "do it") > 0 {
		return
	}
	ctx := w.t.Context()
	w.must(w.rdb.FlushAll(ctx).Err())
	for key, kept := range w.saved {
		w.must(w.rdb.Restore(ctx, key, kept.ttl, kept.value).Err())
	}
	w.start()
	w.each(func() {
		w.now = w.read()
		if found := w.now.violations(w.limits.QueueShare, w.limits.Quotas.MaxRunning); len(found) > 0 {
			w.t.Fatalf("after a restore: %v", found)
		}
	})
}

//go:build integration

package dispatch_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
)

// books are what the model knows of one tenant.
type books struct {
	tenant   string
	now      *records
	accepted []store.Accept // calls that a caller may repeat
}

// otherTenant gives the other tenant its turn. Nothing of it may have changed since its last one.
func (w *world) otherTenant(*rapid.T) {
	w.swap()
	after := w.read()
	if diff := gocmp.Diff(w.now.dump, after.dump, cmpopts.IgnoreFields(storetest.Value{}, "TTL")); diff != "" {
		w.t.Fatalf("steps of a tenant have changed records of tenant %s (-before +after):\n%s", w.tenant, diff)
	}
	w.now = after
}

// swap gives the other tenant its turn, if there is one.
func (w *world) swap() {
	if w.other != nil {
		w.books, *w.other = *w.other, w.books
	}
}

// each calls do in the turn of each tenant.
func (w *world) each(do func()) {
	do()
	if w.other != nil {
		w.swap()
		do()
		w.swap()
	}
}

// turn gives the tenant of a job its turn.
func (w *world) turn(job string) {
	if owner := w.owner[job]; owner != "" && owner != w.tenant {
		w.swap()
	}
}

// maxJumps bounds the time that passes in a run: the records of what has ended are kept for longer.
const maxJumps = 20 * time.Hour

// expire lets time pass until a sandbox is due, and closes those that are, as the scheduler does.
func (w *world) expire(t *rapid.T) {
	if rapid.IntRange(0, 2).Draw(t, "do it") > 0 {
		return
	}
	first := int64(0)
	for _, id := range w.now.boxIDs() {
		if b := w.now.Boxes[id]; b.State.Accepts() && (first == 0 || b.due() < first) {
			first = b.due()
		}
	}
	ahead := time.UnixMicro(first).Sub(w.clock)
	if first == 0 || w.jumps+ahead > maxJumps {
		return
	}
	if ahead > 0 {
		w.jumps, w.clock = w.jumps+ahead, w.clock.Add(ahead)
	}
	due, err := w.store.Due(t.Context(), w.tenant, 100)
	w.must(err)
	now, want := w.clock.UnixMicro(), map[string]bool{}
	for _, id := range w.now.boxIDs() {
		if b := w.now.Boxes[id]; b.State.Accepts() && b.due() <= now {
			want[id] = true
		}
	}
	got := map[string]bool{}
	for _, ref := range due {
		got[ref.ID] = true
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		w.t.Fatalf("the sandboxes that are due (-records +stored):\n%s", diff)
	}
	for _, ref := range due {
		a := storetest.CloseJob(ref.ID)
		a.Job.ID, a.Job.CreatedAt = w.newID("job"), w.tick()
		a.Request = &farm.Request{Close: &farm.CloseRequest{Expired: true, Reason: fmt.Sprint("Its time was up at ", now, ".")}}
		w.submit(a)
	}
}

// due is when the sandbox's time is up, in microseconds.
func (b *boxRecord) due() int64 {
	if idle := b.used + b.idle*1_000_000; b.idle > 0 && b.State != farm.SandboxBusy {
		return min(idle, b.expires)
	}
	return b.expires
}

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

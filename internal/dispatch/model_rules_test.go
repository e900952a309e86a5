//go:build integration

package dispatch_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
)

// The errors of refused calls, by what the caller sees.
var (
	notFound  = farm.NotFoundf("not found")
	conflict  = farm.Conflictf("conflict")
	exhausted = farm.Errorf(farm.CodeExhausted, "exhausted")
)

// acceptRule predicts store.Accept.
func (w *world) acceptRule(a store.Accept) func(*steps) error {
	return func(s *steps) error {
		r, j := s.last(), a.Job
		if r.Jobs[j.ID] != nil {
			return nil // the same call again
		}
		if refused := w.refusal(r, a); refused != nil {
			return refused
		}
		if box := r.Boxes[j.SandboxID]; j.Kind == farm.KindClose && box.State == farm.SandboxClosing || a.Sandbox == nil && box.State.Final() {
			return nil // the earlier close answers
		}
		if waiting, running := r.alike(j); j.Kind == farm.KindInterrupt || j.Kind == farm.KindRestart {
			if waiting > 0 || running >= 2 {
				return nil // one of them answers
			}
		}
		r = s.next()
		seq, _ := strconv.ParseInt(w.sequence(), 10, 64)
		r.Jobs[j.ID] = &jobRecord{
			ID: j.ID, Box: j.SandboxID, Queue: j.Queue, Kind: j.Kind, State: farm.JobQueued, Inline: j.Inline, Hidden: j.Hidden, Calls: j.CallbackURL != "",
			Seq: seq + 1, Created: j.CreatedAt.UnixMicro(),
		}
		if a.Sandbox != nil {
			r.Boxes[j.SandboxID] = &boxRecord{ID: j.SandboxID, Node: a.Sandbox.Node, State: farm.SandboxQueued, Generation: 1, Seq: seq + 1}
		}
		if j.Kind == farm.KindClose {
			r.Boxes[j.SandboxID].State, r.Boxes[j.SandboxID].Close = farm.SandboxClosing, j.ID
		}
		return nil
	}
}

// sequence is the number of the newest record.
func (w *world) sequence() string {
	if v := w.now.dump["seq"]; v.Text != nil {
		return *v.Text
	}
	return "0"
}

// refusal is why a job is not accepted; nil if it is.
func (w *world) refusal(r *records, a store.Accept) error {
	j, box := a.Job, r.Boxes[a.Job.SandboxID]
	job := &jobRecord{Kind: j.Kind}
	if a.Sandbox == nil {
		switch {
		case box == nil:
			return notFound
		case j.Kind == farm.KindClose:
			answers := box.Close != "" && (box.State == farm.SandboxClosing || box.State == farm.SandboxClosed || box.State == farm.SandboxExpired)
			if !box.State.To(farm.SandboxClosing) && !answers {
				return conflict
			}
			return nil
		case !box.State.Accepts(), j.Inline && box.State != farm.SandboxReady && box.State != farm.SandboxBusy:
			return conflict
		}
	}
	if !job.urgent() && w.overQuota(r, a) {
		return exhausted
	}
	fifo := r.fifo(j.SandboxID)
	if !job.urgent() && (j.Inline || a.Sandbox != nil || len(fifo) == 0) && w.depth(r, w.shareFor(r, j)) >= w.limits.MaxQueueDepth {
		return exhausted
	}
	waiting := len(fifo)
	if waiting > 0 && r.Jobs[fifo[0]].State == farm.JobRunning {
		waiting--
	}
	if !j.Inline && a.Sandbox == nil && waiting >= w.limits.MaxWaiting {
		return exhausted
	}
	return nil
}

// overQuota reports whether a job is more than the tenant's quotas allow.
func (w *world) overQuota(r *records, a store.Accept) bool {
	unfinished := 0
	for _, j := range r.Jobs {
		if !j.State.Final() {
			unfinished++
		}
	}
	if unfinished >= w.limits.MaxQueued {
		return true
	}
	quotas, open, all := w.limits.Quotas, 0, 0
	for _, b := range r.Boxes {
		if !b.State.Final() {
			all++
			if b.open {
				open++
			}
		}
	}
	return a.Sandbox != nil && (open >= quotas.MaxSandboxes || quotas.MaxMemoryMB >= 0 && (all+1)*modelMemory > quotas.MaxMemoryMB)
}

// shareFor is the queue share of a job.
func (w *world) shareFor(r *records, j *farm.Job) string {
	queue := w.queueFor(r, j.Queue, j.Inline, j.SandboxID)
	if j.Inline {
		return queue + "/" + string(j.Kind)
	}
	return queue
}

// depth counts the jobs that have a slot of a queue share, or are parked.
func (w *world) depth(r *records, share string) (n int) {
	for _, j := range r.Jobs {
		if j.waitsIn == share {
			n++
		}
	}
	return n
}

// queueFor is the queue in which a job waits.
func (w *world) queueFor(r *records, own string, inline bool, box string) string {
	switch {
	case own != "":
		return own
	case r.Boxes[box] != nil && r.Boxes[box].Node != "":
		return farm.NodeQueue(r.Boxes[box].Node)
	case inline:
		return farm.QueueControl
	default:
		return farm.QueueCPU
	}
}

// claimRule predicts store.Claim.
func (w *world) claimRule(id, worker string, alive func(string) bool) func(*steps) error {
	return func(s *steps) error {
		j := s.last().Jobs[id]
		switch {
		case j.State.Final(), j.State == farm.JobRunning && j.Worker != worker && alive(j.Worker), j.State == farm.JobQueued && !s.last().turn(id):
			return store.ErrNotClaimable
		}
		r := s.next()
		j = r.Jobs[id]
		if j.State == farm.JobRunning && j.Worker == worker { // the worker lives: that is no crash
			j.GracefulRequeues++
		}
		j.State, j.Worker = farm.JobRunning, worker
		j.Attempt++
		if box := r.Boxes[j.Box]; !j.Inline && !j.Left && works(j.Kind) && box.State == farm.SandboxReady {
			box.State = farm.SandboxBusy
		}
		return nil
	}
}

// works reports whether a job of the FIFO makes its sandbox busy.
func works(kind farm.JobKind) bool {
	return kind == farm.KindExecute || kind == farm.KindCommand || kind == farm.KindFile || kind == farm.KindInstall
}

// endRule predicts the end of a job: mode is that of job_finish.lua.
func (w *world) endRule(mode, id string, attempt int, to farm.JobState) func(*steps) error {
	return func(s *steps) error {
		j := s.last().Jobs[id]
		switch {
		case mode == "finish" && (j.State.Final() || j.Attempt != attempt):
			return store.ErrFenced
		case j.State.Final():
			return nil
		case mode == "cancel" && j.State == farm.JobRunning:
			s.next().Jobs[id].Cancel = true
			return nil
		case !j.State.To(to), mode != "force" && j.State == farm.JobQueued && to == farm.JobCompleted:
			return store.ErrMove
		}
		r := s.next()
		if box, ended := r.end(mode, id, to); ended { // its other jobs end one by one
			for _, other := range r.unfinished(box) {
				s.next().end("force", other, farm.JobCanceled)
			}
		}
		return nil
	}
}

// end ends a job. It reports whether its sandbox ended with it.
func (r *records) end(mode, id string, to farm.JobState) (box string, ended bool) {
	j := r.Jobs[id]
	b := r.Boxes[j.Box]
	if j.State == farm.JobRunning && j.waits() && b != nil && b.State == farm.SandboxBusy {
		b.State = farm.SandboxReady
	}
	j.State = to
	if mode == "force" {
		j.Attempt++
	}
	if to == farm.JobCompleted || !j.creates() {
		return j.Box, false
	}
	switch {
	case b.State == farm.SandboxQueued && to == farm.JobCanceled && b.Node != "":
		b.State = farm.SandboxClosing
	case b.State == farm.SandboxQueued && to == farm.JobCanceled:
		b.State = farm.SandboxClosed
	case b.State == farm.SandboxQueued:
		b.State = farm.SandboxFailed
	case b.State == farm.SandboxStarting && mode == "force":
		b.State = farm.SandboxLost
	default:
		return j.Box, false
	}
	return j.Box, true
}

// leaveFIFORule predicts store.LeaveFIFO.
func (w *world) leaveFIFORule(id string, attempt int) func(*steps) error {
	return func(s *steps) error {
		j := s.last().Jobs[id]
		switch {
		case j.State != farm.JobRunning || j.Attempt != attempt:
			return store.ErrFenced
		case j.Inline || j.Left:
			return nil
		}
		r := s.next()
		if b := r.Boxes[j.Box]; b.State == farm.SandboxBusy {
			b.State = farm.SandboxReady
		}
		r.Jobs[id].Left = true
		return nil
	}
}

// moveRule predicts store.MoveSandbox.
func (w *world) moveRule(m store.Move) func(*steps) error {
	return func(s *steps) error {
		b := s.last().Boxes[m.Ref.ID]
		if m.Generation != 0 && m.Generation != b.Generation {
			return store.ErrFenced
		}
		if m.Job != "" {
			if j := s.last().Jobs[m.Job]; j.State != farm.JobRunning || j.Attempt != m.Attempt {
				return store.ErrFenced
			}
		}
		switch {
		case b.State.To(m.To):
		case m.Job != "" && b.State == m.To: // a job may repeat its move
			return nil
		default:
			return store.ErrMove
		}
		b = s.next().Boxes[m.Ref.ID]
		b.State = m.To
		if m.Node != "" {
			b.Node = m.Node
		}
		return nil
	}
}

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

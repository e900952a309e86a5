//go:build integration

package dispatch_test

import (
	"fmt"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

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

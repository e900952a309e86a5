package storetest

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// readRoom is how many bytes of results of reads are kept beyond the quota.
const readRoom = 64 << 20

// documentBytes is how many bytes of records there are in the object store.
func (b *bundle) documentBytes() (size int64) {
	for key, data := range b.documents.All() {
		if strings.HasPrefix(key, "records/") {
			size += int64(len(data))
		}
	}
	return size
}

// charged checks that what the tenant keeps counts as many bytes as there are, and that a comparison finds nothing wrong.
func (b *bundle) charged(t *testing.T, when string) (kept int64) {
	t.Helper()
	kept = b.documentBytes()
	if got, err := b.Stored(t.Context(), Tenant); err != nil || got != (store.Stored{Kept: kept}) {
		t.Errorf("%s: Stored = %+v, %v; there are %d bytes of documents", when, got, err, kept)
	}
	if drift, checked, err := b.RepairStored(t.Context(), Tenant, 1000, true); err != nil || !checked || drift != (store.Stored{}) {
		t.Errorf("%s: RepairStored = %+v, %v, %v", when, drift, checked, err)
	}
	return kept
}

// documentsAreCharged takes jobs with documents of all kinds through random lives: at any time the tenant is charged for the bytes that are there.
func documentsAreCharged(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	random := rand.New(rand.NewPCG(12, 2)) //nolint:gosec // the same each time
	text := func(n int) string { return strings.Repeat("x", random.IntN(n)) }
	for range 40 {
		a := Execute(box.ID)
		a.Request.Execute.Code = text(100_000)
		if a.Job.Hidden = random.IntN(3) == 0; random.IntN(2) == 0 {
			a.Job.Shown = a.Request
		}
		ref := b.accept(t, a).Job.Ref()
		b.charged(t, "accepted")
		if random.IntN(4) == 0 {
			if _, _, err := b.Cancel(t.Context(), ref, nil); err != nil {
				t.Fatal(err)
			}
			b.charged(t, "canceled")
			continue
		}
		b.claim(t, ref, "w")
		for range random.IntN(5) {
			if err := b.AppendEvents(t.Context(), ref, 1, []farm.Event{stdout("", text(60_000))}); err != nil {
				t.Fatal(err)
			}
			b.charged(t, "appended")
		}
		b.accept(t, a) // a repeated call
		b.charged(t, "accepted again")
		end := store.Finish{Ref: ref, Attempt: 1, State: farm.JobCompleted, Result: &farm.Result{Execute: &farm.ExecuteResult{Stdout: text(100_000)}}, Token: "t"}
		for range 2 {
			if _, err := b.Finish(t.Context(), end); err != nil {
				t.Fatal(err)
			}
			b.charged(t, "ended")
		}
	}
	if b.charged(t, "at the end") == 0 {
		t.Error("nothing was kept")
	}
	b.clock.forward(365 * 24 * time.Hour)
	if _, err := b.Trim(t.Context(), Tenant); err != nil {
		t.Fatal(err)
	}
	if left := b.charged(t, "trimmed"); left != 0 {
		t.Errorf("%d bytes are left", left)
	}
}

// leave sets the tenant's quota to a MiB and fills it, but for some bytes.
func (b *bundle) leave(t *testing.T, bytes int64) {
	t.Helper()
	b.storageQuota(t, 1)
	filler := farm.Ref{Tenant: Tenant, ID: "filler"}
	if err := b.KeepUploads(t.Context(), filler, 0); err != nil {
		t.Fatal(err)
	}
	used, err := b.Stored(t.Context(), Tenant)
	if err == nil && bytes < 1<<20-used.Used() {
		err = b.KeepUploads(t.Context(), filler, 1<<20-used.Used()-bytes)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// requestsNeedRoom: a long request that the tenant may not store is refused with the quota, and leaves nothing. A short one needs no room.
func requestsNeedRoom(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	a := executeLarge(box.ID)
	b.accept(t, a)
	needed := b.documentBytes()
	for _, free := range []int64{needed - 1, needed, needed + 1} {
		before, a := b.documentBytes(), executeLarge(box.ID)
		b.leave(t, free)
		_, err := b.Accept(t.Context(), a)
		e, ok := errors.AsType[*farm.Error](err)
		switch {
		case free >= needed && err != nil:
			t.Errorf("%d bytes of %d free: %v", free, needed, err)
		case free < needed && (!ok || e.Code != farm.CodeExhausted || e.Quota == nil || e.Quota.Name != farm.QuotaStoredMB || e.Quota.Limit != 1):
			t.Errorf("%d bytes of %d free: %v", free, needed, err)
		case free < needed && b.documentBytes() != before:
			t.Errorf("a refused request leaves %d bytes", b.documentBytes()-before)
		}
	}
	b.leave(t, 0)
	b.accept(t, Execute(box.ID))
}

// resultsNeedRoom: a long result that the tenant may not store does not end its job; what the end of the job frees counts as room. Reads have some
// room of their own.
func resultsNeedRoom(t *testing.T, factory Factory) {
	result := &farm.Result{Execute: &farm.ExecuteResult{Stdout: large}}
	encoded, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	needed := int64(len(encoded))
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	long := Execute(box.ID)
	long.Request.Execute.Code = large // which the end of the job frees
	for _, c := range []struct {
		name   string
		accept store.Accept
		frees  int64
	}{{"short request", Execute(box.ID), 0}, {"long request", long, 1}} {
		b.storageQuota(t, -1)
		before := b.documentBytes()
		ref := b.accept(t, c.accept).Job.Ref()
		b.claim(t, ref, "w")
		c.frees *= b.documentBytes() - before
		f := store.Finish{Ref: ref, Attempt: 1, State: farm.JobCompleted, Result: result, Token: "t"}
		for _, free := range []int64{needed - 1, needed} {
			b.leave(t, max(free-c.frees, 0))
			if free < c.frees {
				t.Fatalf("the request of %d bytes frees more than the result needs", c.frees)
			}
			_, err := b.Finish(t.Context(), f)
			if full := farm.CodeOf(err) == farm.CodeExhausted; full != (free < needed) || !full && err != nil {
				t.Errorf("%s, %d bytes of %d free: %v", c.name, free, needed, err)
			}
			if state := b.job(t, ref).State; (state == farm.JobRunning) != (free < needed) {
				t.Errorf("%s, %d bytes of %d free: the job is %s", c.name, free, needed, state)
			}
		}
	}
	b.leave(t, 0)
	read := Execute(box.ID)
	read.Job.Hidden = true
	ref := b.accept(t, read).Job.Ref()
	b.claim(t, ref, "w")
	filler := farm.Ref{Tenant: Tenant, ID: "reads"}
	b.storageQuota(t, -1)
	used, err := b.Stored(t.Context(), Tenant)
	if err != nil {
		t.Fatal(err)
	}
	for _, over := range []int64{readRoom - needed + 1, readRoom - needed} {
		b.storageQuota(t, -1)
		if err := b.KeepUploads(t.Context(), filler, 1<<20+over-used.Used()); err != nil {
			t.Fatal(err)
		}
		b.storageQuota(t, 1)
		_, err := b.Finish(t.Context(), store.Finish{Ref: ref, Attempt: 1, State: farm.JobCompleted, Result: result, Token: "t"})
		if full := farm.CodeOf(err) == farm.CodeExhausted; full != (over+needed > readRoom) || !full && err != nil {
			t.Errorf("a read with %d bytes over the quota: %v", over, err)
		}
	}
}

// eventsNeedRoom: events that the tenant may not store are refused; those that say why are not.
func eventsNeedRoom(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ref := b.runningJob(t)
	text := strings.Repeat("x", 20_000)
	if err := b.AppendEvents(t.Context(), ref, 1, []farm.Event{stdout("", text)}); err != nil { // which the window takes
		t.Fatal(err)
	}
	needed := int64(0)
	for try, free := range []int64{0, 1} {
		if try == 1 {
			b.storageQuota(t, -1) // to see how much they need
			other := b.runningJob(t)
			before := b.documentBytes()
			for range 2 {
				if err := b.AppendEvents(t.Context(), other, 1, []farm.Event{stdout("", text)}); err != nil {
					t.Fatal(err)
				}
			}
			needed = b.documentBytes() - before
			free = needed - 1
		}
		b.leave(t, free)
		before := b.documentBytes()
		err := b.AppendEvents(t.Context(), ref, 1, []farm.Event{stdout("", text)})
		if e, ok := errors.AsType[*farm.Error](err); !ok || e.Code != farm.CodeExhausted || e.Quota == nil || e.Quota.Name != farm.QuotaStoredMB {
			t.Errorf("%d bytes free: %v", free, err)
		}
		if left := b.documentBytes() - before; left != 0 {
			t.Errorf("%d bytes of refused events are left", left)
		}
	}
	b.leave(t, needed)
	if err := b.AppendEvents(t.Context(), ref, 1, []farm.Event{stdout("", text)}); err != nil {
		t.Errorf("%d bytes free: %v", needed, err)
	}
	b.leave(t, 0)
	fill := stdout("", strings.Repeat("x", window-32-len(`{"name":"stdout","text":""}`)))
	notice := farm.Event{Name: farm.EventProgress, Progress: &farm.Progress{Message: "no room"}}
	for _, events := range [][]farm.Event{{fill}, {notice}, {notice, notice}} {
		if err := b.AppendEvents(t.Context(), ref, 1, events); err != nil {
			t.Errorf("%d events in full storage: %v", len(events), err)
		}
	}
	notice.Progress = &farm.Progress{Message: strings.Repeat("x", 2<<10)}
	if err := b.AppendEvents(t.Context(), ref, 1, []farm.Event{notice}); farm.CodeOf(err) != farm.CodeExhausted {
		t.Errorf("a long notice in full storage: %v", err)
	}
	if all := b.events(t, ref, ""); len(all) != 2+2+1+3 { // queued, running, two of text, one that filled the window, notices
		t.Errorf("%d events", len(all))
	}
}

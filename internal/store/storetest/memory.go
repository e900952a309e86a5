package storetest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// memory reads what the jobs of the tenant count, and checks that a comparison with the jobs finds nothing wrong.
func (b *bundle) memory(t *testing.T) store.JobMemory {
	t.Helper()
	if drift, checked, err := b.RepairJobMemory(t.Context(), Tenant); err != nil || !checked || drift != (store.JobMemory{}) {
		t.Errorf("RepairJobMemory = %+v, %v, %v; want no drift", drift, checked, err)
	}
	got, err := b.JobMemory(t.Context(), Tenant, "nobody")
	if err != nil || got[1] != (store.JobMemory{}) {
		t.Errorf("JobMemory = %+v, %v", got, err)
	}
	return got[0]
}

// jobMemoryIsExact takes jobs through random lives: what is counted for them is always what the jobs say, and nothing is left when all are gone.
func jobMemoryIsExact(t *testing.T, factory Factory) {
	const limit = 5
	b := setup(t, factory, func(l *farm.Limits) { l.MaxFinished = limit })
	box := b.box(t, farm.SandboxReady)
	random := rand.New(rand.NewPCG(12, 1)) //nolint:gosec // the same each time
	text := func(n int) string { return strings.Repeat("x", random.IntN(n)) }
	made := b.memory(t)
	for range 40 {
		a := Execute(box.ID)
		a.Request.Execute.Code = text(100_000) // sometimes a document
		a.Job.Hidden, a.Job.Inline = random.IntN(3) == 0, random.IntN(4) == 0
		if random.IntN(4) == 0 {
			a.Job.CallbackURL = "https://example.com"
		}
		before := b.memory(t)
		ref := b.accept(t, a).Job.Ref()
		b.accept(t, a) // the same call again
		if now := b.memory(t); now.Unfinished <= before.Unfinished || now.Finished != before.Finished {
			t.Errorf("accepted: %+v after %+v", now, before)
		}
		if random.IntN(5) > 0 {
			b.claim(t, ref, "w")
			for seq := range random.IntN(6) {
				event := farm.Event{ID: fmt.Sprintf("%d-1", seq+3), Name: farm.EventStdout, Text: text(30_000)} // some leave the window
				if err := b.AppendEvents(t.Context(), ref, 1, []farm.Event{event}); err != nil {
					t.Fatal(err)
				}
			}
			for range random.IntN(3) {
				if err := b.Checkpoint(t.Context(), ref, 1, []byte(text(1000))); err != nil {
					t.Fatal(err)
				}
			}
		}
		b.memory(t)
		end := store.Finish{Ref: ref, State: farm.JobCompleted, Result: &farm.Result{Execute: &farm.ExecuteResult{Stdout: text(60_000)}}, Token: "t"}
		if job := b.job(t, ref); job.State == farm.JobRunning {
			end.Attempt = 1
			end.Events = []farm.Event{{ID: "100-1", Name: farm.EventStdout, Text: text(4000)}}
			for range 2 { // a repeated call ends it once
				if _, err := b.Finish(t.Context(), end); err != nil {
					t.Fatal(err)
				}
			}
		} else if _, _, err := b.Cancel(t.Context(), ref, nil); err != nil {
			t.Fatal(err)
		}
		after := b.memory(t)
		if after.Unfinished != before.Unfinished || after.Finished <= before.Finished {
			t.Errorf("ended: %+v after %+v", after, before)
		}
	}
	b.clock.forward(time.Duration(farm.DefaultLimits().HiddenSeconds)*time.Second + time.Hour)
	before := b.memory(t)
	n, err := b.Trim(t.Context(), Tenant) // to the bound, and hidden ones
	if after := b.memory(t); err != nil || n.Jobs == 0 || after.Finished >= before.Finished || after.Unfinished != made.Unfinished {
		t.Errorf("trimmed %+v, %v: %+v after %+v", n, err, after, before)
	}
	b.clock.forward(365 * 24 * time.Hour)
	if _, err := b.Trim(t.Context(), Tenant); err != nil {
		t.Fatal(err)
	}
	if left := b.memory(t); left != (store.JobMemory{Unfinished: made.Unfinished}) {
		t.Errorf("%+v is counted when all are gone", left)
	}
	if n := b.rdb.ZCard(t.Context(), b.prefix+"{acme}:ended").Val(); n != 0 {
		t.Errorf("the index of finished jobs has %d entries", n)
	}
}

// jobMemoryIsRepaired: counts that are wrong are corrected, and the correction says by how much.
func jobMemoryIsRepaired(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ref := b.running(t)
	b.finish(t, b.job(t, ref), farm.JobCompleted)
	b.running(t)
	right := b.memory(t)
	key := b.prefix + "{acme}:mem"
	if err := b.rdb.HSet(t.Context(), key, "unfinished", right.Unfinished+7, "finished", -3).Err(); err != nil {
		t.Fatal(err)
	}
	want := store.JobMemory{Unfinished: 7, Finished: -3 - right.Finished}
	if drift, checked, err := b.RepairJobMemory(t.Context(), Tenant); err != nil || !checked || drift != want {
		t.Errorf("RepairJobMemory = %+v, %v, %v; want %+v", drift, checked, err, want)
	}
	if now := b.memory(t); now != right || right.Finished == 0 || right.Unfinished == 0 {
		t.Errorf("counted %+v, want %+v", now, right)
	}
}

// sandboxMemoryIsCounted takes a sandbox through its life: what its record, its packages, its egress log and its secrets have in Redis is counted,
// while it is open and from its end until its record expires, and is given back once.
func sandboxMemoryIsCounted(t *testing.T, factory Factory) {
	b := setup(t, factory)
	ctx := t.Context()
	count := func(what string, wantUnfinished, wantFinished int64, change func() error) {
		t.Helper()
		before := b.memory(t)
		if err := change(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		now := b.memory(t)
		got := store.JobMemory{Unfinished: now.Unfinished - before.Unfinished, Finished: now.Finished - before.Finished}
		if diff := cmp.Diff(store.JobMemory{Unfinished: wantUnfinished, Finished: wantFinished}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	patch := func(box farm.Ref, p store.SandboxPatch) func() error {
		return func() error {
			_, err := b.UpdateSandbox(ctx, box, p)
			return err
		}
	}

	plain, labeled := Create(), Create()
	labeled.Sandbox.Spec.Labels = map[string]string{"k": strings.Repeat("v", 990)}
	labeled.Secrets = make([]byte, 500)
	b.accept(t, plain)
	size := b.memory(t).Unfinished
	b.accept(t, labeled)
	if more := b.memory(t).Unfinished - size; more < size+1490 || more > size+2600 { // the labels are in the job's record as well
		t.Errorf("a create with 990 bytes of labels and 500 of secrets counts %d, another one %d", more, size)
	}
	b.end(t, labeled.Sandbox.ID)

	box := b.box(t, farm.SandboxReady)
	text := strings.Repeat("v", 93)
	count("labels", 100, 0, patch(box, store.SandboxPatch{Labels: &map[string]string{"k": text[:92]}}))
	count("the same labels", 0, 0, patch(box, store.SandboxPatch{Labels: &map[string]string{"k": text[:92]}}))
	count("labels of a byte more", 1, 0, patch(box, store.SandboxPatch{Labels: &map[string]string{"k": text}}))
	count("no labels", -99, 0, patch(box, store.SandboxPatch{Labels: &map[string]string{}}))
	with := Execute(box.ID)
	with.Packages = []string{"numpy"}
	before := b.memory(t)
	b.accept(t, Execute(box.ID))
	job := b.memory(t).Unfinished - before.Unfinished
	count("packages", job+int64(len("numpy")+len(with.Job.ID)), 0, func() error { b.accept(t, with); return nil })
	before = b.memory(t)
	appendEntry := func() error {
		_, err := b.AppendEgress(ctx, store.EgressAppend{Sandbox: box, Generation: 1, Entries: egressEntries(0, 2)})
		return err
	}
	if err := appendEntry(); err != nil {
		t.Fatal(err)
	}
	entries := b.memory(t).Unfinished - before.Unfinished
	if entries < 200 || entries > 2000 {
		t.Errorf("two entries of the egress log count %d bytes", entries)
	}
	count("entries of the egress log", entries, 0, appendEntry)

	before = b.memory(t)
	b.end(t, box.ID)
	ended := b.memory(t)
	if ended.Finished < before.Finished+2*entries {
		t.Errorf("ended: %+v after %+v", ended, before)
	}
	count("a late entry of the egress log", 0, entries, appendEntry)

	b.clock.forward(365 * 24 * time.Hour)
	if _, err := b.Trim(ctx, Tenant); err != nil {
		t.Fatal(err)
	}
	if left := b.memory(t).Finished; left != 0 {
		t.Errorf("%d bytes are counted when all are gone", left)
	}
}

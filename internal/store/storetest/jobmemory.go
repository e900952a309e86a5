package storetest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

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
	const most = 5
	b := setup(t, factory, func(l *farm.Limits) { l.MaxFinished = most })
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

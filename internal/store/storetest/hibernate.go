package storetest

import (
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

const mib = int64(1) << 20

// hibernate moves a sandbox to hibernated.
func (b *bundle) hibernate(t *testing.T, box farm.Ref, bytes int64) error {
	t.Helper()
	_, err := b.MoveSandbox(t.Context(), store.Move{Ref: box, To: farm.SandboxHibernated, Checkpoint: bytes})
	return err
}

// checkpointsAreStored charges checkpoints to what the tenant may store, until their sandboxes resume or end.
func checkpointsAreStored(t *testing.T, factory Factory) {
	for what, end := range map[string]func(*testing.T, *bundle, farm.Ref){
		"resumed": func(t *testing.T, b *bundle, box farm.Ref) {
			t.Helper()
			if _, err := b.MoveSandbox(t.Context(), store.Move{Ref: box, To: farm.SandboxBusy}); err != nil {
				t.Fatal(err)
			}
		},
		"closed": func(t *testing.T, b *bundle, box farm.Ref) {
			t.Helper()
			b.accept(t, CloseJob(box.ID))
			b.stored(t, store.Stored{Reserved: 10 * mib}) // the checkpoint is there until the end
			b.end(t, box.ID)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setup(t, factory)
			b.quota(t, farm.QuotaStoredMB, 10)
			box, other := b.box(t, farm.SandboxReady), b.box(t, farm.SandboxReady)
			wantCode(t, "one byte more than the quota", b.hibernate(t, box, 10*mib+1), farm.CodeExhausted)
			b.stored(t, store.Stored{})
			wantCode(t, "as much as the quota", b.hibernate(t, box, 10*mib), "")
			b.stored(t, store.Stored{Reserved: 10 * mib})
			wantCode(t, "the smallest one more", b.hibernate(t, other, 1), farm.CodeExhausted)
			if drift, _, err := b.RepairStored(t.Context(), Tenant, 1000, true); err != nil || drift != (store.Stored{}) {
				t.Errorf("repair: %+v, %v", drift, err)
			}
			if _, err := b.MoveSandbox(t.Context(), store.Move{Ref: box, Touch: true}); err != nil {
				t.Fatal(err)
			}
			b.stored(t, store.Stored{Reserved: 10 * mib})
			end(t, b, box)
			b.stored(t, store.Stored{})
			wantCode(t, "one byte less than the quota", b.hibernate(t, other, 10*mib-1), "")
		})
	}
}

// hibernatedSandboxesAreNotIdle lets them live until their absolute deadline, and counts no use.
func hibernatedSandboxesAreNotIdle(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	idle := 10
	if _, err := b.UpdateSandbox(t.Context(), box, store.SandboxPatch{IdleSeconds: &idle}); err != nil {
		t.Fatal(err)
	}
	sample := func(cpu time.Duration) store.Usage {
		t.Helper()
		used, err := b.AddUsage(t.Context(), store.Sample{Sandbox: box, Container: "c", CPU: cpu, MemoryKB: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		return used
	}
	sample(5 * time.Second)
	wantCode(t, "hibernate", b.hibernate(t, box, mib), "")
	b.clock.forward(time.Minute)
	due := func() int {
		t.Helper()
		refs, err := b.Due(t.Context(), Tenant, 10)
		if err != nil {
			t.Fatal(err)
		}
		return len(refs)
	}
	if s := b.sandbox(t, box); due() != 0 || !s.Deadline().Equal(s.ExpiresAt) {
		t.Errorf("after a minute %d are due; deadline %v, expires %v", due(), s.Deadline(), s.ExpiresAt)
	}
	if _, err := b.MoveSandbox(t.Context(), store.Move{Ref: box, To: farm.SandboxReady, Touch: true}); err != nil {
		t.Fatal(err)
	}
	b.clock.forward(2 * time.Second)
	if used := sample(time.Second); used.SandboxSeconds != 2 || used.CPUSeconds != 1 || used.MemoryGBSeconds > 2.001 {
		t.Errorf("two seconds after the resume: %+v", used)
	}
	wantCode(t, "hibernate again", b.hibernate(t, box, mib), "")
	b.clock.forward(b.sandbox(t, box).ExpiresAt.Sub(b.clock.Now()))
	if due() != 1 {
		t.Errorf("behind its deadline %d are due", due())
	}
}

package storetest

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

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

//go:build integration

package engine_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/engine/enginetest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// A running sandbox gets other limits, higher or lower, and nothing else changes. Under gVisor it keeps those of its start.
func TestUpdateChangesTheLimits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.start(t, b.spec(t, "wait"))
	before, err := b.Inspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if enginetest.GVisor() {
		wantCode(t, "update under gVisor", b.Update(t.Context(), id, "", farm.Resources{MemoryMB: 512, CPUs: 0.5, PIDs: 128, DiskMB: 64}), farm.CodeConflict)
		if got, err := b.Inspect(t.Context(), id); err != nil || !cmp.Equal(before, got) {
			t.Errorf("after the update: %+v, %v; want %+v", got, err, before)
		}
		return
	}
	for _, r := range []farm.Resources{{MemoryMB: 512, CPUs: 0.5, PIDs: 128, DiskMB: 64}, {MemoryMB: 128, CPUs: 1, PIDs: 32, DiskMB: 64}} {
		began := time.Now()
		if err := b.Update(t.Context(), id, "", r); err != nil {
			t.Fatal(err)
		}
		t.Logf("update took %s", time.Since(began))
		got, err := b.Inspect(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		want := before
		want.MemoryMB, want.CPUs, want.PIDs = r.MemoryMB, r.CPUs, r.PIDs
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("after the update to %+v (-want +got):\n%s", r, diff)
		}
	}
	if err := b.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "update of one that is gone", b.Update(t.Context(), id, "", farm.Resources{}), farm.CodeNotFound)
}

func TestNotesOutliveTheWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.Noted(t.Context(), "sbx_1")
	wantCode(t, "note that is not there", err, farm.CodeNotFound)
	for _, text := range []string{"first", "second"} { // a note never changes
		began := time.Now()
		if err := b.Note(t.Context(), "sbx_1", "tenant-a", map[string]string{"sandfarm.x": text}); err != nil {
			t.Fatal(err)
		}
		t.Logf("note took %s", time.Since(began))
	}
	if labels, err := b.Noted(t.Context(), "sbx_1"); err != nil || labels["sandfarm.x"] != "first" || labels["sandfarm.tenant"] != "tenant-a" {
		t.Errorf("Noted = %v, %v", labels, err)
	}
	if err := b.Note(t.Context(), "sbx_2", "tenant-a", nil); err != nil {
		t.Fatal(err)
	}
	if list, err := b.Notes(t.Context()); err != nil || len(list) != 2 || !slices.Contains(list, "sbx_2") {
		t.Errorf("Notes = %v, %v", list, err)
	}
	for range 2 {
		if err := b.RemoveNote(t.Context(), "sbx_1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.RemoveAll(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if list, err := b.Notes(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("left after RemoveAll: %v, %v", list, err)
	}
}

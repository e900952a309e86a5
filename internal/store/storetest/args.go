package storetest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Lists and numbers reach a script unchanged: an empty list stays empty, every byte of a name is kept, and integers up to 2^53 are exact.
func argumentsReachScripts(t *testing.T, factory Factory) {
	b := setup(t, factory)
	box := b.box(t, farm.SandboxReady)
	for _, packages := range [][]string{nil, {}, {"plain"}, {`quote"d`, `back\slash`, "ünï", "</script>", "a b", "1e400", "12345678901234567890"}} {
		a := Execute(box.ID)
		a.Packages = packages
		b.accept(t, a)
		if len(packages) == 0 {
			continue
		}
		want := map[string]string{}
		for _, name := range packages {
			want[name] = a.Job.ID
		}
		found, err := b.PackageJobs(t.Context(), box, packages...)
		if diff := cmp.Diff(want, found); diff != "" || err != nil {
			t.Errorf("PackageJobs: %v (-want +got):\n%s", err, diff)
		}
	}
	all, err := b.PackageJobs(t.Context(), box)
	if err != nil || len(all) != 8 {
		t.Errorf("packages of the sandbox: %v, %v; want 8", all, err)
	}

	const last = 1<<53 - 2 // the event of the final state gets the next number, the largest that Lua holds exactly
	other := b.box(t, farm.SandboxReady)
	job := b.accept(t, Execute(other.ID)).Job
	b.claim(t, job.Ref(), "w")
	timings := farm.Timings{RunMS: 1234567890.125, UploadMS: 0.001}
	if _, err := b.Finish(t.Context(), store.Finish{Ref: job.Ref(), Attempt: 1, State: farm.JobCompleted, Timings: timings, LastEvent: last}); err != nil {
		t.Fatal(err)
	}
	if id, err := b.LastEvent(t.Context(), job.Ref()); err != nil || id != "9007199254740991-0" {
		t.Errorf("last event = %q, %v", id, err)
	}
	if got := b.job(t, job.Ref()).Timings; got.RunMS != timings.RunMS || got.UploadMS != timings.UploadMS {
		t.Errorf("timings = %+v, want %+v", got, timings)
	}
}

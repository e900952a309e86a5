package worker

import (
	"testing"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// The message about a cancel may be here before the answer to the claim, which was made before the cancel.
func TestCancelDuringTheClaim(t *testing.T) {
	t.Parallel()
	js := activeJobs{byID: map[string]*activeJob{}}
	ref := farm.Ref{Tenant: "acme", ID: "job_1"}
	j := js.reserve(ref)
	js.requestCancel(ref.ID)
	js.claimed(j, &store.Claim{Job: &farm.Job{Tenant: "acme", ID: "job_1"}})
	if !j.cancelRequested() {
		t.Error("the cancel is lost")
	}
	if again := js.reserve(ref); again != nil {
		t.Error("the job was reserved twice")
	}
	js.remove(ref.ID)
	js.requestCancel(ref.ID) // of a job that ended: nothing happens
	if next := js.reserve(ref); next == nil || next.cancelRequested() {
		t.Error("the cancel of an ended job was kept")
	}
}

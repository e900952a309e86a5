package storetest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

// fieldsAreStored accepts a create whose job, request and sandbox have every field set, and reads them back: a field that the codec forgets
// fails here. Fields that the store itself sets are listed.
func fieldsAreStored(t *testing.T, factory Factory) {
	b := setup(t, factory)
	var job farm.Job
	var box farm.Sandbox
	var request farm.Request
	Fill(&job)
	Fill(&box)
	Fill(&request)
	job.Tenant, job.Kind, job.SandboxID, job.Inline, job.Hidden, request.Close = Tenant, farm.KindCreate, box.ID, false, false, nil
	box.Tenant = Tenant
	b.accept(t, store.Accept{Job: &job, Request: &request, Sandbox: &box})

	jobFields := cmpopts.IgnoreFields(farm.Job{}, "State", "Attempt", "Uncounted", "Worker", "StartedAt", "FinishedAt", "Timings", "Result", "Error", "Outcome", "ArtifactsGone")
	if diff := cmp.Diff(&job, b.job(t, job.Ref()), jobFields); diff != "" {
		t.Errorf("job (-accepted +stored):\n%s", diff)
	}
	for name := range box.Spec.Env {
		box.Spec.Env = map[string]string{name: ""} // the values are in the request only
	}
	ref := farm.Ref{Tenant: Tenant, ID: box.ID}
	boxFields := cmpopts.IgnoreFields(farm.Sandbox{}, "State", "ReadyAt", "LastUsedAt", "ClosedAt", "Generation", "Expired", "Recent")
	if diff := cmp.Diff(&box, b.sandbox(t, ref), boxFields); diff != "" {
		t.Errorf("sandbox (-accepted +stored):\n%s", diff)
	}

	if diff := cmp.Diff(&request, b.claim(t, job.Ref(), "w").Request); diff != "" {
		t.Errorf("request (-accepted +stored):\n%s", diff)
	}

	other := box // restored from its container's label
	other.ID = farm.NewID(farm.SandboxPrefix)
	if restored, err := b.RestoreSandbox(t.Context(), &other); err != nil || !restored {
		t.Fatalf("RestoreSandbox = %v, %v", restored, err)
	}
	boxFields = cmpopts.IgnoreFields(farm.Sandbox{}, "State", "ReadyAt", "ClosedAt", "Expired", "Recent")
	if diff := cmp.Diff(&other, b.sandbox(t, farm.Ref{Tenant: Tenant, ID: other.ID}), boxFields); diff != "" {
		t.Errorf("sandbox (-restored +stored):\n%s", diff)
	}

	plain := b.accept(t, Execute(b.box(t, farm.SandboxReady).ID)).Job // the fields that are set at a job's end
	b.claim(t, plain.Ref(), "w")
	if _, err := b.Finish(t.Context(), store.Finish{
		Ref: plain.Ref(), Attempt: 1, State: farm.JobFailed, Result: job.Result, Error: job.Error, Timings: job.Timings,
	}); err != nil {
		t.Fatal(err)
	}
	ended := b.job(t, plain.Ref())
	if diff := cmp.Diff(job.Result, ended.Result); diff != "" {
		t.Errorf("result (-finished +stored):\n%s", diff)
	}
	if diff := cmp.Diff(job.Error, ended.Error); diff != "" {
		t.Errorf("error (-finished +stored):\n%s", diff)
	}
	if ended.Timings.RunMS != job.Timings.RunMS || ended.Timings.UploadMS != job.Timings.UploadMS || ended.Worker != "w" || ended.Outcome != farm.OutcomeFailed || ended.FinishedAt.IsZero() {
		t.Errorf("ended job = %+v", ended)
	}

	artifact := job.Result.Artifacts[0]
	artifact.JobID = plain.ID
	artifact.ID, artifact.Tenant, artifact.ExpiresAt = farm.ArtifactID(plain.ID, "other"), Tenant, b.clock.Now().Add(1e12)
	if err := b.AddArtifacts(t.Context(), 0, []farm.Artifact{artifact}); err != nil {
		t.Fatal(err)
	}
	stored, err := b.Artifact(t.Context(), farm.Ref{Tenant: Tenant, ID: artifact.ID})
	if diff := cmp.Diff(&artifact, stored); diff != "" || err != nil {
		t.Errorf("artifact: %v (-added +stored):\n%s", err, diff)
	}
}

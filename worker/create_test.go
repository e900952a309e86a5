package worker

import (
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// A restart of the engine does not fail a create: the start is retried.
func TestCreateIsRetriedWhileTheEngineIsSilent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.CreateTimeout = time.Hour
	w := b.worker()
	job, box := b.Creation(farm.KindCreate)
	b.Fake.Drop("images/json", 3)
	workertest.Must(t, w.handle(t.Context(), workertest.Task(job)))
	if !b.Fake.Dropped("images/json") {
		t.Error("the engine was not asked again")
	}
	if got, s := b.Job(job), b.Sandbox(box); got.State != farm.JobFailed || s.State != farm.SandboxFailed { // the fake creates no containers
		t.Errorf("job %s, error %+v, sandbox %s, reason %q", got.State, got.Error, s.State, s.Reason)
	}
}

// After its timeout the create waits in its queue for an engine.
func TestCreateIsRequeuedWhenTheEngineStaysSilent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.CreateTimeout = time.Second
	w := b.worker()
	job, box := b.Creation(farm.KindCreate)
	b.Fake.Close()
	workertest.Must(t, w.handle(t.Context(), workertest.Task(job)))
	if got, s := b.Job(job), b.Sandbox(box); got.State != farm.JobQueued || s.State != farm.SandboxQueued {
		t.Errorf("job %s, error %+v, sandbox %s, reason %q", got.State, got.Error, s.State, s.Reason)
	}
}

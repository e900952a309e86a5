package worker

import (
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

// An engine that is being restarted costs no creation: it is tried again until the creation's time is up, and then the creation
// waits for an engine in its queue.
func TestCreationWaitsForTheEngine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.CreateTimeout = time.Second
	w := b.worker()
	job, box := b.Creation(farm.KindCreate)
	b.Fake.Close()
	began := time.Now()
	workertest.Must(t, w.handle(t.Context(), workertest.Task(job)))
	if took := time.Since(began); took < b.cfg.CreateTimeout {
		t.Errorf("gave up after %v", took)
	}
	if got, s := b.Job(job), b.Sandbox(box); got.State != farm.JobQueued || s.State != farm.SandboxQueued {
		t.Errorf("job %s, error %+v, sandbox %s, reason %q", got.State, got.Error, s.State, s.Reason)
	}
}

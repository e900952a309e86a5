package worker

import (
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
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

// A start that ends while the engine creates the container leaves no container: whoever is last removes it. It used to stay until the
// reconciler came by.
func TestContainerOfAnEndedStartIsRemoved(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"cancel", "close", "requeue"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.cfg.CreateTimeout = time.Hour
			begun, release := b.Fake.HoldCreates()
			w := b.worker()
			w.node.UseIdentity(workertest.Node, "agent")
			job, box := b.Creation(farm.KindCreate)
			handled := make(chan error, 1)
			go func() { handled <- w.handle(t.Context(), workertest.Task(job)) }()
			<-begun
			switch end {
			case "cancel":
				w.jobs.get(job.ID).requestCancel()
				workertest.Must(t, <-handled)
			case "close":
				closing := b.CloseJob(box)
				w.jobs.get(job.ID).requestCancel() // as Dismantle does
				workertest.Must(t, <-handled)
				workertest.Must(t, w.handle(t.Context(), workertest.Task(closing)))
			case "requeue":
				w.jobs.get(job.ID).stopStart(errEngineSilent)
				workertest.Must(t, <-handled)
			}
			s := b.Sandbox(box)
			release()
			testbed.Until(t, "the engine has created the container", func() bool { return b.Fake.Created() == 1 })
			w.background.Wait()
			if b.Fake.Has(box.ID) {
				t.Errorf("the container of a sandbox that is %s, generation %d, is left", s.State, s.Generation)
			}
		})
	}
}

// A worker that stops leaves the container to the next one, which uses it.
func TestContainerOfAStoppedWorkerStays(t *testing.T) {
	t.Parallel()
	b := setup(t)
	begun, release := b.Fake.HoldCreates()
	w := b.worker()
	w.node.UseIdentity(workertest.Node, "agent")
	job, box := b.Creation(farm.KindCreate)
	handled := make(chan error, 1)
	go func() { handled <- w.handle(t.Context(), workertest.Task(job)) }()
	<-begun
	w.stop(node.ErrStopping)
	workertest.Must(t, <-handled)
	w.background.Wait() // it does not wait for the engine
	release()
	testbed.Until(t, "the engine has created the container", func() bool { return b.Fake.Created() == 1 })
	if s := b.Sandbox(box); s.State != farm.SandboxStarting || !b.Fake.Has(box.ID) {
		t.Errorf("sandbox %s, container exists: %v", s.State, b.Fake.Has(box.ID))
	}
}

package worker

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
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
	testbed.Check(t, b.Fake.Dropped("images/json"), "the engine was not asked again")
	b.JobIs(job, farm.JobFailed) // the fake creates no containers
	b.SandboxIs(box, farm.SandboxFailed)
}

// After its timeout the create waits in its queue for an engine.
func TestCreateIsRequeuedWhenTheEngineStaysSilent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cfg.CreateTimeout = time.Second
	w := b.worker()
	job, box := b.Creation(farm.KindCreate)
	b.Fake.Close()
	b.done(w, job, farm.JobQueued)
	b.SandboxIs(box, farm.SandboxQueued)
}

// full is an engine that places containers itself, and has no room.
type full struct{ node.Engine }

func (full) Create(context.Context, farm.ContainerSpec) (string, error) {
	return "", farm.Errorf(farm.CodeExhausted, "0/3 nodes are available.")
}

// A create for which the engine itself has no room waits in its queue, and its caller learns why.
func TestCreateWaitsForRoomOfTheEngine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deps.Engine = full{b.Engine}
	w := b.measured(5000, 4)
	now := time.Now()
	w.now = func() time.Time { return now } // the pause does not end on its own
	job, box := b.Creation(farm.KindCreate)
	if got, s := b.done(w, job, farm.JobQueued), b.Sandbox(box); s.State != farm.SandboxQueued || s.Node != "" || s.Generation != 2 {
		t.Errorf("job %s, error %+v, sandbox %s on %q, generation %d", got.State, got.Error, s.State, s.Node, s.Generation)
	}
	testbed.Check(t, !w.placement.Accepts(farm.QueueCPU), "creates are not paused")
	message := b.Progress(job)
	testbed.Check(t, strings.Contains(message, "0/3 nodes are available. The sandbox waits for room."), "the progress event says %q", message)
	b.deps.Engine = b.Engine
	again := b.worker()
	workertest.Must(t, again.handle(t.Context(), workertest.Task(job)))
	b.JobIs(job, farm.JobFailed) // the fake creates no containers
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
			handled := b.begin(w, job)
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
	handled := b.begin(w, job)
	<-begun
	w.stop(node.ErrStopping)
	workertest.Must(t, <-handled)
	w.background.Wait() // it does not wait for the engine
	release()
	testbed.Until(t, "the engine has created the container", func() bool { return b.Fake.Created() == 1 })
	b.SandboxIs(box, farm.SandboxStarting)
	if got := b.JobIs(job, farm.JobRunning); got.GracefulRequeues != 1 || !b.Fake.Has(box.ID) {
		t.Errorf("%d requeues do not count as crashes, container exists: %v", got.GracefulRequeues, b.Fake.Has(box.ID))
	}
}

// ofGeneration adds the running container that was made for a generation of a sandbox, under the sandbox's name.
func (b *bundle) ofGeneration(box farm.Ref, generation int) {
	b.T.Helper()
	s := b.Sandbox(box)
	s.Generation, s.ExpiresAt = generation, time.Now().Add(time.Hour)
	b.label(s)
}

// The engine has the container of a later generation than the record of a create: Redis was restored from a snapshot that is older than the
// container. The worker of that create is fenced. It neither takes the container, nor removes it, nor fails the sandbox. The reconciler
// gives the container to the sandbox, and the next attempt completes the create.
func TestCreateIsFencedByTheContainerOfALaterGeneration(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Fake.Create()
	w := b.worker()
	w.node.UseIdentity(workertest.Node, "agent")
	job, box := b.Creation(farm.KindCreate)
	b.ofGeneration(box, 2)
	err := w.handle(t.Context(), workertest.Task(job))
	testbed.Check(t, errors.Is(err, store.ErrFenced), "the create ended with %v, want ErrFenced", err)
	if j, s := b.Job(job), b.Sandbox(box); j.State != farm.JobRunning || s.State != farm.SandboxStarting || s.Container != "" || !b.Fake.Has(box.ID) || b.Fake.Created() != 0 {
		t.Fatalf("job %s, sandbox %+v, container exists: %v, %d were created", j.State, s, b.Fake.Has(box.ID), b.Fake.Created())
	}
	workertest.Must(t, w.reconciler.Run(t.Context()))
	if s := b.Sandbox(box); s.State != farm.SandboxReady || s.Generation != 2 || s.Container != "test-"+box.ID || !b.Fake.Has(box.ID) {
		t.Fatalf("after the reconciler: sandbox %+v, container exists: %v", s, b.Fake.Has(box.ID))
	}
	workertest.Must(t, b.Store.RemoveWorker(t.Context(), w.id))
	next := b.worker()
	if j, s := b.done(next, job, farm.JobCompleted), b.Sandbox(box); s.State != farm.SandboxReady || s.Generation != 2 || !b.Fake.Has(box.ID) {
		t.Errorf("after the next attempt: job %s, error %+v, sandbox %+v, container exists: %v", j.State, j.Error, s, b.Fake.Has(box.ID))
	}
}

// What the reconciler does with a container of another generation than the record, for each state of the record.
func TestReconcileComparesGenerations(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		states     []farm.SandboxState // of the record
		moved      bool                // the record is of generation 2, since its start left the node and came back
		container  int                 // its generation
		state      farm.SandboxState
		generation int
		kept       bool
	}{
		"newer, starting": {states: []farm.SandboxState{farm.SandboxStarting}, container: 2, state: farm.SandboxReady, generation: 2, kept: true},
		"newer, ready":    {states: []farm.SandboxState{farm.SandboxStarting, farm.SandboxReady}, container: 3, state: farm.SandboxReady, generation: 3, kept: true},
		"newer, lost":     {states: []farm.SandboxState{farm.SandboxStarting, farm.SandboxLost}, container: 2, state: farm.SandboxLost, generation: 1},
		"same":            {states: []farm.SandboxState{farm.SandboxStarting, farm.SandboxReady}, container: 1, state: farm.SandboxReady, generation: 1, kept: true},
		"earlier":         {states: []farm.SandboxState{farm.SandboxStarting}, container: 1, state: farm.SandboxStarting, generation: 2, moved: true},
		"earlier, queued": {container: 1, state: farm.SandboxQueued, generation: 2, moved: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			w := b.worker()
			job, box := b.Creation(farm.KindCreate)
			claim := b.Claim(job, w.id)
			if c.moved {
				b.Move(box, farm.SandboxStarting)
				b.Requeue(job, store.Requeue{Attempt: claim.Job.Attempt, Elsewhere: true})
				if len(c.states) > 0 {
					b.Claim(job, w.id)
				}
			}
			b.Move(box, c.states...)
			b.ofGeneration(box, c.container)
			workertest.Must(t, w.reconciler.Run(t.Context()))
			s := b.Sandbox(box)
			if s.State != c.state || max(s.Generation, 1) != c.generation || b.Fake.Has(box.ID) != c.kept {
				t.Errorf("sandbox %s of generation %d, container exists: %v; want %s, %d, %v", s.State, s.Generation, b.Fake.Has(box.ID), c.state, c.generation, c.kept)
			}
		})
	}
}

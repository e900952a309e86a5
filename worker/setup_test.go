package worker

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

func TestMain(m *testing.M) { workertest.Main(m) }

// bundle is a farm; the test makes its workers.
type bundle struct {
	*workertest.Farm
	cfg  Config
	deps Deps
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{Farm: workertest.New(t)}
	b.cfg = Config{UploadRetry: 5 * time.Second, Grace: 200 * time.Millisecond}
	b.deps = Deps{Store: b.Store, Blobs: b.Blobs, Engine: b.Engine, Log: b.Log, Dispatch: b.Dispatch}
	return b
}

// worker makes a worker that is not started.
func (b *bundle) worker() *Worker {
	b.T.Helper()
	w, err := New(b.cfg, b.deps)
	testbed.Must(b.T, err)
	w.node.UseIdentity(workertest.Node, "")
	b.Register(w.id)
	b.T.Cleanup(w.Stop)
	return w
}

// nothingUnfinished checks that nothing counts as unfinished, as the record of an ended sandbox does until its container is known to be gone.
func (b *bundle) nothingUnfinished() {
	b.T.Helper()
	memory, err := b.Store.JobMemory(b.T.Context(), workertest.Tenant)
	testbed.Check(b.T, err == nil && memory[0].Unfinished == 0 && memory[0].Finished > 0, "counted %+v, %v", memory, err)
}

// measured makes a worker on a node of a size.
func (b *bundle) measured(memoryMB, cores int) *Worker {
	b.T.Helper()
	b.Fake.SetHost(memoryMB, cores)
	w := b.worker()
	testbed.Must(b.T, w.placement.Measure(b.T.Context()))
	return w
}

// pooling makes a worker on a measured node whose settings ask for members of the warm pool.
func (b *bundle) pooling(memoryMB int, pool ...string) *Worker {
	b.T.Helper()
	b.cfg.Pool, b.cfg.MemoryOvercommit, b.cfg.CPUOvercommit = pool, 1, 100
	return b.measured(memoryMB, 4)
}

// member adds a ready member of the warm pool that a worker made.
func (b *bundle) member(w *Worker) store.Member {
	b.T.Helper()
	version, err := w.placement.MemberVersion(b.T.Context(), "python", "")
	testbed.Must(b.T, err)
	return b.Member(w.node, w.id, version, farm.Capacity{MemoryMB: 1 << 20, CPUs: 64})
}

// agent starts an agent and connects workers to it as that of a sandbox.
func (b *bundle) agent(sandbox farm.Ref, workers ...*Worker) *agenttest.Agent {
	b.T.Helper()
	nodes := make([]*node.Node, len(workers))
	for i, w := range workers {
		nodes[i] = w.node
	}
	return b.Agent(sandbox, nodes...)
}

// begin has a worker handle a job beside the test, and returns what the handler will give.
func (b *bundle) begin(w *Worker, job farm.Ref) <-chan error {
	handled := make(chan error, 1)
	go func() { handled <- w.handle(context.WithoutCancel(b.T.Context()), workertest.Task(job)) }()
	return handled
}

// done has a worker handle a job, which must then have a state.
func (b *bundle) done(w *Worker, job farm.Ref, want farm.JobState) *farm.Job {
	b.T.Helper()
	testbed.Must(b.T, w.handle(b.T.Context(), workertest.Task(job)))
	return b.JobIs(job, want)
}

// watchCancels lets a worker see the messages about jobs that are to end.
func (b *bundle) watchCancels(w *Worker) {
	b.T.Helper()
	cancels, err := b.Store.Cancels(b.T.Context())
	testbed.Must(b.T, err)
	w.background.Go(func() { w.watchCancels(cancels) })
}

// contained makes a ready sandbox with a container that carries its record.
func (b *bundle) contained(w *Worker) farm.Ref {
	b.T.Helper()
	box := b.Ready()
	b.label(b.Sandbox(box))
	return box
}

// label adds the running container of a sandbox, which carries its record as it is given.
func (b *bundle) label(s *farm.Sandbox) {
	labels := node.Labels(s)
	labels[engine.LabelGeneration] = strconv.Itoa(max(s.Generation, 1))
	labels[engine.LabelNamespace], labels[engine.LabelSandbox], labels[engine.LabelNode], labels[engine.LabelTenant] = "test", s.ID, workertest.Node, s.Tenant
	b.Fake.SetLabels(s.ID, labels)
	b.Fake.Put(s.ID, true)
}

// join connects a worker to a sandbox.
func join(t *testing.T, w *Worker, sandbox farm.Ref, connect func() *client.Client) {
	t.Helper()
	testbed.Must(t, w.node.UseConnection(t.Context(), sandbox.ID, connect))
}

// claimedJob is a job that a test has claimed itself.
func claimedJob(c *store.Claim) *activeJob {
	j := newActiveJob(c.Job.Ref())
	j.Claim = c
	return j
}

func TestConfig(t *testing.T) {
	t.Parallel()
	if err := (Config{}).withDefaults().validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	err := Config{Slots: -1, EngineTimeout: -1, StopGrace: -1}.withDefaults().validate()
	for _, want := range []string{"worker.slots is -1", "worker.engine_timeout is -1ns", "worker.stop_grace is -1ns"} {
		testbed.Check(t, err != nil && strings.Contains(err.Error(), want), "%v does not say %q", err, want)
	}
	_, err = New(Config{Slots: 1 << 20}, Deps{})
	testbed.Check(t, err != nil, "New accepts a million slots")
}

type fakeServer struct{ err error }

func (f fakeServer) Start() error { return f.err }
func (f fakeServer) Stop()        {}
func (f fakeServer) Wake()        {}

func TestStopBeforeStartAndTwice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, err := New(b.cfg, b.deps)
	testbed.Must(t, err)
	w.Stop()
	w.Stop()
}

// A failed start removes its registration and leaves no goroutine (TestMain checks).
func TestStartThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deps.Listen = func(queue.ServerConfig) (Server, error) {
		return fakeServer{err: workertest.ErrTest}, nil
	}
	w, err := New(b.cfg, b.deps)
	testbed.Must(t, err)
	if err := w.Start(t.Context()); err == nil { // the fake engine has no identity: the first step fails
		t.Fatal("it started")
	}
	w.Stop()
	if alive, err := b.Store.Alive(t.Context(), w.id); err != nil || alive {
		t.Fatalf("the worker is still registered: %v %v", alive, err)
	}
}

package worker

import (
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
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
	workertest.Must(b.T, err)
	w.node.UseIdentity(workertest.Node, "")
	b.Register(w.id)
	b.T.Cleanup(w.Stop)
	return w
}

// measured makes a worker on a node of a size.
func (b *bundle) measured(memoryMB, cores int) *Worker {
	b.T.Helper()
	b.Fake.SetHost(memoryMB, cores)
	w := b.worker()
	workertest.Must(b.T, w.placement.Measure(b.T.Context()))
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
	workertest.Must(b.T, err)
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

// join connects a worker to a sandbox.
func join(t *testing.T, w *Worker, sandbox farm.Ref, connect func() *client.Client) {
	t.Helper()
	workertest.Must(t, w.node.UseConnection(t.Context(), sandbox.ID, connect))
}

// claimedJob is a job that a test has claimed itself.
func claimedJob(c *store.Claim) *activeJob {
	j := newActiveJob(c.Job.Ref())
	j.Claim = c
	return j
}

package execution

import (
	"context"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

func TestMain(m *testing.M) { workertest.Main(m) }

// bundle is a farm; the test makes its runners.
type bundle struct {
	*workertest.Farm
	cfg Config
}

func setup(t *testing.T) *bundle {
	t.Helper()
	return &bundle{Farm: workertest.New(t), cfg: Config{
		UploadRetry: 5 * time.Second, Grace: 200 * time.Millisecond, UploadParallel: 8, InstallTimeout: time.Minute, Limits: farm.DefaultLimits(),
	}}
}

// runner makes a runner with a node of its own.
func (b *bundle) runner() (*Runner, *node.Node) {
	b.T.Helper()
	n := b.NewNode()
	return b.runnerOn(n, b.Store, b.Blobs), n
}

// runnerOn makes a runner with a way of its own to records and objects.
func (b *bundle) runnerOn(n *node.Node, records *store.Store, blobs *blob.Store) *Runner {
	b.T.Helper()
	x, err := New(b.cfg, Deps{Store: records, Blobs: blobs, Node: n, Sandboxes: openSandboxes{}, Log: b.Log, Now: time.Now})
	workertest.Must(b.T, err)
	b.T.Cleanup(x.Wait)
	return x
}

// finishOf commits an outcome.
func finishOf(job *farm.Job, o Outcome) store.Finish {
	return store.Finish{Ref: job.Ref(), Attempt: job.Attempt, State: o.State, Result: o.Result, Error: o.Err, Events: o.Events, LastEvent: o.LastEvent}
}

// openSandboxes is Sandboxes of which none ends.
type openSandboxes struct{}

func (openSandboxes) Closing(context.Context, *farm.Sandbox) bool         { return false }
func (openSandboxes) Lose(context.Context, *farm.Sandbox, string, string) {}

// cleanUp does what an outcome leaves to do after its commit, but for the agents.
func cleanUp(ctx context.Context, o Outcome) {
	if o.Cleanup != nil {
		o.Cleanup(ctx)
	}
}

// nothingStaged checks that neither snapshots of a job are left nor uploads of its outputs.
func (b *bundle) nothingStaged(job farm.Ref) {
	b.T.Helper()
	workertest.Must(b.T, b.Blobs.List(b.T.Context(), snapshotPrefix(job), func(o blob.Info) error {
		b.T.Errorf("%s is left", o.Key)
		return nil
	}))
	n, err := b.Blobs.AbortUploads(b.T.Context(), "artifacts/"+job.Tenant+"/"+b.Job(job).SandboxID+"/"+job.ID, time.Now().Add(time.Hour))
	workertest.Must(b.T, err)
	if n > 0 {
		b.T.Errorf("%d uploads of job %s are left", n, job.ID)
	}
}

package execution

import (
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
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
	x, err := New(b.cfg, Deps{Store: b.Store, Queue: b.Dispatch, Blobs: b.Blobs, Node: n, Log: b.Log, Now: time.Now})
	workertest.Must(b.T, err)
	b.T.Cleanup(x.Wait)
	return x, n
}

package execution

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
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
	testbed.Must(b.T, err)
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
	testbed.Must(b.T, b.Blobs.List(b.T.Context(), snapshotPrefix(job), func(o blob.Info) error {
		b.T.Errorf("%s is left", o.Key)
		return nil
	}))
	n, err := b.Blobs.AbortUploads(b.T.Context(), "artifacts/"+job.Tenant+"/"+b.Job(job).SandboxID+"/"+job.ID, time.Now().Add(time.Hour))
	testbed.Must(b.T, err)
	testbed.Check(b.T, n <= 0, "%d uploads of job %s are left", n, job.ID)
}

func TestMetricsOfUploads(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	m := newMetrics()
	testbed.Must(t, m.register(registry))
	m.stored(10, nil)
	m.stored(0, workertest.ErrTest)
	families, err := registry.Gather()
	testbed.Must(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, series := range f.GetMetric() {
			name := f.GetName()
			for _, label := range series.GetLabel() {
				name += " " + label.GetValue()
			}
			got[name] = series.GetCounter().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"sandfarm_worker_uploads_total ok": 1, "sandfarm_worker_uploads_total error": 1, "sandfarm_worker_upload_bytes_total": 10,
	} {
		testbed.Check(t, got[name] == want, "%s is %v, want %v", name, got[name], want)
	}
}

// An outline has all that the collector asks for, and nothing large. The request itself stays as it is.
func TestOutlineOfARequest(t *testing.T) {
	t.Parallel()
	whole := func() *farm.Request {
		return &farm.Request{
			Context: "c", Files: []farm.InputFile{{Path: "a", Content: []byte("x")}}, Install: &farm.InstallRequest{Packages: []string{"six"}},
			Execute: &farm.ExecuteRequest{Code: "print(1)", Language: "python", Context: "default"},
			Command: &farm.CommandRequest{Commands: []string{"a", "b"}, Cwd: "d", Background: true},
		}
	}
	r := whole()
	want := &farm.Request{
		Context: "c", Install: &farm.InstallRequest{Packages: []string{"six"}}, Execute: &farm.ExecuteRequest{Language: "python", Context: "default"},
		Command: &farm.CommandRequest{Commands: []string{"", ""}, Cwd: "d", Background: true},
	}
	testbed.Diff(t, "outline", want, outline(r))
	testbed.Diff(t, "the request has changed", whole(), r)
}

var errLate = errors.New("late")

// Time in which the worker waits for Redis does not count; the time of an agent that keeps it busy does.
func TestDeadlineCountsTheAgentsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, d, stop := withDeadline(t.Context(), time.Minute, errLate)
		defer stop()
		for range 5 {
			d.pause()
			time.Sleep(time.Hour) // Redis is away
			d.resume()
			time.Sleep(10 * time.Second)
		}
		if ctx.Err() != nil {
			t.Fatalf("after 50 s of a minute: %v", context.Cause(ctx))
		}
		time.Sleep(10*time.Second + 1)
		synctest.Wait()
		if !errors.Is(context.Cause(ctx), errLate) {
			t.Errorf("after a minute: %v", context.Cause(ctx))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, d, stop := withDeadline(t.Context(), time.Minute, errLate)
		defer stop()
		for range 100 {
			d.pause()
			time.Sleep(freeAfter - 1)
			d.resume()
		}
		synctest.Wait()
		testbed.Check(t, ctx.Err() != nil, "an agent that sends frame after frame has no deadline")
	})
	var none *deadline
	none.pause()
	none.resume()
}

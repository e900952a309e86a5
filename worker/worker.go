package worker

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/relay"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/worker/egress"
	"github.com/sandfarm/sandfarm/worker/execution"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/placement"
	"github.com/sandfarm/sandfarm/worker/retry"
)

// Server takes tasks from queues and calls a handler for each.
type Server interface {
	Start() error
	Stop()
	Wake() // asks the gate again now, and takes the tasks that it admits
}

// Deps are the dependencies of a worker. All fields are required unless their comment says what nil means.
type Deps struct {
	Store    *store.Store
	Dispatch *dispatch.Dispatcher
	Blobs    *blob.Store
	// Memory is the budget for output on its way; nil: without limit.
	Memory *budget.Budget
	// Staging is the budget for output of jobs that run, and for nothing else; nil: without limit.
	Staging *budget.Budget
	Engine  node.Engine
	Log     *slog.Logger
	// Listen makes a server that is not started.
	Listen func(queue.ServerConfig) (Server, error)
	// Agent gives the agent's binary for an architecture, and its version.
	Agent func(arch string) (binary []byte, version string, err error)
	// UV gives the installer for an architecture; nil: sandboxes install with what their image has.
	UV func(ctx context.Context, arch string) ([]byte, error)
	// UVVersion is the version of the installer.
	UVVersion string
	// Index gives what answers installers in a tenant's sandboxes whose network is packages or allowlist; nil: they cannot install.
	Index func(tenant string) http.Handler
	// Egress is the budget for connections of sandboxes to hosts, and for nothing else; nil: without limit.
	Egress *budget.Budget
	// Resolver finds the addresses of hosts that sandboxes connect to; nil: the system's.
	Resolver egressproxy.Resolver
	// SecretPort is the port of hosts with secrets; 0: farm.SecretPort. Roots sign their certificates; nil: the system's. Both are for tests.
	SecretPort int
	Roots      *x509.CertPool
	// BuildImage builds a sandbox image by its name, unless the engine has it; nil: none is built.
	BuildImage func(ctx context.Context, name string, progress func(farm.Progress)) error
	// Callback delivers a finished job to its callback URL, if the job is still there; nil: this worker delivers none.
	Callback func(ctx context.Context, ref farm.Ref) error
	// LiveAddress makes of Config.Listen the address to listen on; nil: the worker does not listen.
	LiveAddress func(listen string) (string, error)
	// Metrics registers the worker's metrics; nil: they are not registered.
	Metrics prometheus.Registerer
	// Tracer makes the spans of jobs; nil: none are made.
	Tracer trace.TracerProvider
}

// Worker is one worker process, attached to one engine.
type Worker struct {
	cfg      Config
	id       string
	store    *store.Store
	dispatch *dispatch.Dispatcher
	engine   node.Engine
	deps     Deps
	log      *slog.Logger
	now      func() time.Time
	metrics  *metrics

	egress     *egress.Egress
	node       *node.Node
	placement  *placement.Placer
	usage      *node.Sampler
	lifecycle  *lifecycle
	executions *execution.Runner
	reconciler *reconciler
	identity   *relay.Identity
	live       *relay.Server // nil: it does not listen

	jobs         activeJobs
	beats        beats
	activity     activity
	outage       outage
	engineStatus engineStatus
	callbacks    *lanes
	servers      []Server
	wake         atomic.Pointer[Server] // set by Start

	places     places
	background sync.WaitGroup // loops, and clean-up that outlives its handler

	newRules, newDeadlines changes
	stop                   context.CancelCauseFunc
	base                   context.Context // the life of the loops, ended by Stop
	stopOnce               sync.Once
	started                time.Time
	registered             atomic.Bool
}

// New makes a worker; nothing is started.
func New(cfg Config, deps Deps) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Host == "" {
		cfg.Host, _ = os.Hostname()
	}
	base, stop := context.WithCancelCause(context.Background()) //nolint:forbidigo // Stop ends it
	w := &Worker{
		cfg: cfg, id: farm.NewID(farm.WorkerPrefix), deps: deps,
		store: deps.Store, dispatch: deps.Dispatch, engine: deps.Engine, log: deps.Log, now: time.Now,
		jobs: activeJobs{byID: map[string]*activeJob{}}, places: newPlaces(cfg.Slots), callbacks: newLanes(), stop: stop, base: base,
	}
	if err := w.assemble(); err != nil {
		stop(err)
		return nil, err
	}
	return w, nil
}

// assemble makes the parts of a worker, each on top of those before it.
func (w *Worker) assemble() (err error) {
	now := func() time.Time { return w.now() }
	if w.metrics, err = newMetrics(w.deps.Metrics, w); err != nil {
		return err
	}
	if w.egress, err = egress.New(egress.Deps{
		Records: w.store, Log: w.log, Limits: w.cfg.Limits, Allow: w.cfg.Allow, Private: w.cfg.Private, Budget: w.deps.Egress, Resolver: w.deps.Resolver,
		Metrics: w.deps.Metrics, Secrets: w.cfg.Secrets, SecretPort: w.deps.SecretPort, Roots: w.deps.Roots,
	}); err != nil {
		return err
	}
	if w.node, err = node.New(w.base, node.Deps{
		Admit:  w.egress.Admit,
		Exit:   func(ctx context.Context, s *farm.Sandbox) node.Exit { return w.egress.Open(ctx, s) },
		Engine: w.engine, Log: w.log, Now: now, Metrics: w.deps.Metrics,
		Agent: w.deps.Agent, UV: w.deps.UV, UVVersion: w.deps.UVVersion, Index: w.deps.Index, BuildImage: w.deps.BuildImage,
		Runtimes: w.cfg.Runtimes, ImageRuntimes: w.cfg.ImageRuntimes, AllowedImages: w.cfg.AllowedImages, Signatures: w.cfg.Signatures,
	}); err != nil {
		return err
	}
	if w.placement, err = placement.New(w.cfg.placement(), placement.Deps{
		Store: w.store, Engine: w.engine, Node: w.node, WorkerID: w.id, Log: w.log, Now: now, Wake: w.wakeQueues,
		PoolFailed: w.metrics.loopErrors.WithLabelValues(loopPool).Inc, Base: w.base, Metrics: w.deps.Metrics,
	}); err != nil {
		return err
	}
	if w.usage, err = node.NewSampler(node.SamplerDeps{Usage: w.node.Usage, Records: w.store, Log: w.log, Base: w.base, Metrics: w.deps.Metrics}); err != nil {
		return err
	}
	w.lifecycle = &lifecycle{usage: w.usage, store: w.store, dispatch: w.dispatch, engine: w.engine, node: w.node, placement: w.placement, log: w.log, now: now}
	if w.executions, err = execution.New(w.cfg.execution(), execution.Deps{
		Store: w.store, Blobs: w.deps.Blobs, Memory: w.deps.Memory, Staging: w.deps.Staging, Node: w.node, Sandboxes: w.lifecycle, Log: w.log, Now: now, Metrics: w.deps.Metrics,
		Denied: w.egress.Denied,
	}); err != nil {
		return err
	}
	w.reconciler, err = newReconciler(w)
	return err
}

// ID is the worker's id, new in each process.
func (w *Worker) ID() string { return w.id }

// Node is the identity of the worker's engine, after Start.
func (w *Worker) Node() string { return w.node.ID() }

// Start prepares the engine, reconciles records and containers, and takes jobs.
func (w *Worker) Start(ctx context.Context) error {
	w.started = w.now()
	if err := w.prepare(ctx); err != nil {
		return err
	}
	if err := w.reconciler.Run(ctx); err != nil { // an error with one sandbox does not stop the others
		w.log.WarnContext(ctx, "containers and records do not agree yet; they are compared again", "error", err)
	}
	if err := w.refreshStatus(ctx); err != nil { // the registration reports what could be read
		w.log.WarnContext(ctx, "not all of the node's status can be read; it is tried again", "error", err)
	}
	if err := w.listen(ctx); err != nil {
		return err
	}
	w.registered.Store(true)
	if err := w.beat(ctx); err != nil {
		return fmt.Errorf("register worker: %w", err)
	}
	cancels, err := w.store.Cancels(w.base) //nolint:contextcheck // it outlives Start
	if err != nil {
		return fmt.Errorf("listen for cancels: %w", err)
	}
	w.background.Go(func() { w.watchCancels(cancels) })
	if err := w.serve(); err != nil {
		return err
	}
	w.loop(statusEvery, w.metrics.counted(loopStatus, w.refreshStatus))
	w.loop(w.cfg.ReconcileEvery, w.metrics.counted(loopReconcile, w.reconciler.Run))
	w.loop(preloadEvery, w.metrics.counted(loopPreload, w.node.Preload))
	w.background.Go(func() { w.placement.RunPool(w.base) })
	w.log.InfoContext(ctx, "worker started", "worker_id", w.id, "node", w.node.ID(), "slots", w.cfg.Slots)
	return nil
}

// serve starts to take jobs and callbacks, each with handlers of their own.
func (w *Worker) serve() error {
	all := []queue.ServerConfig{{Queues: w.queues(), Concurrency: handlers(w.cfg.Slots), Handler: w.handle, Gate: w.placement.Accepts}}
	if w.deps.Callback != nil {
		all = append(all, queue.ServerConfig{Queues: map[string]int{farm.QueueCallbacks: 1}, Concurrency: callbackSlots, Handler: w.deliver})
	}
	for i, cfg := range all {
		server, err := w.deps.Listen(cfg)
		if err != nil {
			return fmt.Errorf("listen to queues: %w", err)
		}
		w.servers = append(w.servers, server)
		if i == 0 {
			w.wake.Store(&server) // the only one with a gate
		}
		if err := server.Start(); err != nil {
			return fmt.Errorf("take jobs: %w", err)
		}
	}
	return nil
}

// Stop stops taking jobs, waits for running ones for cfg.StopGrace, and leaves the others to the next worker: they keep running in their
// sandboxes. It may be called more than once, and without Start.
func (w *Worker) Stop() {
	w.stopOnce.Do(func() {
		close(w.places.closed)
		// Handlers run during the grace. Then their contexts end with node.ErrStopping, and they requeue their jobs.
		timer := time.AfterFunc(w.cfg.StopGrace, func() { w.stop(node.ErrStopping) })
		var stopping sync.WaitGroup
		for _, server := range w.servers {
			stopping.Go(server.Stop)
		}
		stopping.Wait()
		timer.Stop()
		if w.live != nil {
			w.live.Stop()
		}
		w.stop(node.ErrStopping)
		w.background.Wait()
		w.usage.Wait()
		w.executions.Wait()
		w.placement.Wait()
		w.node.Close()
		ctx, done := context.WithTimeout(context.Background(), retry.CommitTimeout) //nolint:forbidigo // Stop has no context
		defer done()
		if w.registered.Load() {
			_ = w.placement.UnlockPool(ctx) // it also expires on its own
			if err := w.store.RemoveWorker(ctx, w.id); err != nil {
				w.log.WarnContext(ctx, "worker was not removed from the records; its heartbeat expires", "worker_id", w.id, "error", err)
			}
			w.log.InfoContext(ctx, "worker stopped", "worker_id", w.id)
		}
	})
}

// wakeQueues makes the server ask the gate again.
func (w *Worker) wakeQueues() {
	if server := w.wake.Load(); server != nil {
		(*server).Wake()
	}
}

// prepare prepares the engine: its identity, capacity, GPUs, images and the agent's volume.
func (w *Worker) prepare(ctx context.Context) error {
	if err := w.node.Identify(ctx); err != nil {
		return err
	}
	if err := w.placement.PreparePool(); err != nil {
		return err
	}
	if err := w.beat(ctx); err != nil {
		return fmt.Errorf("renew the lease of the node: %w", err)
	}
	w.loop(heartbeatEvery, w.metrics.counted(loopHeartbeat, w.beat)) //nolint:contextcheck // it outlives Start
	if err := w.placement.Measure(ctx); err != nil {
		return err
	}
	if err := w.placement.FindGPUs(ctx); err != nil {
		return err
	}
	return w.node.Prepare(ctx, w.cfg.Images)
}

// queues returns the queues of jobs that this worker serves, with their weights.
func (w *Worker) queues() map[string]int {
	q := map[string]int{farm.QueueControl: 4, farm.NodeQueue(w.node.ID()): 4}
	gpu, cpu := w.placement.Queues()
	maps.Copy(q, gpu)
	if cpu {
		q[farm.QueueCPU] = 1
	}
	return q
}

// queueNames lists the queues that this worker serves, in order.
func (w *Worker) queueNames() []string {
	q := w.queues()
	if w.deps.Callback != nil {
		q[farm.QueueCallbacks] = 1
	}
	return slices.Sorted(maps.Keys(q))
}

// retry repeats a write while Redis or the object store do not answer.
func (w *Worker) retry(ctx context.Context, write func(context.Context) error) error {
	return retry.Writes{Limit: w.cfg.UploadRetry, Silent: w.deps.Blobs.Silent}.Do(ctx, write)
}

// loop calls f periodically until the worker stops.
func (w *Worker) loop(every time.Duration, f func(context.Context) error) {
	w.background.Go(func() {
		for retry.Sleep(w.base, every) == nil {
			if err := f(w.base); err != nil && w.base.Err() == nil {
				w.log.WarnContext(w.base, "a periodic step failed; it is tried again", "worker_id", w.id, "error", err)
			}
		}
	})
}

package worker

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Server is the queue's side that calls a handler for each task.
type Server interface {
	Start() error
	Stop()
	Wake() // look at the queues now: the gate may answer otherwise
}

// Deps are what a worker works with. All fields but Callbacks are needed.
type Deps struct {
	Store    *store.Store
	Dispatch *dispatch.Dispatcher
	Blobs    *blob.Store
	Engine   *engine.Engine
	Log      *slog.Logger
	// Listen makes the server for these queues, slots, handler and gate.
	Listen func(queue.ServerConfig) (Server, error)
	// Agent is the agent's binary for the engine, and its version.
	Agent func(arch string) (binary []byte, version string, err error)
	// UV is the installer for the engine, of the version uv.Version; nil: sandboxes install with what their image has.
	UV func(ctx context.Context, arch string) ([]byte, error)
	// Index answers installers in sandboxes whose network is "packages"; nil: they cannot install.
	Index http.Handler
	// BuildImage makes a sandbox image by its name.
	BuildImage func(ctx context.Context, name string, progress func(farm.Progress)) error
	// Callback delivers the finished job to its callback URL; nil: none are delivered here.
	Callback func(ctx context.Context, ref farm.Ref) error
	// Metrics is where the worker's figures are shown; nil: nowhere.
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
	blobs    *blob.Store
	engine   *engine.Engine
	deps     Deps
	log      *slog.Logger
	now      func() time.Time

	node   string // the engine's identity
	volume string // of the agent
	links  links
	ends   deadlines
	runs   runs
	room   room
	gpus   *gpus
	pool   pool
	silent silence
	seen   *metrics
	images imageCache
	epoch  epoch
	server Server
	wake   atomic.Pointer[Server] // the server, once there is one

	background sync.WaitGroup // loops and closings that outlive their handler
	stop       context.CancelCauseFunc
	base       context.Context //nolint:containedctx // the life of the loops, ended by Stop
	stopOnce   sync.Once
	started    time.Time
	registered bool
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
	base, stop := context.WithCancelCause(context.Background()) //nolint:forbidigo // the worker's life is Stop's to end
	w := &Worker{
		cfg: cfg, id: farm.NewID(farm.WorkerPrefix), deps: deps,
		store: deps.Store, dispatch: deps.Dispatch, blobs: deps.Blobs, engine: deps.Engine, log: deps.Log,
		now: time.Now, links: links{open: map[string]*link{}}, runs: runs{byJob: map[string]*run{}},
		stop: stop, base: base, pool: newPool(),
	}
	w.gpus = newGPUs(w.now, w.wakeQueues)
	w.room = room{smallest: farm.Capacity{MemoryMB: cfg.Limits.Memory.Min, CPUs: cfg.Limits.CPUs.Min}, now: w.now, wake: w.wakeQueues}
	var err error
	if w.seen, err = newMetrics(deps.Metrics, w); err != nil {
		return nil, err
	}
	w.links.broke, w.links.refused = w.seen.breaks.Inc, w.seen.dialErrors.Inc
	return w, nil
}

// ID is the worker's id, new in each process.
func (w *Worker) ID() string { return w.id }

// Node is the identity of the worker's engine, after Start.
func (w *Worker) Node() string { return w.node }

// Start readies the engine (identity, agent, images), brings records and containers together, and takes jobs.
func (w *Worker) Start(ctx context.Context) error {
	w.started = w.now()
	if err := w.prepare(ctx); err != nil {
		return err
	}
	if err := w.adopt(ctx); err != nil {
		return err
	}
	if err := w.reconcile(ctx); err != nil { // one sandbox that cannot be tidied up does not stop the others
		w.log.WarnContext(ctx, "containers and records do not agree yet; they are compared again", "error", err)
	}
	if err := w.beat(ctx); err != nil {
		return fmt.Errorf("register worker: %w", err)
	}
	w.registered = true
	cancels, err := w.store.Cancels(w.base) //nolint:contextcheck // it outlives the start
	if err != nil {
		return fmt.Errorf("listen for cancels: %w", err)
	}
	w.background.Go(func() { w.watchCancels(cancels) })
	server, err := w.deps.Listen(queue.ServerConfig{Queues: w.queues(), Concurrency: w.cfg.Slots, Handler: w.handle, Gate: w.gate})
	if err != nil {
		return fmt.Errorf("listen to queues: %w", err)
	}
	w.server = server
	w.wake.Store(&server)
	if err := server.Start(); err != nil {
		return fmt.Errorf("take jobs: %w", err)
	}
	w.loop(heartbeatEvery, w.seen.counted(loopHeartbeat, w.beat))
	w.loop(w.cfg.ReconcileEvery, w.seen.counted(loopReconcile, w.reconcile))
	w.background.Go(w.keepPool)
	w.log.InfoContext(ctx, "worker started", "worker_id", w.id, "node", w.node, "slots", w.cfg.Slots)
	return nil
}

// Stop takes no more jobs, lets the running ones end for a while, and leaves the rest to whoever comes next: they go on
// in their sandboxes. It waits, may be called again, and before Start.
func (w *Worker) Stop() {
	w.stopOnce.Do(func() {
		// The grace passes with the handlers alive; then their contexts end with errStopping, they leave their jobs
		// running in the records, and the next worker attaches to them.
		if w.server != nil {
			timer := time.AfterFunc(w.cfg.StopGrace, func() { w.stop(errStopping) })
			w.server.Stop()
			timer.Stop()
		}
		w.stop(errStopping)
		w.background.Wait()
		w.links.closeAll()
		ctx, done := context.WithTimeout(context.Background(), commitTimeout) //nolint:forbidigo // Stop has no context
		defer done()
		if w.registered {
			_ = w.store.Unlock(ctx, w.poolLock(), w.id) // it lapses by itself as well
			if err := w.store.RemoveWorker(ctx, w.id); err != nil {
				w.log.WarnContext(ctx, "worker did not sign off", "worker_id", w.id, "error", err)
			}
			w.log.InfoContext(ctx, "worker stopped", "worker_id", w.id)
		}
	})
}

// wakeQueues has the queues looked at now.
func (w *Worker) wakeQueues() {
	if server := w.wake.Load(); server != nil {
		(*server).Wake()
	}
}

func (w *Worker) queues() map[string]int {
	q := map[string]int{farm.QueueCPU: 1, farm.QueueControl: 4, farm.NodeQueue(w.node): 4}
	if w.deps.Callback != nil {
		q[queueCallbacks] = 1
	}
	maps.Copy(q, w.gpus.queues())
	if w.gpus.any() && !w.cfg.GPUTakesCPU {
		delete(q, farm.QueueCPU)
	}
	return q
}

// loop calls f again and again until the worker stops.
func (w *Worker) loop(every time.Duration, f func(context.Context) error) {
	w.background.Go(func() {
		for sleep(w.base, every) == nil {
			if err := f(w.base); err != nil && w.base.Err() == nil {
				w.log.WarnContext(w.base, "a periodic step did not succeed; it is tried again", "worker_id", w.id, "error", err)
			}
		}
	})
}

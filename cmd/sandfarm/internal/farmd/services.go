package farmd

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/sandfarm/sandfarm/images"
	"github.com/sandfarm/sandfarm/internal/agent/binary"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/relay"
	"github.com/sandfarm/sandfarm/scheduler"
	"github.com/sandfarm/sandfarm/worker"
	"github.com/sandfarm/sandfarm/worker/node"
	"github.com/sandfarm/sandfarm/worker/placement"
)

// queueGrace is how long the queue waits for handlers after the grace period of the worker, when they return.
const queueGrace = 10 * time.Second

// The Docker engine has all that an engine may have.
var (
	_ node.Checkpoints = (*engine.Engine)(nil)
	_ node.Counters    = (*engine.Engine)(nil)
	_ node.PortDialer  = (*engine.Local)(nil)
	_ placement.Host   = (*engine.Engine)(nil)
)

// newWorker makes the worker.
func (p *Parts) newWorker(e node.Engine, build imageBuilder, version string, callback func(context.Context, farm.Ref) error, progress func(farm.Progress)) (*worker.Worker, error) {
	cfg := p.Settings.Worker
	cfg.Version = version
	packages, err := p.openIndex()
	if err != nil {
		return nil, err
	}
	if err := p.metrics.worker(packages); err != nil {
		return nil, err
	}
	deps := worker.Deps{
		Metrics: p.metrics.registry, Tracer: p.tracer,
		Store: p.Store, Dispatch: p.Dispatch, Blobs: p.Blobs, Memory: p.work, Staging: p.staging, Engine: e, Log: p.Log, Agent: binary.Agent, Callback: callback,
		LiveAddress: func(listen string) (string, error) {
			network, address := p.Redis.Route()
			return relay.ListenAddress(listen, network, address)
		},
		UV: installer(packages), UVVersion: images.InstallerVersion, Index: packages.For, Egress: p.egress,
		Listen: func(c queue.ServerConfig) (worker.Server, error) {
			c.Logger, c.ShutdownTimeout, c.Hook = p.Log, cfg.StopGrace+queueGrace, p.metrics.redis.Hook()
			return queue.NewServer(p.Redis.Open, c)
		},
	}
	if build != nil {
		deps.BuildImage = func(ctx context.Context, name string, report func(farm.Progress)) error {
			if progress != nil {
				report = progress
			}
			_, there, err := build(ctx, name, report)
			p.metrics.image(there, err)
			return err
		}
	}
	return worker.New(cfg, deps)
}

// newScheduler makes the scheduler.
func (p *Parts) newScheduler() (*scheduler.Scheduler, error) {
	cfg := p.Settings.Scheduler
	cfg.Lifecycle = cfg.Lifecycle && p.Settings.S3.Endpoint != "" // the built-in S3 has no lifecycle rules
	return scheduler.New(cfg, scheduler.Deps{
		Pool: p.Store, Quotas: p.Store, Nodes: p.Store, End: p.Dispatch, Drains: p.Store, Fleet: p.Store,
		Records: p.Store, Ledger: p.Store, Jobs: p.Dispatch, Tasks: p.Queue, Blobs: p.Blobs, Log: p.Log, Metrics: p.metrics.registry,
	})
}

// haveAgent reports, before anything is started, that this program was built without an agent.
func haveAgent() error {
	_, _, err := binary.Agent(runtime.GOARCH)
	return err
}

// RunWorker runs a worker alone until ctx ends.
func RunWorker(ctx context.Context, s *Settings, version string) error {
	if err := haveAgent(); err != nil {
		return err
	}
	return withParts(ctx, s, "worker", version, func(p *Parts) error {
		e, build, err := s.workerEngine("", p.Log, p.metrics.engine)
		if err != nil {
			return err
		}
		defer func() { _ = e.Close() }()
		metrics, err := p.showMetrics(ctx, "")
		if err != nil {
			return err
		}
		defer metrics.Stop()
		w, err := p.newWorker(e, build, version, p.callback(nil), nil)
		if err != nil {
			return err
		}
		defer w.Stop()
		if err := w.Start(ctx); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
}

// RunScheduler runs a scheduler alone until ctx ends.
func RunScheduler(ctx context.Context, s *Settings, version string) error {
	return withParts(ctx, s, "scheduler", version, func(p *Parts) error {
		metrics, err := p.showMetrics(ctx, "")
		if err != nil {
			return err
		}
		defer metrics.Stop()
		sch, err := p.newScheduler()
		if err != nil {
			return err
		}
		defer sch.Stop()
		if err := sch.Start(ctx); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
}

func withParts(ctx context.Context, s *Settings, service, version string, run func(*Parts) error) error {
	counted, err := newMetrics(service, version)
	if err != nil {
		return err
	}
	p, err := open(ctx, s, s.Log.logger(), counted, false)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	return run(p)
}

// stopper is a running service.
type stopper interface{ Stop() }

// startError adds the name of a service to the error of its start.
func startError(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("start %s: %w", what, err)
}

// Package farmd assembles a farm: it reads the settings, opens Redis, S3 and the engine, and runs the services, each alone or
// all in one process (Up). It also has the checks of doctor and health, and the commands of the program that do all this (Add): up, down,
// api, worker, scheduler, doctor, image, config. They need Linux; on other systems the program has stubs that say so.
package farmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/dispatch"
	"github.com/sandfarm/sandfarm/internal/embedded"
	"github.com/sandfarm/sandfarm/internal/engine"
	"github.com/sandfarm/sandfarm/internal/queue"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/telemetry"
)

// startTimeout bounds the start of the built-in servers.
const startTimeout = 30 * time.Second

// Parts are the open connections of a process. Close closes them in the right order.
type Parts struct {
	Settings *Settings
	Log      *slog.Logger
	Redis    *RedisAddress
	Store    *store.Store
	Queue    *queue.Client
	Dispatch *dispatch.Dispatcher
	Blobs    *blob.Store
	links    *blob.Links    // what callers read of the object store
	Memory   *budget.Budget // for what this process holds for its callers
	work     *budget.Budget // for what a worker holds for jobs; requests hold Memory while they wait for those
	uploads  *budget.Budget // for the buffers of uploads to S3
	callers  *budget.Budget // for those of uploads that callers send
	staging  *budget.Budget // for output of jobs that run; never waited for
	egress   *budget.Budget // for connections of sandboxes to hosts; never waited for
	pages    int64          // memory for large pages of the package index that work has no room for, in bytes
	limits   budget.Limits  // on the memory of this process and of its machine
	// Persistent is false if Redis loses its data when it stops.
	Persistent bool

	metrics *metrics
	tracer  trace.TracerProvider // nil: no tracing
	closers []func() error
}

// open connects to Redis and S3. With builtin, as for an API and a worker in one process, it starts its own if the settings name none.
func open(ctx context.Context, s *Settings, log *slog.Logger, counted *metrics, builtin bool) (p *Parts, err error) {
	p = &Parts{Settings: s, Log: log, Persistent: true, metrics: counted}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	addThreads()
	shortenSlices()
	if err := p.openMemory(builtin); err != nil {
		return p, err
	}
	if err := p.openTracing(ctx); err != nil {
		return p, err
	}
	if err := p.openRedis(ctx, builtin); err != nil {
		return p, err
	}
	if err := p.openBlobs(ctx, builtin); err != nil {
		return p, err
	}
	rdb := p.Redis.Open()
	rdb.AddHook(counted.redis.Hook())
	p.closers = append(p.closers, rdb.Close)
	p.Store = store.New(rdb, queue.EnqueueLua(), store.Options{Limits: s.Limits, Logger: log, Documents: p.Blobs, Durability: p.durability()})
	p.closers = append(p.closers, p.Store.Close)
	p.Queue = queue.NewClient(rdb, log)
	p.Dispatch = dispatch.New(p.Store, p.Queue, s.Limits, log)
	if err := p.Store.Ping(ctx); err != nil {
		return p, fmt.Errorf("reach Redis: %w", err)
	}
	if err := p.Store.CheckDurability(ctx); err != nil {
		return p, err
	}
	return p, p.migrate(ctx)
}

// migrate brings the records in Redis to the format of this program.
func (p *Parts) migrate(ctx context.Context) error {
	from, err := p.Store.Migrate(ctx)
	if err != nil {
		return fmt.Errorf("migrate records: %w", err)
	}
	if from != store.Schema() {
		p.Log.InfoContext(ctx, "records migrated", "from_schema", from, "to_schema", store.Schema())
	}
	return nil
}

// durability is that of the settings. A Redis without a file loses everything when it stops, so nothing is waited for.
func (p *Parts) durability() store.Durability {
	if !p.Persistent {
		return ""
	}
	return store.Durability(p.Settings.Redis.Durability)
}

// Parts of the process's budget that the buffers of uploads, and output of jobs that run, have for themselves: a quarter each. Half of the first
// is for uploads that callers send.
// Connections of sandboxes to hosts may take an eighth more: they are charged for what they could hold, and rarely hold any of it.
const (
	uploadPart  = 4
	stagingPart = 4
	egressPart  = 8
)

// pagesMemory is the memory for large pages of the package index beside a budget of the size that the limits of the process ask for: a third of its
// limit. The largest pages of the public indexes fit into the half of that which a worker with 1 GiB has for one.
func pagesMemory(size int64) int64 { return size / 3 * 4 }

// openMemory makes the budgets of this process; both says that it is API and worker.
func (p *Parts) openMemory(both bool) error {
	var err error
	if p.limits, err = budget.ReadLimits(); err != nil {
		return err
	}
	size := p.limits.Size()
	p.pages = pagesMemory(size)
	if mb := p.Settings.MemoryBudget; mb > 0 {
		size = int64(mb) << 20
	}
	p.uploads = budget.New(size / uploadPart / 2)
	p.callers = budget.New(size / uploadPart / 2)
	p.staging = budget.New(size / stagingPart)
	p.egress = budget.New(size / egressPart)
	size -= size/uploadPart + size/stagingPart
	if !both {
		p.Memory = budget.New(size)
		p.work = p.Memory
		return telemetry.Register(p.metrics.registry, budget.Collectors(p.Memory)...)
	}
	p.Memory, p.work = budget.New(size/2), budget.New(size/2)
	return telemetry.Register(p.metrics.registry, budget.Collectors(p.Memory, p.work)...)
}

func (p *Parts) openRedis(ctx context.Context, builtin bool) error {
	if p.Settings.Redis.URL != "" {
		var err error
		p.Redis, err = ParseRedis(p.Settings.Redis.URL)
		return err
	}
	if !builtin {
		return errors.New("redis.url is not set (SANDFARM_REDIS_URL): a single service needs a Redis that it shares with the others; `sandfarm up` runs its own")
	}
	ctx, done := context.WithTimeout(ctx, startTimeout)
	defer done()
	r, err := embedded.StartRedis(ctx, embedded.RedisConfig{
		Dir: p.Settings.path("redis"), Logger: p.Log, MaxMemory: p.Settings.Redis.maxMemory(p.limits),
		SyncAlways: p.Settings.Redis.Durability == string(store.DurabilityAOF),
	})
	if err != nil {
		return fmt.Errorf("start Redis: %w", err)
	}
	p.closers = append(p.closers, r.Close)
	p.Redis = &RedisAddress{single: withTimeouts(&redis.Options{Network: r.Network(), Addr: r.Addr()})}
	p.Persistent = r.Persistent()
	if !p.Persistent && p.Settings.Redis.Durability == string(store.DurabilityAOF) {
		return errors.New("redis.durability is aof, but there is no redis-server in PATH, and the Redis inside this process keeps no file: install Redis 7.2 or newer, or set redis.durability to everysec")
	}
	return nil
}

// maxMemory is the limit of the built-in Redis in bytes; 0: none, since nothing is known of the machine.
func (s RedisSettings) maxMemory(l budget.Limits) int64 {
	if s.MaxMemory > 0 {
		return int64(s.MaxMemory) << 20
	}
	return min(cmp.Or(l.Group, l.Machine)/4, 2<<30)
}

// linkKey has the key of the farm's links once there is a store.
type linkKey struct{ of *Parts }

// LinkKey implements access.KeyStore.
func (k linkKey) LinkKey(ctx context.Context) ([]byte, error) { return k.of.Store.LinkKey(ctx) }

func (p *Parts) openBlobs(ctx context.Context, builtin bool) error {
	s := p.Settings.S3
	p.links = blob.NewLinks(access.ByteRate, access.ByteBurst)
	tokens := blob.Tokens(access.NewSigner(linkKey{p}, time.Now))
	if s.Endpoint == "" {
		if !builtin {
			return errors.New("s3.endpoint is not set (SANDFARM_S3_ENDPOINT): a single service needs an S3 service that it shares with the others; `sandfarm up` runs its own")
		}
		user, secret, err := embedded.LoadOrCreateCredentials(p.Settings.path("s3-credentials"))
		if err != nil {
			return fmt.Errorf("create S3 credentials: %w", err)
		}
		sctx, done := context.WithTimeout(ctx, startTimeout)
		defer done()
		server, err := embedded.StartS3(sctx, embedded.S3Config{
			Dir: p.Settings.path("s3"), Listen: s.Listen, AccessKey: user, SecretKey: secret, Link: p.links.Admit, Logger: p.Log,
		})
		if err != nil {
			return fmt.Errorf("start S3 on %s (s3.listen, SANDFARM_S3_LISTEN): %w", cmp.Or(s.Listen, embedded.S3Listen), err)
		}
		p.closers = append(p.closers, server.Close)
		s.Endpoint, s.AccessKey, s.SecretKey = server.Endpoint(), user, secret
		tokens = nil // it has signed all links itself, and admits them
	}
	blobs, err := blob.New(blob.Config{
		Endpoint: s.Endpoint, PublicURL: s.PublicURL, AccessKey: s.AccessKey, SecretKey: s.SecretKey, Bucket: s.Bucket, Region: s.Region,
		Uploads: p.uploads, Callers: p.callers, Tokens: tokens,
	})
	if err != nil {
		return fmt.Errorf("connect to S3: %w", err)
	}
	p.Blobs = blobs
	if err := blobs.EnsureBucket(ctx); err != nil {
		if builtin {
			return fmt.Errorf("create bucket: %w", err)
		}
		p.Log.WarnContext(ctx, "S3 does not answer yet", "error", err)
	}
	return nil
}

// engine connects to the Docker engine of the settings.
func (s *Settings) engine(log *slog.Logger) (*engine.Engine, error) {
	return s.observedEngine("", log, nil)
}

// observedEngine is engine with a namespace for settings that name none, and reports every call to observe.
func (s *Settings) observedEngine(namespace string, log *slog.Logger, observe func(string, time.Duration, error)) (*engine.Engine, error) {
	if s.Engine.Kind == kindKubernetes {
		return nil, errDockerOnly
	}
	if s.Engine.Namespace != "" {
		namespace = s.Engine.Namespace
	}
	if h := s.Engine.Host; h != "" {
		if _, err := url.Parse(h); err != nil {
			return nil, fmt.Errorf("engine.host %q is not a valid address", h)
		}
	}
	return engine.New(engine.Config{Host: s.Engine.Host, Runtime: s.Engine.Runtime, Namespace: namespace, Logger: log, Observe: observe})
}

// Close closes the connections in reverse order.
func (p *Parts) Close() error {
	var errs []error
	for i := len(p.closers) - 1; i >= 0; i-- {
		errs = append(errs, p.closers[i]())
	}
	p.closers = nil
	return errors.Join(errs...)
}

// path is a path in the data directory.
func (s *Settings) path(name string) string { return s.Data + string(os.PathSeparator) + name }

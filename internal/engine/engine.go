package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Timeouts of the calls. Each is several times what the call takes on a busy engine with slow disks; none is meant to be hit.
const (
	pingTimeout   = 5 * time.Second  // answers from memory: an engine that needs longer is as good as down
	readTimeout   = 15 * time.Second // lists and inspections wait for locks of containers that are just changing
	createTimeout = 60 * time.Second // makes a file system layer; 0.1 s as a rule, much more on a disk under load
	startTimeout  = 60 * time.Second // namespaces, cgroups and mounts; an engine under a burst starts one after the other
	removeTimeout = 60 * time.Second // waits for the kill and for the layer to be deleted
	copyTimeout   = 2 * time.Minute  // the agent's few MiB, possibly to a remote engine
	buildTimeout  = 30 * time.Minute // a large image over a slow line; also the bound for import and pull
)

// Config says which engine to use. The zero value is the local engine with its default runtime.
type Config struct {
	Host      string       // address, such as "unix:///var/run/docker.sock"; empty: DOCKER_HOST, or the default socket
	Runtime   string       // OCI runtime of sandboxes, such as "runsc"; empty: the engine's default
	Namespace string       // prefix of names and label of everything made here; empty: "sandfarm". Two farms on one engine need two
	Logger    *slog.Logger // nil: nothing is logged

	// Observe is told of every call with a fixed name, such as "start container"; streams count until they are open. Nil: nobody is told.
	Observe func(call string, took time.Duration, err error)
}

// DefaultNamespace is the namespace of a farm on which none is set.
const DefaultNamespace = "sandfarm"

// Engine is a connection to one Docker engine. It is safe for concurrent use.
type Engine struct {
	cli       *client.Client
	log       *slog.Logger
	runtime   string
	namespace string
	observe   func(call string, took time.Duration, err error)

	seccomp, seccompGPU string // profiles of sandboxes, and of those with a GPU

	fill sync.Mutex // one fill of the agent's volume at a time in this process

	mu    sync.Mutex
	quota *bool // verdict of the probe for storage quotas
	cpus  int   // cores of the engine, 0 while unknown

	nvidia bool // it has NVIDIA's runtime; known with the cores
}

// New makes an Engine. It does not call the engine: one that is down is found by the first call, or by Ping.
func New(cfg Config) (*Engine, error) {
	opts := []client.Opt{client.FromEnv, client.WithAPIVersionNegotiation()}
	if cfg.Host != "" {
		opts = append(opts, client.WithHost(cfg.Host))
	}
	cli, err := client.NewClientWithOpts(opts...)
	if err != nil {
		return nil, fmt.Errorf("make engine client: %w", err)
	}
	profile, err := seccompProfile(false)
	withGPU, gpuErr := seccompProfile(true)
	if err = errors.Join(err, gpuErr); err != nil {
		return nil, errors.Join(fmt.Errorf("make seccomp profile: %w", err), cli.Close())
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Engine{
		cli: cli, log: log, runtime: cfg.Runtime, seccomp: profile, seccompGPU: withGPU,
		namespace: cmp.Or(cfg.Namespace, DefaultNamespace), observe: cfg.Observe,
	}, nil
}

// Close lets go of idle connections. Streams that are open stay open.
func (e *Engine) Close() error {
	if err := e.cli.Close(); err != nil {
		return fmt.Errorf("close engine client: %w", err)
	}
	return nil
}

// Ping asks the engine for a sign of life; CodeUnavailable when there is none.
func (e *Engine) Ping(ctx context.Context) error {
	return e.call(ctx, pingTimeout, "ping engine", func(ctx context.Context) error {
		_, err := e.cli.Ping(ctx)
		return err
	})
}

// call runs one request with a timeout of its own and gives its error a code where it has one.
func (e *Engine) call(ctx context.Context, limit time.Duration, what string, request func(context.Context) error) error {
	inner, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	err := e.coded(ctx, what, request(inner))
	if e.observe != nil {
		e.observe(what, time.Since(began), err)
	}
	return err
}

// coded wraps an error of the client. The caller's own cancellation stays what it is; an engine that cannot be reached,
// breaks off or does not answer in time is CodeUnavailable.
func (e *Engine) coded(ctx context.Context, what string, err error) error {
	var netError net.Error
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, err)
	case cerrdefs.IsNotFound(err):
		return farm.Wrap(err, farm.CodeNotFound, "%s: the engine has no such thing", what)
	case cerrdefs.IsConflict(err):
		return farm.Wrap(err, farm.CodeConflict, "%s: the engine's state does not allow it", what)
	case client.IsErrConnectionFailed(err), errors.As(err, &netError), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), cerrdefs.IsUnavailable(err):
		return e.mute(fmt.Errorf("%s: %w", what, err))
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}

// mute is the error of an engine that does not answer. Callers of the farm have no use for its address; the log has.
func (e *Engine) mute(err error) error {
	return farm.Wrap(fmt.Errorf("%s: %w", e.cli.DaemonHost(), err), farm.CodeUnavailable, "The container engine does not answer. Try again in a moment.")
}

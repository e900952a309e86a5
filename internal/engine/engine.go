// Package engine is the farm's access to one Docker engine, and the only importer of the Docker client. It creates, starts, lists and
// removes the containers of sandboxes with a fixed hardened profile, opens streams into them, keeps the agent in a volume, and builds
// and imports images. It never copies files into or out of a container that has run user code, and never binds a path of the host
// into one. It knows nothing of jobs, Redis or HTTP.
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

// Timeouts of the calls. Each is several times the duration of the call on a busy engine with slow disks.
const (
	pingTimeout   = 5 * time.Second       // answered from memory: an engine that needs longer counts as down
	readTimeout   = 15 * time.Second      // lists and inspections wait for locks of containers that are changing
	createAgain   = 50 * time.Millisecond // between tries while another create or a removal holds the name
	createTimeout = 60 * time.Second      // creates a file system layer: usually 0.1 s, much longer on a loaded disk
	startTimeout  = 60 * time.Second      // namespaces, cgroups and mounts; during a burst an engine starts containers one by one
	removeTimeout = 60 * time.Second      // waits for the kill and for the layer to be deleted
	copyTimeout   = 2 * time.Minute       // the agent's few MiB, possibly to a remote engine
	buildTimeout  = 30 * time.Minute      // a large image over a slow line; also the bound for import and pull
)

// Config selects the engine. The zero value is the local engine with its default runtime.
type Config struct {
	Host      string       // address, such as "unix:///var/run/docker.sock"; empty: DOCKER_HOST, or the default socket
	Runtime   string       // OCI runtime of sandboxes, such as "runsc"; empty: the engine's default
	Namespace string       // prefix of names and label of everything made here; empty: "sandfarm". Two farms on one engine need two
	Logger    *slog.Logger // nil: nothing is logged

	// Observe is called after every call with a fixed name, such as "start container"; a stream counts until it is open. May be nil.
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
	quota *bool // result of the probe for storage quotas; nil: not probed yet
	cpus  int   // cores of the engine, 0 while unknown

	volumes map[string][]string // of the images that were listed last, by id

	cdi map[string]string // names of GPUs in CDI, by id; nil: OfferGPUs found none

	nvidia   bool   // it has NVIDIA's runtime; known once cpus is
	standard string // the engine's default runtime; known once cpus is

	timestamps bool         // a network namespace has a setting for timestamps of its own; known once cpus is
	parent     parentCgroup // see LimitSandboxes; without a name: the engine's default
}

// New creates an Engine. It does not connect: the first call, or Ping, finds out whether the engine answers.
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

// Close closes idle connections. Open streams stay open.
func (e *Engine) Close() error {
	if err := e.cli.Close(); err != nil {
		return fmt.Errorf("close engine client: %w", err)
	}
	return nil
}

// Connect opens a connection to the engine, for a proxy.
func (e *Engine) Connect(ctx context.Context) (net.Conn, error) {
	conn, err := e.cli.Dialer()(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to engine: %w", err)
	}
	return conn, nil
}

// Ping asks the engine whether it answers; CodeUnavailable when it does not.
func (e *Engine) Ping(ctx context.Context) error {
	return e.call(ctx, pingTimeout, "ping engine", func(ctx context.Context) error {
		_, err := e.cli.Ping(ctx)
		return err
	})
}

// call runs one request with its own timeout and gives its error a code.
func (e *Engine) call(ctx context.Context, limit time.Duration, what string, request func(context.Context) error) error {
	inner, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	start := time.Now()
	err := e.coded(ctx, what, request(inner))
	if e.observe != nil {
		e.observe(what, time.Since(start), err)
	}
	return err
}

// coded wraps an error of the client. A cancellation by the caller stays what it is; an engine that cannot be reached, breaks the
// connection or does not answer in time is CodeUnavailable.
func (e *Engine) coded(ctx context.Context, what string, err error) error {
	var netError net.Error
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, err)
	case cerrdefs.IsNotFound(err):
		return farm.Wrap(err, farm.CodeNotFound, "%s: the engine does not have it", what)
	case cerrdefs.IsConflict(err):
		return farm.Wrap(err, farm.CodeConflict, "%s: the engine's state does not allow it", what)
	case client.IsErrConnectionFailed(err), errors.As(err, &netError), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), cerrdefs.IsUnavailable(err):
		return e.unavailable(fmt.Errorf("%s: %w", what, err))
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}

// unavailable is the error of an engine that does not answer. The engine's address is for the log, not for callers of the farm.
func (e *Engine) unavailable(err error) error {
	return farm.Wrap(fmt.Errorf("%s: %w", e.cli.DaemonHost(), err), farm.CodeUnavailable, "The container engine does not answer. Try again in a moment.")
}

// Name is the name of a sandbox's container. It is derived from the sandbox's id, so a container can be found and removed by the record
// alone.
func (e *Engine) Name(sandboxID string) string { return e.namespace + "-" + sandboxID }

// The labels of everything that the farm makes in an engine.
const (
	LabelNamespace = "sandfarm.namespace" // of the farm: Config.Namespace
	LabelRole      = "sandfarm.role"      // one of the roles
	LabelSandbox   = "sandfarm.sandbox"   // id of the sandbox
	LabelTenant    = "sandfarm.tenant"    // its owner
	LabelNode      = "sandfarm.node"      // the node that made it; on the node's volume: the node's id
	LabelDeadline  = "sandfarm.deadline"  // when it must be gone, in seconds since 1970
	// LabelGeneration is the generation of the sandbox that a container was made for; without it, it is of the first.
	LabelGeneration = "sandfarm.generation"
	LabelUID        = "sandfarm.uid"  // user id of everything in it
	LabelGPUs       = "sandfarm.gpus" // ids of its GPUs, separated by commas
	LabelFill       = "sandfarm.fill" // random mark that ties an agent volume to the volume which says that its fill is complete

	LabelImage       = "sandfarm.image"       // name of a sandbox image
	LabelLanguages   = "sandfarm.languages"   // its languages, separated by commas
	LabelDescription = "sandfarm.description" // a sentence about it
	LabelHash        = "sandfarm.hash"        // hash of what it was built from
)

// The roles.
const (
	RoleSandbox = "sandbox" // container of a sandbox
	RoleHelper  = "helper"  // container that is created for a moment and never started
	RoleBuild   = "build"   // container whose network the steps of a build share
	RoleAgent   = "agent"   // volume with the agent, or the volume which says that it is complete
	RoleNode    = "node"    // volume that holds the node's id
	RoleNote    = "note"    // volume with labels that a sandbox got after its container was created
)

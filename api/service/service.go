// Package service implements the farm's verbs without HTTP: it validates requests and turns them into jobs. The REST
// routes and the MCP tools are thin layers over it. It owns all validation, waiting for jobs, staging of uploads and
// links to artifacts. It runs no code and uses no engine: jobs go to the dispatcher, records come from the store.
package service

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
	"github.com/sandfarm/sandfarm/internal/scale"
	"github.com/sandfarm/sandfarm/internal/secret"
	"github.com/sandfarm/sandfarm/internal/store"
)

// Submitter submits and cancels jobs.
type Submitter interface {
	Submit(ctx context.Context, a store.Accept) (store.Accepted, error)
	Cancel(ctx context.Context, ref farm.Ref) (*farm.Job, error)
}

// Jobs reads the records of jobs and their events.
type Jobs interface {
	Job(ctx context.Context, ref farm.Ref) (*farm.Job, error)
	Reload(ctx context.Context, job *farm.Job, watch *store.Watch) (*farm.Job, error)
	Shown(ctx context.Context, ref farm.Ref) (*farm.Job, error)
	WholeRequest(ctx context.Context, job farm.Ref) (*farm.Request, error)
	Wait(ctx context.Context, job *farm.Job) (store.Wait, error)
	QueuePosition(ctx context.Context, job *farm.Job) (store.QueuePosition, error)
	Jobs(ctx context.Context, tenant string, f store.JobFilter, p store.Page) ([]*farm.Job, string, error)
	Callbacks(ctx context.Context, tenant string, limit int) ([]farm.Ref, error)
	QueuedAndRunning(ctx context.Context, tenant string, most int) ([]farm.Job, error)
	QueuedCells(ctx context.Context, sandbox farm.Ref, session string) ([]farm.Ref, error)
	Events(ctx context.Context, ref farm.Ref, after string) (store.EventBatch, error)
	NewJobID() string
	Watch(ctx context.Context, jobID string) (*store.Watch, error)
}

// Sandboxes are the records of sandboxes.
type Sandboxes interface {
	Sandbox(ctx context.Context, ref farm.Ref) (*farm.Sandbox, error)
	Sandboxes(ctx context.Context, tenant string, f store.SandboxFilter, p store.Page) ([]*farm.Sandbox, string, error)
	NodesOf(ctx context.Context, tenant string) (map[string]string, error)
	OpenRefs(ctx context.Context) ([]farm.Ref, error)
	UpdateSandbox(ctx context.Context, ref farm.Ref, p store.SandboxPatch) (*farm.Sandbox, error)
	// SandboxSecrets are sealed; nil: it has none, or they are lost.
	SandboxSecrets(ctx context.Context, ref farm.Ref) ([]byte, error)
	Egress(ctx context.Context, ref farm.Ref, after string, limit int) ([]farm.EgressEntry, bool, error)
}

// Artifacts are the records of artifacts.
type Artifacts interface {
	Artifact(ctx context.Context, ref farm.Ref) (*farm.Artifact, error)
	Artifacts(ctx context.Context, tenant string, f store.ArtifactFilter, p store.Page) ([]*farm.Artifact, string, error)
	ArtifactsOfJob(ctx context.Context, job farm.Ref) ([]farm.Artifact, error)
	JobStates(ctx context.Context, tenant string, ids []string) (map[string]farm.JobState, error)
	DeleteArtifacts(ctx context.Context, artifacts []farm.Artifact) (int, error)
}

// Packages reads which job installs which package.
type Packages interface {
	PackageJobs(ctx context.Context, sandbox farm.Ref, names ...string) (map[string]string, error)
}

// Fleet lists the live workers, their images, what happened to them, and what became of jobs in the last hour.
type Fleet interface {
	Workers(ctx context.Context) ([]farm.Worker, error)
	FleetEvents(ctx context.Context, limit int) ([]farm.FleetEvent, error)
	Activity(ctx context.Context) ([]farm.Minute, error)
	OfferedImages(ctx context.Context) ([]farm.Image, error)
	Ping(ctx context.Context) error
}

// Waiting reads what GET /v1/scale needs beside the workers.
type Waiting interface {
	WaitingCreates(ctx context.Context, queue string, before time.Time, limit int) (store.WaitingCreates, error)
	CountOpenOn(ctx context.Context, nodes ...string) (map[string]int, error)
}

// Pool claims members of the warm pool.
type Pool interface {
	ClaimMember(ctx context.Context, c store.MemberClaim) (*store.Member, error)
	ReturnMember(ctx context.Context, id, tenant string) error
}

// Store is everything that the service reads; *store.Store implements it.
type Store interface {
	Jobs
	Sandboxes
	Artifacts
	Packages
	Fleet
	Waiting
	Pool
	Drains
	Keys
	Audit
	Tenants
	Links
	Uploads
}

// Uploads counts the bytes of staged uploads, and of copies of files for their readers, against a tenant's quota.
type Uploads interface {
	KeepUploads(ctx context.Context, job farm.Ref, bytes int64) error
	KeepCopy(ctx context.Context, job farm.Ref, size int64, linked time.Duration) error
}

// Links has the key that signs links to ports.
type Links interface {
	LinkKey(ctx context.Context) ([]byte, error)
	EndSession(ctx context.Context, id string, keep time.Duration) error
	SessionEnded(ctx context.Context, id string) (bool, error)
}

// Keys are the API keys that were made at run time.
type Keys interface {
	access.KeySource
	CreateKey(ctx context.Context, sum store.KeySum, key farm.Key) error
	DeleteKey(ctx context.Context, id string) (farm.Key, error)
	Keys(ctx context.Context) ([]farm.Key, error)
}

// Audit is who asked for what.
type Audit interface {
	AppendAudit(ctx context.Context, entries []farm.AuditEntry) error
	Audit(ctx context.Context, tenant string, created store.TimeRange, p store.Page) ([]farm.AuditEntry, string, error)
}

// Queues reports the backlog of queues.
type Queues interface {
	Depths(ctx context.Context) ([]farm.QueueDepth, error)
}

// Blobs is the object store.
type Blobs interface {
	Put(ctx context.Context, key string, r io.Reader, size int64, o blob.PutOptions) (blob.Info, error)
	Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, blob.Info, error)
	Delete(ctx context.Context, keys ...string) error
	Presign(ctx context.Context, key string, o blob.PresignOptions) (string, error)
	Ping(ctx context.Context) error
}

// Resolver finds the addresses of a host; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Deps are the dependencies of the service. All but Submitter, Store, Queues and Blobs have defaults.
type Deps struct {
	Submitter Submitter
	Store     Store
	Queues    Queues
	Blobs     Blobs
	Memory    *budget.Budget                   // for answers that are read from the store; nil: without limit
	Resolver  Resolver                         // default net.DefaultResolver
	Agents    func(*farm.Sandbox) relay.Agent  // over the live path; nil: processes are refused
	Logger    *slog.Logger                     // default: nothing is logged
	Now       func() time.Time                 // default time.Now
	Accepted  func(context.Context, *farm.Job) // called for every accepted job; default: nothing
	Canceled  func(context.Context, *farm.Job) // called for every cancel of a job; default: nothing
	Refused   func(quota farm.QuotaName)       // called for every job that a quota refused; default: nothing
	// More counts further requests of a tenant, which one request holds, and says how many are admitted, and if these are fewer why; default: all are.
	More   func(ctx context.Context, tenant string, requests int) (int, error)
	Pooled func(hit bool) // called for every create that asked the warm pool for a sandbox; default: nothing
}

// Options are the service's settings.
type Options struct {
	Limits farm.Limits // zero value: farm.DefaultLimits
	// AllowPrivateCallbacks allows callback_url to point to private addresses. Default false.
	AllowPrivateCallbacks bool
	// SettingsKeys are the API keys of the settings. They are listed with the others, and cannot be revoked.
	SettingsKeys []farm.Key
	// Allow is what callers may allow to their sandboxes; empty: the network allowlist is not enabled.
	Allow []farm.HostRule
	// Secrets seal the secrets of sandboxes; nil: there can be none.
	Secrets *secret.Keys
}

// Service implements the farm's verbs. It is safe for concurrent use.
type Service struct {
	Deps
	limits   farm.Limits
	wire     wire.Limits
	options  Options
	images   Shared[[]farm.Image]
	nodes    Shared[nodeFacts]
	needs    Shared[[]scale.Need]
	lists    tenantLists
	ready    readiness
	draining chan struct{}
	drain    sync.Once
}

// New makes a service. It does no I/O.
func New(deps Deps, o Options) *Service {
	if deps.Resolver == nil {
		deps.Resolver = net.DefaultResolver
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Accepted == nil {
		deps.Accepted = func(context.Context, *farm.Job) {}
	}
	if deps.Canceled == nil {
		deps.Canceled = func(context.Context, *farm.Job) {}
	}
	if deps.Refused == nil {
		deps.Refused = func(farm.QuotaName) {}
	}
	if deps.More == nil {
		deps.More = func(_ context.Context, _ string, requests int) (int, error) { return requests, nil }
	}
	if deps.Pooled == nil {
		deps.Pooled = func(bool) {}
	}
	if o.Limits == (farm.Limits{}) {
		o.Limits = farm.DefaultLimits()
	}
	s := &Service{Deps: deps, limits: o.Limits, wire: limitsOf(o.Limits), options: o, draining: make(chan struct{})}
	s.images.Pause, s.nodes.Pause = readPause, readPause
	return s
}

// Drain ends every wait and every event stream at once, so that a server can stop. It may be called again.
func (s *Service) Drain() { s.drain.Do(func() { close(s.draining) }) }

// Limits are the limits as callers see them.
func (s *Service) Limits() wire.Limits { return s.wire }

// Bounds are the limits in the domain's type.
func (s *Service) Bounds() farm.Limits { return s.limits }

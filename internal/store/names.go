package store

import (
	"github.com/sandfarm/sandfarm/internal/store/db"
	"github.com/sandfarm/sandfarm/internal/store/jobs"
	"github.com/sandfarm/sandfarm/internal/store/nodes"
	"github.com/sandfarm/sandfarm/internal/store/sandboxes"
	"github.com/sandfarm/sandfarm/internal/store/tenants"
)

// Callers import this package alone: it has the names of the types of those that it puts together.

// Of all packages.
type (
	Options    = db.Options
	Durability = db.Durability
	Page       = db.Page
	TimeRange  = db.TimeRange
)

// Of jobs.
type (
	Accept         = jobs.Accept
	Accepted       = jobs.Accepted
	Idempotency    = jobs.Idempotency
	Claim          = jobs.Claim
	Route          = jobs.Route
	Requeue        = jobs.Requeue
	Finish         = jobs.Finish
	Ended          = jobs.Ended
	Cancels        = jobs.Cancels
	EventBatch     = jobs.EventBatch
	Watch          = jobs.Watch
	JobFilter      = jobs.JobFilter
	ArtifactFilter = jobs.ArtifactFilter
	QueuePosition  = jobs.QueuePosition
	WaitingCreates = jobs.WaitingCreates
	Wait           = jobs.Wait
)

// Of sandboxes.
type (
	Move          = sandboxes.Move
	SandboxPatch  = sandboxes.SandboxPatch
	SealedSecrets = sandboxes.SealedSecrets
	SandboxFilter = sandboxes.SandboxFilter
	EgressAppend  = sandboxes.EgressAppend
)

// Of nodes.
type (
	NodeLease      = nodes.NodeLease
	NodeCapacity   = nodes.NodeCapacity
	ReserveRequest = nodes.ReserveRequest
	Reservation    = nodes.Reservation
	GPUs           = nodes.GPUs
	GPULease       = nodes.GPULease
	GPURequest     = nodes.GPURequest
	Member         = nodes.Member
	MemberState    = nodes.MemberState
	MemberClaim    = nodes.MemberClaim
	FleetNote      = nodes.FleetNote
)

// Of tenants.
type (
	KeySum       = tenants.KeySum
	KeySet       = tenants.KeySet
	TenantChange = tenants.TenantChange
	TenantLists  = tenants.TenantLists
	TenantHosts  = tenants.TenantHosts
	Drift        = tenants.Drift
	Admitted     = tenants.Admitted
	Usage        = tenants.Usage
	Sample       = tenants.Sample
	Stored       = tenants.Stored
	StoredDrift  = tenants.StoredDrift
	JobMemory    = tenants.JobMemory
	Forgotten    = tenants.Forgotten
	Trimmed      = tenants.Trimmed
)

// Numbers of the packages.
const (
	DurabilityEverySec = db.DurabilityEverySec
	DurabilityAOF      = db.DurabilityAOF
	DurabilityReplica  = db.DurabilityReplica
	InlineBytes        = db.InlineBytes
	MaxPlace           = jobs.MaxPlace
	ScanStretch        = db.ScanStretch

	EndEventBytes = jobs.EndEventBytes
	ArtifactGrace = jobs.ArtifactGrace

	HeartbeatTTL   = nodes.HeartbeatTTL
	MemberStarting = nodes.MemberStarting
	MemberIdle     = nodes.MemberIdle
	MemberClaimed  = nodes.MemberClaimed

	RenewConnectionsEvery = tenants.RenewConnectionsEvery
)

// Errors to check with errors.Is.
var (
	ErrNotClaimable   = db.ErrNotClaimable
	ErrFenced         = db.ErrFenced
	ErrMove           = db.ErrMove
	ErrNoAnswer       = db.ErrNoAnswer
	ErrDocumentGone   = db.ErrDocumentGone
	ErrCanceled       = jobs.ErrCanceled
	ErrSecretsChanged = sandboxes.ErrSecretsChanged
	ErrNoMember       = nodes.ErrNoMember
)

// NewKeySet makes an empty set, for sources of keys other than a Store.
func NewKeySet(version string) KeySet { return tenants.NewKeySet(version) }

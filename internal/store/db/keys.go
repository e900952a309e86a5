package db

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// This file has every key of the store, for Go and for the scripts. Their names are stored data and never change, so some are older than the
// words of the code.
//
// A slot is the hash tag of keys that one script may touch together: the name of a tenant, or one of these.
const (
	SlotCapacity = "room"        // reservations and GPUs of all nodes
	SlotNodes    = "nodes"       // the life of nodes
	SlotPool     = "pool"        // the warm pool
	SlotFleet    = "fleet"       // events of the fleet
	SlotKeys     = "farm:keys"   // API keys; the name of a tenant has no colon
	SlotLink     = "farm:link"   // links to ports, and sessions of browsers
	SlotLive     = "farm:live"   // the live path
	SlotAudit    = "farm:audit"  // what the audit has of all tenants
	SlotNobody   = "farm:nobody" // the audit of requests without a valid key
)

// Kind is a kind of keys of a slot: one for each id.
type Kind string

// The kinds of keys of a tenant.
const (
	KeyJob         Kind = "job"     // hash: the record of a job
	KeyRequest     Kind = "req"     // string: the request of an unfinished job
	KeyCheckpoint  Kind = "cp"      // string: the checkpoint of a running job
	KeyEvents      Kind = "ev"      // stream: the newest events of a job
	KeySegments    Kind = "seg"     // list: the names of the documents with the events of a job before those
	KeyManifest    Kind = "mf"      // hash: the artifacts of a job
	KeyIdempotency Kind = "idem"    // hash: the job of an idempotency key, by its SHA-256
	KeySandbox     Kind = "sbx"     // hash: the record of a sandbox
	KeyFIFO        Kind = "line"    // list: the jobs of a sandbox in order
	KeyUnfinished  Kind = "osj"     // sorted set: the unfinished jobs of a sandbox
	KeyJobsOf      Kind = "sj"      // sorted set: the jobs of a sandbox that are not hidden
	KeyManifestsOf Kind = "mfbox"   // sorted set: the jobs of a sandbox that have artifacts
	KeyStops       Kind = "stops"   // hash: the unfinished interrupts and restarts of a sandbox, and which are alike
	KeyPackages    Kind = "pkg"     // hash: the last job that installed each package in a sandbox
	KeySecrets     Kind = "secrets" // string: the sealed secrets of a sandbox
	KeyEgress      Kind = "egress"  // stream: the log of a sandbox's connections
	KeyOnNode      Kind = "on"      // set: the open sandboxes on a node; the node '' has those that are closing without one
	KeySlots       Kind = "out"     // sorted set: the jobs that hold a slot of a queue share, see shareOf
	KeyParked      Kind = "held"    // sorted set: the jobs that are parked until a slot of a queue share is free
	KeyUsage       Kind = "usage"   // hash: what the tenant used in a day
)

// The kinds of keys of the farm, with their slots.
const (
	KeyReservations Kind = "node"    // SlotCapacity, hash: the reservations on a node
	KeyGPUs         Kind = "gpus"    // SlotCapacity, hash: the leases of a node's GPUs
	KeyGPUFirst     Kind = "gpuhold" // SlotCapacity, string: the sandbox that goes first for a node's GPUs
	KeyStarts       Kind = "begun"   // SlotCapacity, list: when the last creates of a queue got their reservations
	KeyTenantsOf    Kind = "tenants" // SlotNodes, set: the tenants that have, or had, sandboxes on a node
	KeyMember       Kind = "m"       // SlotPool, hash: a member
	KeyIdleMembers  Kind = "idle"    // SlotPool, sorted set: the idle members of a kind by when they were ready
	KeyMembersOf    Kind = "node"    // SlotPool, set: the members on a node
	KeyClaims       Kind = "claims"  // SlotPool, hash: how many members of a kind each tenant that asked has got, by kind and minute
	KeyEndedSession Kind = "ended"   // SlotLink, string: a session of a browser was ended
)

// Index is a key of which a slot has only one.
type Index string

// The indexes of a tenant.
const (
	IndexSequence      Index = "seq"       // number: the last place in the lists
	IndexOpenJobs      Index = "open"      // sorted set: the unfinished jobs
	IndexJobs          Index = "jobs"      // sorted set: the jobs that are not hidden
	IndexActive        Index = "act"       // set: the jobs that count against max_running: those with a slot of a queue and those that run, unless they are inline
	IndexParkedShares  Index = "holds"     // set: the queue shares that have parked jobs
	IndexCallbacks     Index = "callbacks" // sorted set: the finished jobs whose callback is not delivered
	IndexManifests     Index = "mfs"       // sorted set: the jobs that have artifacts
	IndexManifestEnds  Index = "mfexp"     // sorted set: these jobs by when their last artifact expires
	IndexOpenSandboxes Index = "openboxes" // sorted set: the sandboxes that are not final
	IndexSandboxes     Index = "boxes"     // sorted set: all sandboxes
	IndexDeadlines     Index = "due"       // sorted set: the open sandboxes by their deadlines
	IndexNodes         Index = "nodes"     // set: the nodes with open sandboxes
	IndexUse           Index = "use"       // hash: what open sandboxes have together: mem (MiB), mcpu (thousandths of a core), gpus
	IndexQuotas        Index = "quota"     // hash: the tenant's own quotas and lists
	IndexRate          Index = "rate"      // number: when all requests that were admitted would be over if they came evenly
	IndexConnections   Index = "conn"      // sorted set: the requests that are served, by the ends of their leases
	IndexMemory        Index = "mem"       // hash: the bytes of jobs and sandboxes in Redis: unfinished, finished
	IndexEnded         Index = "ended"     // sorted set: finished jobs and ended sandboxes with their bytes, by when their records expire, but those of the next two
	IndexNeeded        Index = "needed"    // sorted set: the ended sandboxes whose container may still run
	IndexOwed          Index = "owed"      // sorted set: finished jobs whose callback is not delivered, once they were in the way of others that may go
	IndexStored        Index = "stored"    // hash: the bytes in the object store: bytes, artifacts, reserved, kept; and manifests, of the lists of artifacts in Redis
	IndexDocuments     Index = "docs"      // sorted set: the records with documents, and staged uploads, by when those are removed
	IndexKept          Index = "kept"      // hash: what each entry of that index counts, in bytes
	IndexWalk          Index = "walk"      // hash: the sums and places of a repair of what is stored
	IndexWalked        Index = "walked"    // set: the documents that such a repair has counted
	IndexAudit         Index = "audit"     // stream: the audit; requests without a valid key have the slot of Nobody
	IndexConfirm       Index = "confirm"   // string: written so that it can be waited for, see Durability
)

// The indexes of the farm, with their slots.
const (
	IndexCapacities  Index = "nodes"       // SlotCapacity, hash: what each node has, and what of it is reserved
	IndexFirst       Index = "hold"        // SlotCapacity, string: the sandbox that goes first for memory and cores
	IndexLeases      Index = "leases"      // SlotNodes, sorted set: the leases of nodes by when they were renewed
	IndexChecked     Index = "checked"     // SlotNodes, number: when the leases were last checked
	IndexDrains      Index = "drains"      // SlotNodes, hash: the drains by node, beside the leases, so that who renews one learns of its drain
	IndexPoolNodes   Index = "nodes"       // SlotPool, set: the nodes that have members
	IndexFleetSeen   Index = "seen"        // SlotFleet, hash: what is remembered of the fleet by subject
	IndexFleetEvents Index = "events"      // SlotFleet, stream: the events of the fleet
	IndexKeyRecords  Index = "docs"        // SlotKeys, hash: API keys by their SHA-256
	IndexKeyIDs      Index = "ids"         // SlotKeys, hash: these SHA-256 by the ids of the keys
	IndexKeyUses     Index = "used"        // SlotKeys, hash: when keys were used last, by id
	IndexKeyVersion  Index = "version"     // SlotKeys, string: changes with every new or deleted key
	IndexLinkKey     Index = "key"         // SlotLink, string: the key that signs links to ports
	IndexAuthorities Index = "authorities" // SlotLive, string: the authorities of the live path
	IndexAudited     Index = "tenants"     // SlotAudit, set: the tenants that the audit has entries of
)

// FarmKey is a key of the farm outside of slots, or the beginning of one.
type FarmKey string

// The keys of the farm outside of slots.
const (
	FarmTenants  FarmKey = "tenants"  // set: every tenant that has had a job or a quota
	FarmWorkers  FarmKey = "workers"  // set: the ids of workers
	FarmWorker   FarmKey = "worker:"  // string: the registration of a worker
	FarmActivity FarmKey = "activity" // hash: the minutes of the last hour by worker
	FarmSchema   FarmKey = "schema"   // number: the version of the stored format
	FarmLock     FarmKey = "lock:"    // string: the owner of a lock
	FarmCancel   FarmKey = "cancel"   // channel: cancels of jobs, and changes that a sandbox's worker must learn
	FarmWatch    FarmKey = "w:"       // channel: changes of a job
)

// Key names a key of a slot.
func (d *DB) Key(slot string, kind Kind, id string) string {
	return d.prefix + "{" + slot + "}:" + string(kind) + ":" + id
}

// Index names a key of which a slot has only one; "" is what all keys of the slot begin with.
func (d *DB) Index(slot string, name Index) string {
	return d.prefix + "{" + slot + "}:" + string(name)
}

// Farm names a key outside of slots. id follows those that end with a colon.
func (d *DB) Farm(key FarmKey, id string) string { return d.prefix + string(key) + id }

// luaKeys defines the names of keys in scripts: functions of an id, and constants. P begins the keys of the script's slot, G all keys of the farm,
// and NOW is the time in microseconds.
func luaKeys() string {
	var b strings.Builder
	b.WriteString("local P, G, NOW = KEYS[1], ARGV[1], ARGV[2]\n\nlocal call = redis.call\n\n")
	kinds := map[string]Kind{
		"jobKey": KeyJob, "requestKey": KeyRequest, "checkpointKey": KeyCheckpoint, "eventsKey": KeyEvents, "segmentsKey": KeySegments,
		"manifestKey": KeyManifest, "idempotencyKey": KeyIdempotency, "sandboxKey": KeySandbox, "fifoKey": KeyFIFO, "unfinishedKey": KeyUnfinished,
		"jobsOfKey": KeyJobsOf, "manifestsOfKey": KeyManifestsOf, "stopsKey": KeyStops, "packagesKey": KeyPackages, "secretsKey": KeySecrets,
		"egressKey": KeyEgress, "onNodeKey": KeyOnNode, "slotsKey": KeySlots, "parkedKey": KeyParked, "usageKey": KeyUsage,
		"reservationsKey": KeyReservations, "gpusKey": KeyGPUs, "gpuFirstKey": KeyGPUFirst, "startsKey": KeyStarts, "memberKey": KeyMember,
		"idleKey": KeyIdleMembers, "membersOfKey": KeyMembersOf, "claimsKey": KeyClaims,
	}
	for _, name := range slices.Sorted(maps.Keys(kinds)) { // each process must make the same text
		fmt.Fprintf(&b, "local function %s(id) return P .. '%s:' .. id end\n\n", name, kinds[name])
	}
	indexes := map[string]Index{
		"SEQUENCE": IndexSequence, "OPEN_JOBS": IndexOpenJobs, "JOB_LIST": IndexJobs, "ACTIVE": IndexActive,
		"PARKED_SHARES": IndexParkedShares, "CALLBACKS": IndexCallbacks, "MANIFESTS": IndexManifests, "MANIFEST_ENDS": IndexManifestEnds,
		"OPEN_SANDBOXES": IndexOpenSandboxes, "SANDBOX_LIST": IndexSandboxes, "DEADLINES": IndexDeadlines, "NODES": IndexNodes,
		"USE": IndexUse, "OWN_QUOTAS": IndexQuotas, "RATE": IndexRate, "CONNECTIONS": IndexConnections,
		"MEMORY": IndexMemory, "ENDED": IndexEnded, "NEEDED": IndexNeeded, "OWED": IndexOwed, "STORED": IndexStored, "DOCUMENTS": IndexDocuments,
		"KEPT": IndexKept, "WALK": IndexWalk, "WALKED": IndexWalked, "CAPACITIES": IndexCapacities,
		"FIRST": IndexFirst, "LEASES": IndexLeases, "CHECKED": IndexChecked, "DRAINS": IndexDrains,
		"POOL_NODES": IndexPoolNodes, "FLEET_SEEN": IndexFleetSeen, "FLEET_EVENTS": IndexFleetEvents, "KEY_RECORDS": IndexKeyRecords,
		"KEY_IDS": IndexKeyIDs, "KEY_USES": IndexKeyUses, "KEY_VERSION": IndexKeyVersion, "AUTHORITIES": IndexAuthorities,
	}
	for _, name := range slices.Sorted(maps.Keys(indexes)) {
		fmt.Fprintf(&b, "local %s = P .. '%s'\n\n", name, indexes[name])
	}
	fmt.Fprintf(&b, "local CANCELS = G .. '%s'\n\nlocal function watchChannel(job) return G .. '%s' .. job end\n", FarmCancel, FarmWatch)
	return b.String()
}

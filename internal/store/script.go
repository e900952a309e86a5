package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

//go:embed *.lua
var luaFiles embed.FS

// scripts are the Lua scripts, by the names of their files.
type scripts struct {
	jobAccept, jobClaim, jobFinish, jobLeaveFIFO, jobCheckpoint, jobRequeue, jobEnqueue, jobRoute, jobOpenRoutes                          *redis.Script
	eventAppend, eventArchive, manifestWrite, storedReserve, storedKeep, storedRepair, sandboxMove, sandboxUpdate, sandboxRestore, parked *redis.Script
	trim, memoryTrim, memoryRepair, quotaUse, quotaRepair, tenantAdmit, usageAdd, usageStored, egressAppend                               *redis.Script
	nodeReserve, nodeLease, gpu, pool, key, lockTake, lockRelease, schema, schemaGeneration, fleetNote, liveReplace                       *redis.Script
}

// loadScripts puts the scripts together. tasks is what New got.
func loadScripts(limits farm.Limits, tasks string) scripts {
	shared := newPrelude(
		tables(), fmt.Sprintf("local SHARE, DEPTH, STOPS, END_MESSAGE, ARTIFACT_BYTES = %d, %d, %d, %d, %d\n", limits.QueueShare, limits.MaxQueueDepth, maxStops, endMessageBytes, farm.ArtifactBytes), quotaTable(limits.TenantQuotas()), tasks, mustLua("prelude"))
	script := func(name, before string) *redis.Script { return redis.NewScript(before + mustLua(name)) }
	tenant := func(name string) *redis.Script { return script(name, shared.of(mustLua(name))) } // on a tenant's records
	bound := func(name string) *redis.Script {
		return script(name, shared.of(mustLua(name))+bind(namedArgs()[name], tenantArgs))
	}
	common := func(name string) *redis.Script { return script(name, bind(namedArgs()[name], 1)) } // on records of all tenants
	return scripts{
		jobAccept: bound("job_accept"), jobFinish: bound("job_finish"), sandboxMove: bound("sandbox_move"), sandboxUpdate: bound("sandbox_update"),
		sandboxRestore: bound("sandbox_restore"), trim: bound("trim"), memoryTrim: bound("memory_trim"), memoryRepair: bound("memory_repair"), eventArchive: bound("event_archive"), nodeReserve: common("node_reserve"), nodeLease: common("node_lease"), gpu: common("gpu"), fleetNote: common("fleet_note"),

		quotaUse: tenant("quota_use"), quotaRepair: tenant("quota_repair"), tenantAdmit: bound("tenant_admit"), usageAdd: bound("usage_add"), egressAppend: bound("egress_append"), usageStored: tenant("usage_stored"),

		jobClaim: tenant("job_claim"), jobLeaveFIFO: tenant("job_leave_fifo"), jobCheckpoint: tenant("job_checkpoint"),
		jobRequeue: bound("job_requeue"), jobEnqueue: tenant("job_enqueue"),
		jobRoute: tenant("job_route"), jobOpenRoutes: tenant("job_open_routes"), eventAppend: tenant("event_append"),
		manifestWrite: bound("manifest_write"), storedReserve: bound("stored_reserve"), storedKeep: bound("stored_keep"), storedRepair: bound("stored_repair"), parked: tenant("parked"),

		pool: script("pool", ""), key: script("key", ""), lockTake: script("lock_take", ""), lockRelease: script("lock_release", ""), liveReplace: script("live_replace", ""),
		schema: script("schema", ""), schemaGeneration: tenant("schema_generation"),
	}
}

// tenantArgs is where the arguments of a script on a tenant's records begin in ARGV, see run.
const tenantArgs = 3

// namedArgs are the arguments of the scripts that take many, by the names of their files. The others take a few by position.
func namedArgs() map[string]any {
	return map[string]any{
		"job_accept": acceptArgs{}, "job_finish": finishArgs{}, "job_requeue": requeueArgs{}, "sandbox_move": moveArgs{}, "sandbox_update": updateArgs{},
		"sandbox_restore": restoreArgs{}, "node_reserve": reserveArgs{}, "node_lease": leaseArgs{}, "gpu": gpuArgs{}, "trim": trimArgs{}, "event_archive": archiveArgs{},
		"tenant_admit": admitArgs{}, "manifest_write": manifestArgs{}, "stored_reserve": storedReserveArgs{}, "stored_keep": storedKeepArgs{}, "stored_repair": storedRepairArgs{},
		"memory_trim": memoryTrimArgs{}, "memory_repair": memoryRepairArgs{}, "usage_add": usageArgs{}, "egress_append": egressArgs{}, "fleet_note": fleetArgs{},
	}
}

// mustLua reads an embedded script. The files are part of the program, so a missing one fails every test.
func mustLua(name string) string {
	text, err := luaFiles.ReadFile(name + ".lua")
	if err != nil {
		panic("read embedded script: " + err.Error())
	}
	return string(text)
}

// tables writes the transition tables of package farm as Lua tables, so that they are defined in one place.
func tables() string {
	var b strings.Builder
	b.WriteString("local JOBS = {\n")
	for _, from := range farm.JobStates() {
		fmt.Fprintf(&b, "%s = {", from)
		for _, to := range farm.JobStates() {
			if from.To(to) {
				fmt.Fprintf(&b, "%s = true, ", to)
			}
		}
		b.WriteString("},\n")
	}
	b.WriteString("}\n\nlocal SANDBOXES = {\n")
	for _, from := range farm.SandboxStates() {
		fmt.Fprintf(&b, "%s = {", from)
		for _, to := range farm.SandboxStates() {
			if from.To(to) {
				fmt.Fprintf(&b, "%s = true, ", to)
			}
		}
		b.WriteString("},\n")
	}
	b.WriteString("}\n\nlocal ACCEPTS = {")
	for _, state := range farm.SandboxStates() {
		if state.Accepts() {
			fmt.Fprintf(&b, "%s = true, ", state)
		}
	}
	b.WriteString("}\n")
	return b.String()
}

// quotaTable writes the quotas of tenants without their own as a Lua table.
func quotaTable(q farm.Quotas) string {
	var b strings.Builder
	b.WriteString("local QUOTAS = {")
	for _, name := range farm.QuotaNames() {
		fmt.Fprintf(&b, "%s = %s, ", name, strconv.FormatFloat(q.Get(name), 'f', -1, 64))
	}
	b.WriteString("}\n")
	return b.String()
}

// key names a key of a tenant.
func (s *Store) key(tenant, kind, id string) string {
	return s.prefix + "{" + tenant + "}:" + kind + ":" + id
}

// index names a key that a tenant has only one of.
func (s *Store) index(tenant, name string) string { return s.prefix + "{" + tenant + "}:" + name }

// run calls a script on a tenant's records. The first element of the reply says how it went.
func (s *Store) run(ctx context.Context, what string, script *redis.Script, tenant string, args ...any) (reply, error) {
	result, err := script.Run(ctx, s.rdb, []string{s.index(tenant, "")}, s.argv(args)...).Slice()
	return checked(what, result, err)
}

// runConfirmed is run for a write that must outlive a crash of Redis: it waits as the store's Durability says. An error may mean that it did
// not wait long enough: the caller must be able to repeat the call.
func (s *Store) runConfirmed(ctx context.Context, what string, script *redis.Script, tenant string, args ...any) (reply, error) {
	if s.batch.confirm == nil {
		return s.run(ctx, what, script, tenant, args...)
	}
	return s.runBatched(ctx, what, script, tenant, args...)
}

// runBatched is runConfirmed for calls of which many are ready at the same time, see batch.
func (s *Store) runBatched(ctx context.Context, what string, script *redis.Script, tenant string, args ...any) (reply, error) {
	result, err := s.batch.run(ctx, script, []string{s.index(tenant, "")}, s.argv(args))
	return checked(what, result, err)
}

// argv is ARGV of a script on a tenant's records.
func (s *Store) argv(args []any) []any { return append([]any{s.prefix, micros(s.now())}, args...) }

func checked(what string, result []any, err error) (reply, error) {
	if errors.Is(err, errUnconfirmed) {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if err != nil {
		return nil, wrap(what, err)
	}
	if len(result) == 0 {
		return nil, fmt.Errorf("%s: script gave an empty reply", what)
	}
	return result, nil
}

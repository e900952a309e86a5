package store

import (
	"context"
	"embed"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

//go:embed *.lua
var luaFiles embed.FS

// scripts are the Lua scripts, each behind the same prelude.
type scripts struct {
	accept, claim, finish, leave, events, checkpoint, move, patch, open, route, artifacts, lock, unlock, adopt, release, room, pool, reroute, gpu, trim, holds *redis.Script
}

func loadScripts(limits farm.Limits) scripts {
	prelude := tables() + fmt.Sprintf("local SHARE, DEPTH = %d, %d\n", limits.QueueShare, limits.MaxQueueDepth) + mustLua("prelude")
	script := func(name string) *redis.Script { return redis.NewScript(prelude + mustLua(name)) }
	return scripts{
		accept: script("job_accept"), claim: script("job_claim"), finish: script("job_finish"), leave: script("job_leave_fifo"),
		events: script("event_append"), checkpoint: script("job_checkpoint"), move: script("sandbox_move"), patch: script("sandbox_update"),
		adopt: script("sandbox_restore"), release: script("job_requeue"), open: script("job_open_routes"), route: script("job_route"), artifacts: script("artifact_add"),
		lock: redis.NewScript(mustLua("lock_take")), unlock: redis.NewScript(mustLua("lock_release")),
		room: redis.NewScript(mustLua("node_reserve")), pool: redis.NewScript(mustLua("pool")), reroute: script("job_unassign"), gpu: redis.NewScript(mustLua("gpu")),
		trim: script("trim"), holds: script("parked"),
	}
}

// mustLua gives an embedded file; they are part of the program, so a missing one shows in every test.
func mustLua(name string) string {
	text, err := luaFiles.ReadFile(name + ".lua")
	if err != nil {
		panic("read embedded script: " + err.Error())
	}
	return string(text)
}

// tables are the transition tables of package farm as Lua tables, so that they are written down once.
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
	b.WriteString("}\nlocal BOXES = {\n")
	for _, from := range farm.SandboxStates() {
		fmt.Fprintf(&b, "%s = {", from)
		for _, to := range farm.SandboxStates() {
			if from.To(to) {
				fmt.Fprintf(&b, "%s = true, ", to)
			}
		}
		b.WriteString("},\n")
	}
	b.WriteString("}\nlocal ACCEPTS = {")
	for _, state := range farm.SandboxStates() {
		if state.Accepts() {
			fmt.Fprintf(&b, "%s = true, ", state)
		}
	}
	b.WriteString("}\n")
	return b.String()
}

// key names a key of a tenant.
func (s *Store) key(tenant, kind, id string) string {
	return s.prefix + "{" + tenant + "}:" + kind + ":" + id
}

// index names a key of which a tenant has one.
func (s *Store) index(tenant, name string) string { return s.prefix + "{" + tenant + "}:" + name }

// run calls a script for a tenant and gives its reply, whose first element says how it went.
func (s *Store) run(ctx context.Context, what string, script *redis.Script, tenant string, args ...any) (reply, error) {
	argv := append([]any{s.prefix, micros(s.now())}, args...)
	values, err := script.Run(ctx, s.rdb, []string{s.index(tenant, "")}, argv...).Slice()
	if err != nil {
		return nil, wrap(what, err)
	}
	if len(values) == 0 {
		return nil, fmt.Errorf("%s: script gave an empty reply", what)
	}
	return values, nil
}

// reply is what a script gave. Missing and nil elements read as empty.
type reply []any

func (r reply) text(i int) string {
	if i >= len(r) {
		return ""
	}
	text, _ := r[i].(string)
	return text
}

func (r reply) fields(i int) map[string]string {
	if i >= len(r) {
		return nil
	}
	flat, _ := r[i].([]any)
	fields := make(map[string]string, len(flat)/2)
	for k := 0; k+1 < len(flat); k += 2 {
		name, _ := flat[k].(string)
		value, _ := flat[k+1].(string)
		fields[name] = value
	}
	return fields
}

func (r reply) rows(i int) []reply {
	if i >= len(r) {
		return nil
	}
	list, _ := r[i].([]any)
	rows := make([]reply, 0, len(list))
	for _, item := range list {
		if row, ok := item.([]any); ok {
			rows = append(rows, row)
		}
	}
	return rows
}

// flag is a boolean in Redis.
func flag(b bool) string {
	if b {
		return "1"
	}
	return ""
}

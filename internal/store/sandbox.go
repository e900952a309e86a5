package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func noSandbox(id string) error { return farm.NotFoundf("There is no sandbox %s.", id) }

// Sandbox reads a sandbox; CodeNotFound if it is another tenant's, or gone.
func (s *Store) Sandbox(ctx context.Context, ref farm.Ref) (*farm.Sandbox, error) {
	fields, err := s.rdb.HGetAll(ctx, s.Key(ref.Tenant, KeySandbox, ref.ID)).Result()
	if err != nil {
		return nil, wrap("read sandbox", err)
	}
	if len(fields) == 0 {
		return nil, noSandbox(ref.ID)
	}
	return s.readSandbox(ctx, fields)
}

// OpenSandboxes lists the tenant's sandboxes that are not final, oldest first.
func (s *Store) OpenSandboxes(ctx context.Context, tenant string) ([]*farm.Sandbox, error) {
	ids, err := s.rdb.ZRange(ctx, s.Index(tenant, IndexOpenSandboxes), 0, -1).Result()
	if err != nil {
		return nil, wrap("list open sandboxes", err)
	}
	return fetch(ctx, s, tenant, KeySandbox, ids, s.readSandbox)
}

// OpenRefs lists the sandboxes of all tenants that are not final, without reading their records.
func (s *Store) OpenRefs(ctx context.Context) ([]farm.Ref, error) {
	tenants, err := s.Tenants(ctx)
	if err != nil || len(tenants) == 0 {
		return nil, err
	}
	pipe := s.rdb.Pipeline()
	cmds := make([]*redis.StringSliceCmd, len(tenants))
	for i, tenant := range tenants {
		cmds[i] = pipe.ZRange(ctx, s.Index(tenant, IndexOpenSandboxes), 0, -1)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, wrap("list open sandboxes", err)
	}
	var out []farm.Ref
	for i, cmd := range cmds {
		for _, id := range cmd.Val() {
			out = append(out, farm.Ref{Tenant: tenants[i], ID: id})
		}
	}
	return out, nil
}

// OpenRef finds the tenant of a sandbox that is not final; ok is false if there is no such sandbox.
func (s *Store) OpenRef(ctx context.Context, id string) (ref farm.Ref, ok bool, err error) {
	tenants, err := s.Tenants(ctx)
	if err != nil || len(tenants) == 0 {
		return ref, false, err
	}
	pipe := s.rdb.Pipeline()
	cmds := make([]*redis.FloatCmd, len(tenants))
	for i, tenant := range tenants {
		cmds[i] = pipe.ZScore(ctx, s.Index(tenant, IndexOpenSandboxes), id)
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return ref, false, wrap("find an open sandbox", err)
	}
	for i, cmd := range cmds {
		switch err := cmd.Err(); {
		case err == nil:
			return farm.Ref{Tenant: tenants[i], ID: id}, true, nil
		case !errors.Is(err, redis.Nil):
			return ref, false, wrap("find an open sandbox", err)
		}
	}
	return ref, false, nil
}

// SandboxPatch is what a caller changes of a sandbox. Nil fields stay unchanged.
type SandboxPatch struct {
	Name        *string
	TTLSeconds  *int // counts from now
	IdleSeconds *int // 0: no idle limit
	Labels      *map[string]string
	AllowHosts  *[]string // of the network allowlist
	Secrets     *SealedSecrets
}

// SealedSecrets replace the sealed secrets of a sandbox if they are still as they were read.
type SealedSecrets struct{ Was, Now []byte }

// ErrSecretsChanged says that the sealed secrets of a sandbox are not those that SealedSecrets.Was has.
var ErrSecretsChanged = errors.New("the secrets of the sandbox have changed")

// updateArgs are the arguments of sandbox_update.lua.
type updateArgs struct {
	ID        string `lua:"id"`
	SetName   bool   `lua:"set_name"`
	Name      string `lua:"name"`
	SetLabels bool   `lua:"set_labels"`
	Labels    []byte `lua:"labels"` // JSON
	SetHosts  bool   `lua:"set_hosts"`
	Hosts     []byte `lua:"hosts"`   // JSON
	Was       []byte `lua:"was"`     // sealed, as Secrets
	Secrets   []byte `lua:"secrets"` // empty: they stay
	SetTTL    bool   `lua:"set_ttl"`
	TTL       int    `lua:"ttl"` // seconds, as Idle
	SetIdle   bool   `lua:"set_idle"`
	Idle      int    `lua:"idle"`
	MaxMemory int64  `lua:"max_memory"` // as in acceptArgs
	Hint      []byte `lua:"hint"`       // message to the workers about a new deadline, new hosts or new secrets
}

// UpdateSandbox changes a sandbox that accepts work, otherwise CodeConflict; CodeExhausted if its record gets longer and the tenant has no memory
// left for that. Concurrent updates of different fields do not undo each other;
// ErrSecretsChanged: another one has changed the secrets, and nothing was changed now.
func (s *Store) UpdateSandbox(ctx context.Context, ref farm.Ref, p SandboxPatch) (*farm.Sandbox, error) {
	args := updateArgs{ID: ref.ID, SetName: p.Name != nil, SetLabels: p.Labels != nil, SetTTL: p.TTLSeconds != nil, SetIdle: p.IdleSeconds != nil, SetHosts: p.AllowHosts != nil, Hint: hint(ref)}
	if p.Name != nil {
		args.Name = *p.Name
	}
	if p.Labels != nil {
		labels, err := encode("labels", *p.Labels)
		if err != nil {
			return nil, err
		}
		args.Labels = labels
	}
	if p.AllowHosts != nil {
		args.Hosts = []byte(list(*p.AllowHosts))
	}
	if p.Secrets != nil {
		args.Was, args.Secrets = p.Secrets.Was, p.Secrets.Now
	}
	if p.TTLSeconds != nil {
		args.TTL = *p.TTLSeconds
	}
	if p.IdleSeconds != nil {
		args.Idle = *p.IdleSeconds
	}
	args.MaxMemory = s.unfinishedLimit(ctx)
	r, err := s.Run(ctx, "update sandbox", "sandbox_update", ref.Tenant, args)
	if err != nil {
		return nil, err
	}
	switch r.text(0) {
	case "ok":
		return s.readSandbox(ctx, r.fields(1))
	case "notfound":
		return nil, noSandbox(ref.ID)
	case "memory":
		return nil, unfinishedMemoryError(args.MaxMemory, number(r.text(1)), number(r.text(2)))
	case "secrets":
		return nil, ErrSecretsChanged
	default:
		return nil, farm.Conflictf("Sandbox %s is %s and can no longer be changed.", ref.ID, r.text(1))
	}
}

// Move is a transition of a sandbox to another state.
type Move struct {
	Ref       farm.Ref
	To        farm.SandboxState // "" leaves the state and sets only the rest
	Reason    string            // "" leaves it, as for Node, Container and Runtime
	Node      string
	Container string
	Runtime   string
	Expired   bool // it closes since its deadline has passed
	Touch     bool // LastUsedAt = now
	Removed   bool // its container is gone; unless the record says so, it is kept until the deadline of the sandbox at least

	Checkpoint int64 // it hibernates: bytes of its checkpoint, which count against max_stored_mb until it resumes or ends; 0: none

	Generation int    // that the sandbox must have; 0: not checked
	Job        string // the job that makes the transition, which must run under Attempt; "": not checked
	Attempt    int
}

// moveArgs are the arguments of sandbox_move.lua. Empty texts keep the stored value; times to live are in seconds.
type moveArgs struct {
	ID         string `lua:"id"`
	State      string `lua:"state"`
	Reason     string `lua:"reason"`
	Node       string `lua:"node"`
	Container  string `lua:"container"`
	Runtime    string `lua:"runtime"`
	Expired    bool   `lua:"expired"`
	Touch      bool   `lua:"touch"`
	Removed    bool   `lua:"removed"`
	Checkpoint int64  `lua:"checkpoint"` // bytes
	Generation int    `lua:"generation"` // 0: any
	Job        string `lua:"job"`
	Attempt    int    `lua:"attempt"`
	ClosedTTL  int    `lua:"closed_ttl"`
	Retention  int    `lua:"retention"`
}

// MoveSandbox makes a transition that the table allows; another one is CodeConflict and ErrMove. A final state sets ClosedAt and lets the
// record expire after Limits.ClosedSeconds, or later (Move.Removed). ErrFenced if the sandbox has another generation, or the job no
// longer runs under this attempt. CodeExhausted if Move.Checkpoint exceeds what the tenant may store. A job may repeat its move.
func (s *Store) MoveSandbox(ctx context.Context, m Move) (*farm.Sandbox, error) {
	if m.To != "" && !m.To.Valid() {
		return nil, fmt.Errorf("move sandbox %s: %q is not a state: %w", m.Ref.ID, m.To, ErrMove)
	}
	if err := s.rememberOnNode(ctx, m.Node, m.Ref.Tenant); err != nil {
		return nil, err
	}
	r, err := s.Run(ctx, "move sandbox", "sandbox_move", m.Ref.Tenant, moveArgs{
		ID: m.Ref.ID, State: string(m.To), Reason: m.Reason, Node: m.Node, Container: m.Container, Runtime: m.Runtime, Expired: m.Expired, Touch: m.Touch, Removed: m.Removed, Checkpoint: m.Checkpoint,
		Generation: m.Generation, Job: m.Job, Attempt: m.Attempt, ClosedTTL: s.limits.ClosedSeconds, Retention: s.limits.RetentionSeconds,
	})
	if err != nil {
		return nil, err
	}
	switch r.text(0) {
	case "ok":
		return s.readSandbox(ctx, r.fields(1))
	case "notfound":
		return nil, noSandbox(m.Ref.ID)
	case "full":
		free, _ := strconv.ParseInt(r.text(1), 10, 64)
		return nil, farm.Errorf(farm.CodeExhausted, "Sandbox %s uses %d MiB of memory, which would be stored while it hibernates, and of your quota %s only %d MiB are free. Remove artifacts, or close it.",
			m.Ref.ID, (m.Checkpoint+1<<20-1)>>20, farm.QuotaStoredMB, free>>20)
	case "fenced":
		return nil, fmt.Errorf("move sandbox %s of generation %d by job %q: %w", m.Ref.ID, m.Generation, m.Job, ErrFenced)
	default:
		return nil, farm.Wrap(ErrMove, farm.CodeConflict, "Sandbox %s is %s and cannot become %s.", m.Ref.ID, r.text(1), m.To)
	}
}

// Due lists sandboxes whose deadline has passed and that are neither closing nor final, the longest overdue first.
func (s *Store) Due(ctx context.Context, tenant string, limit int) ([]farm.Ref, error) {
	ids, err := s.rdb.ZRangeByScore(ctx, s.Index(tenant, IndexDeadlines), &redis.ZRangeBy{
		Min: "-inf", Max: micros(s.now()), Count: int64(max(limit, 1)),
	}).Result()
	if err != nil {
		return nil, wrap("list due sandboxes", err)
	}
	return refs(tenant, ids), nil
}

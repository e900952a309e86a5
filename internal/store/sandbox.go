package store

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
)

func noSandbox(id string) error { return farm.NotFoundf("There is no sandbox %s.", id) }

// Sandbox reads a sandbox. A foreign or forgotten one gives CodeNotFound.
func (s *Store) Sandbox(ctx context.Context, ref farm.Ref) (*farm.Sandbox, error) {
	fields, err := s.rdb.HGetAll(ctx, s.key(ref.Tenant, "sbx", ref.ID)).Result()
	if err != nil {
		return nil, wrap("read sandbox", err)
	}
	if len(fields) == 0 {
		return nil, noSandbox(ref.ID)
	}
	return decodeSandbox(fields)
}

// OpenSandboxes lists the tenant's sandboxes that are not final, oldest first.
func (s *Store) OpenSandboxes(ctx context.Context, tenant string) ([]*farm.Sandbox, error) {
	ids, err := s.rdb.ZRange(ctx, s.index(tenant, "openboxes"), 0, -1).Result()
	if err != nil {
		return nil, wrap("list open sandboxes", err)
	}
	return fetch(ctx, s, tenant, "sbx", ids, decodeSandbox)
}

// SandboxPatch is what a caller changes of a sandbox; nil fields stay.
type SandboxPatch struct {
	Name        *string
	TTLSeconds  *int // counts from now
	IdleSeconds *int // 0: no idle limit
	Labels      *map[string]string
}

// UpdateSandbox changes a sandbox that accepts work; CodeConflict for another. Two changes at once do not undo each other.
func (s *Store) UpdateSandbox(ctx context.Context, ref farm.Ref, p SandboxPatch) (*farm.Sandbox, error) {
	args := []any{ref.ID, flag(p.Name != nil), "", flag(p.Labels != nil), "", flag(p.TTLSeconds != nil), "", flag(p.IdleSeconds != nil), "", hint(ref)}
	if p.Name != nil {
		args[2] = *p.Name
	}
	if p.Labels != nil {
		labels, err := encode("labels", maps.Clone(*p.Labels))
		if err != nil {
			return nil, err
		}
		args[4] = labels
	}
	if p.TTLSeconds != nil {
		args[6] = strconv.Itoa(*p.TTLSeconds)
	}
	if p.IdleSeconds != nil {
		args[8] = strconv.Itoa(*p.IdleSeconds)
	}
	r, err := s.run(ctx, "update sandbox", s.scripts.patch, ref.Tenant, args...)
	if err != nil {
		return nil, err
	}
	switch r.text(0) {
	case "ok":
		return decodeSandbox(r.fields(1))
	case "notfound":
		return nil, noSandbox(ref.ID)
	default:
		return nil, farm.Conflictf("The sandbox %s is %s and can not be changed any more.", ref.ID, r.text(1))
	}
}

// Move is a step of a sandbox from one state to another.
type Move struct {
	Ref       farm.Ref
	To        farm.SandboxState // "" leaves the state and sets the rest
	Reason    string            // "" = unchanged, as for Node and Container
	Node      string
	Container string
	Expired   bool // its closing is due to time
	Touch     bool // LastUsedAt = now

	Job     string // the job that makes the step, which must run under Attempt; "": whoever does may
	Attempt int
}

// MoveSandbox makes the step when the transition table allows it, else it gives CodeConflict, which is ErrMove too. A
// final state sets ClosedAt and lets the record expire after Limits.ClosedSeconds. ErrFenced when the job that makes the
// step is no longer this attempt's, or the attempt is void since the creation goes on elsewhere.
func (s *Store) MoveSandbox(ctx context.Context, m Move) (*farm.Sandbox, error) {
	if m.To != "" && !m.To.Valid() {
		return nil, fmt.Errorf("move sandbox %s: %q is not a state: %w", m.Ref.ID, m.To, ErrMove)
	}
	r, err := s.run(ctx, "move sandbox", s.scripts.move, m.Ref.Tenant, m.Ref.ID, string(m.To), m.Reason, m.Node, m.Container,
		flag(m.Expired), flag(m.Touch), s.limits.ClosedSeconds, s.limits.RetentionSeconds, m.Job, m.Attempt)
	if err != nil {
		return nil, err
	}
	switch r.text(0) {
	case "ok":
		return decodeSandbox(r.fields(1))
	case "notfound":
		return nil, noSandbox(m.Ref.ID)
	case "fenced":
		return nil, fmt.Errorf("move sandbox %s by job %s: %w", m.Ref.ID, m.Job, ErrFenced)
	default:
		return nil, farm.Wrap(ErrMove, farm.CodeConflict, "The sandbox %s is %s and can not become %s.", m.Ref.ID, r.text(1), m.To)
	}
}

// Due lists sandboxes whose deadline has passed, the longest overdue first: neither final nor closing ones.
func (s *Store) Due(ctx context.Context, tenant string, limit int) ([]farm.Ref, error) {
	ids, err := s.rdb.ZRangeByScore(ctx, s.index(tenant, "due"), &redis.ZRangeBy{
		Min: "-inf", Max: micros(s.now()), Count: int64(max(limit, 1)),
	}).Result()
	if err != nil {
		return nil, wrap("list due sandboxes", err)
	}
	return refs(tenant, ids), nil
}

package nodes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

// MemberState is the state of a member of the warm pool.
type MemberState string

// The states of a member. A claimed one belongs to a tenant, and never becomes idle again once the create was accepted.
const (
	MemberStarting MemberState = "starting"
	MemberIdle     MemberState = "idle"
	MemberClaimed  MemberState = "claimed"
)

// Member is a sandbox that was started ahead of need. Its id becomes that of the sandbox that claims it.
type Member struct {
	ID        string         `json:"id"`
	Node      string         `json:"node"`
	Container string         `json:"container,omitempty"` // empty until it is ready
	Image     string         `json:"image"`               // name
	Runtime   string         `json:"runtime,omitempty"`   // OCI runtime; empty: what sandboxes of the image have on its node that ask for none
	Network   farm.Network   `json:"network"`
	Resources farm.Resources `json:"resources"`
	Version   string         `json:"version"` // of its image and agent
	Worker    string         `json:"worker"`  // who started it

	State  MemberState `json:"-"`
	Tenant string      `json:"-"` // who claimed it
	At     time.Time   `json:"-"` // when it got its state
}

// ErrNoMember says that a member does not exist or is not in the required state.
var ErrNoMember = errors.New("the pool has no such member")

// kind is what a claim cannot change of a member, so it must match.
func kind(image, runtime string, network farm.Network, diskMB int) string {
	text := image + " " + string(network) + " " + strconv.Itoa(diskMB)
	if runtime != "" {
		text += " " + runtime
	}
	return text
}

// BeginMember stores a member that is about to be started.
func (s *Store) BeginMember(ctx context.Context, m Member) error {
	doc, err := db.Encode("member", m)
	if err != nil {
		return err
	}
	_, err = s.pool(ctx, "begin", m.ID, m.Node, kind(m.Image, m.Runtime, m.Network, m.Resources.DiskMB), doc)
	return err
}

// MemberReady makes a started member available to creates. ErrNoMember if it was dropped in the meantime.
func (s *Store) MemberReady(ctx context.Context, m Member) error {
	doc, err := db.Encode("member", m)
	if err != nil {
		return err
	}
	_, err = s.pool(ctx, "ready", m.ID, doc)
	return err
}

// MemberClaim is what a create needs of a member.
type MemberClaim struct {
	Tenant  string
	Image   string
	Runtime string // as Member.Runtime
	Network farm.Network
	DiskMB  int
	Nodes   []string // that have a live worker
}

// ClaimMember claims for a tenant the matching member that has been ready the longest, in one step. ErrNoMember if there is none, or if it is the last,
// the tenant has got four of the kind in this minute and the one before, and another one that asked has got fewer.
func (s *Store) ClaimMember(ctx context.Context, c MemberClaim) (*Member, error) {
	args := []any{kind(c.Image, c.Runtime, c.Network, c.DiskMB), c.Tenant}
	for _, node := range c.Nodes {
		args = append(args, node)
	}
	r, err := s.pool(ctx, "claim", args...)
	if err != nil {
		return nil, err
	}
	var m Member
	if err := json.Unmarshal([]byte(r.Text(2)), &m); err != nil {
		return nil, fmt.Errorf("decode member %s: %w", r.Text(1), err)
	}
	m.State, m.Tenant, m.At = MemberClaimed, c.Tenant, s.Now()
	return &m, nil
}

// ReturnMember makes a claimed member idle again, after the create was refused. Nothing of the tenant may have reached it.
func (s *Store) ReturnMember(ctx context.Context, id, tenant string) error {
	_, err := s.pool(ctx, "return", id, tenant)
	return err
}

// DropMember removes a member that is in one of the states; otherwise ErrNoMember. The caller that gets no error owns its container.
func (s *Store) DropMember(ctx context.Context, id string, states ...MemberState) error {
	args := []any{id}
	for _, state := range states {
		args = append(args, string(state))
	}
	_, err := s.pool(ctx, "drop", args...)
	return err
}

// Member reads a member; ErrNoMember if there is none.
func (s *Store) Member(ctx context.Context, id string) (*Member, error) {
	r, err := s.pool(ctx, "get", id)
	if err != nil {
		return nil, err
	}
	list, err := decodeMembers(r.Rows(1))
	if err != nil || len(list) != 1 {
		return nil, errors.Join(err, ErrNoMember)
	}
	return &list[0], nil
}

// Members lists the members of some nodes, or of all if none is named, those that got their state first in front.
func (s *Store) Members(ctx context.Context, nodes ...string) ([]Member, error) {
	args := make([]any, len(nodes))
	for i, node := range nodes {
		args[i] = node
	}
	r, err := s.pool(ctx, "list", args...)
	if err != nil {
		return nil, err
	}
	return decodeMembers(r.Rows(1))
}

func decodeMembers(rows []db.Reply) ([]Member, error) {
	list := make([]Member, 0, len(rows))
	for _, row := range rows {
		var m Member
		if err := json.Unmarshal([]byte(row.Text(1)), &m); err != nil {
			return nil, fmt.Errorf("decode member %s: %w", row.Text(0), err)
		}
		m.State, m.Tenant, m.At = MemberState(row.Text(2)), row.Text(3), db.Moment(row.Text(4))
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b Member) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.ID, b.ID)) })
	return list, nil
}

// pool runs an operation of pool.lua. The keys of the pool are in one slot.
func (s *Store) pool(ctx context.Context, op string, args ...any) (db.Reply, error) {
	r, err := s.Run(ctx, op+" pool member", "pool", db.SlotPool, append([]any{op}, args...)...)
	if err != nil {
		return nil, err
	}
	if r.Text(0) != "ok" {
		return nil, ErrNoMember
	}
	return r, nil
}

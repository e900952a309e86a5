package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
	"github.com/sandfarm/sandfarm/internal/store/tenants"
)

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
	args := updateArgs{ID: ref.ID, SetName: p.Name != nil, SetLabels: p.Labels != nil, SetTTL: p.TTLSeconds != nil, SetIdle: p.IdleSeconds != nil, SetHosts: p.AllowHosts != nil, Hint: db.Hint(ref)}
	if p.Name != nil {
		args.Name = *p.Name
	}
	if p.Labels != nil {
		labels, err := db.Encode("labels", *p.Labels)
		if err != nil {
			return nil, err
		}
		args.Labels = labels
	}
	if p.AllowHosts != nil {
		args.Hosts = []byte(db.List(*p.AllowHosts))
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
	args.MaxMemory = tenants.UnfinishedLimit(ctx, s.DB)
	r, err := s.Run(ctx, "update sandbox", "sandbox_update", ref.Tenant, args)
	if err != nil {
		return nil, err
	}
	switch r.Text(0) {
	case "ok":
		return Read(ctx, s.DB, r.Fields(1))
	case "notfound":
		return nil, noSandbox(ref.ID)
	case "memory":
		return nil, tenants.UnfinishedError(args.MaxMemory, db.Number(r.Text(1)), db.Number(r.Text(2)))
	case "secrets":
		return nil, ErrSecretsChanged
	default:
		return nil, farm.Conflictf("Sandbox %s is %s and can no longer be changed.", ref.ID, r.Text(1))
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
	Removed   bool // its container is gone; unless the record says so, it is kept until the deadline of the sandbox at least. With To "" it may be said later

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
		return nil, fmt.Errorf("move sandbox %s: %q is not a state: %w", m.Ref.ID, m.To, db.ErrMove)
	}
	if err := s.RememberOnNode(ctx, m.Node, m.Ref.Tenant); err != nil {
		return nil, err
	}
	r, err := s.Run(ctx, "move sandbox", "sandbox_move", m.Ref.Tenant, moveArgs{
		ID: m.Ref.ID, State: string(m.To), Reason: m.Reason, Node: m.Node, Container: m.Container, Runtime: m.Runtime, Expired: m.Expired, Touch: m.Touch, Removed: m.Removed, Checkpoint: m.Checkpoint,
		Generation: m.Generation, Job: m.Job, Attempt: m.Attempt, ClosedTTL: s.Limits.ClosedSeconds, Retention: s.Limits.RetentionSeconds,
	})
	if err != nil {
		return nil, err
	}
	switch r.Text(0) {
	case "ok":
		return Read(ctx, s.DB, r.Fields(1))
	case "notfound":
		return nil, noSandbox(m.Ref.ID)
	case "full":
		free, _ := strconv.ParseInt(r.Text(1), 10, 64)
		return nil, farm.Errorf(farm.CodeExhausted, "Sandbox %s uses %d MiB of memory, which would be stored while it hibernates, and of your quota %s only %d MiB are free. Remove artifacts, or close it.",
			m.Ref.ID, (m.Checkpoint+1<<20-1)>>20, farm.QuotaStoredMB, free>>20)
	case "fenced":
		return nil, fmt.Errorf("move sandbox %s of generation %d by job %q: %w", m.Ref.ID, m.Generation, m.Job, db.ErrFenced)
	default:
		return nil, farm.Wrap(db.ErrMove, farm.CodeConflict, "Sandbox %s is %s and cannot become %s.", m.Ref.ID, r.Text(1), m.To)
	}
}

// RestoreDocument writes the document of a sandbox's record again, which the object store has lost (ErrDocumentGone).
func (s *Store) RestoreDocument(ctx context.Context, box *farm.Sandbox) error {
	doc, err := Encode(box)
	if err != nil {
		return err
	}
	_, err = s.StoreLarge(ctx, db.DocumentKey(box.Ref(), "sandbox"), doc, 0)
	return err
}

// restoreArgs are the arguments of sandbox_restore.lua.
type restoreArgs struct {
	ID         string `lua:"id"`
	State      string `lua:"state"`
	Doc        []byte `lua:"doc"`
	Stored     int    `lua:"stored"` // bytes of the document, if Doc is a reference; 0: it is none
	Memory     int    `lua:"memory"` // MiB
	Millicores int    `lua:"millicores"`
	GPUs       int    `lua:"gpus"`
	Checkpoint int64  `lua:"checkpoint"` // bytes; 0: it does not hibernate
	Used       string `lua:"used"`       // microseconds, as Expires
	Expires    string `lua:"expires"`
	Idle       int    `lua:"idle"` // seconds
	Node       string `lua:"node"`
	Container  string `lua:"container"`
	Runtime    string `lua:"runtime"`
	Generation int    `lua:"generation"`
}

// RestoreSandbox writes the record of a sandbox whose container runs, or is hibernated, but whose record is gone, as ready or
// hibernated: Redis has lost its data. A record of an
// earlier generation than the container's gets container, node and generation: Redis has lost what is newer than the record, or another node
// has restored it from a container that was left behind. Another record stays unchanged, and restored is false. The checkpoint of a hibernated one counts
// against max_stored_mb as its memory does, as where it hibernates (Move.Checkpoint), but is not refused.
func (s *Store) RestoreSandbox(ctx context.Context, box *farm.Sandbox) (restored bool, err error) {
	// Not RememberTenant and RememberOnNode: their caches may be older than the loss.
	if err := errors.Join(s.StoreTenant(ctx, box.Tenant), s.StoreOnNode(ctx, box.Node, box.Tenant)); err != nil {
		return false, err
	}
	doc, err := Encode(box)
	if err != nil {
		return false, err
	}
	size := len(doc)
	if doc, err = s.StoreLarge(ctx, db.DocumentKey(box.Ref(), "sandbox"), doc, DocBytes); err != nil {
		return false, err
	}
	if !db.IsReference(string(doc)) {
		size = 0
	}
	state, checkpoint := farm.SandboxReady, int64(0)
	if box.State == farm.SandboxHibernated {
		state, checkpoint = box.State, int64(box.Spec.Resources.MemoryMB)<<20
	}
	memoryMB, millicores, gpus := Charge(box)
	r, err := s.Run(ctx, "restore sandbox", "sandbox_restore", box.Tenant, restoreArgs{
		ID: box.ID, State: string(state), Doc: doc, Stored: size, Memory: memoryMB, Millicores: millicores, GPUs: gpus, Checkpoint: checkpoint, Used: db.Micros(box.LastUsedAt), Expires: db.Micros(box.ExpiresAt), Idle: box.Spec.IdleSeconds, Node: box.Node, Container: box.Container, Runtime: box.Runtime,
		Generation: max(box.Generation, 1),
	})
	if err != nil {
		return false, err
	}
	return r.Text(0) == "ok", nil
}

// Package sandboxes keeps sandboxes: their records and moves from state to state, the index of open ones by node, the log of their connections, their
// sealed secrets, and which job installed which package.
//
// Its scripts use the prelude of package tenants, since a sandbox counts against quotas and memory of its tenant. A move by a job reads the record of
// that job, which must run under its attempt. Package jobs makes sandboxes and changes their states with the prelude here.
package sandboxes

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

func noSandbox(id string) error { return farm.NotFoundf("There is no sandbox %s.", id) }

// Sandbox reads a sandbox; CodeNotFound if it is another tenant's, or gone. ErrDocumentGone as Read.
func (s *Store) Sandbox(ctx context.Context, ref farm.Ref) (*farm.Sandbox, error) {
	fields, err := s.Redis.HGetAll(ctx, s.Key(ref.Tenant, db.KeySandbox, ref.ID)).Result()
	if err != nil {
		return nil, db.Wrap("read sandbox", err)
	}
	if len(fields) == 0 {
		return nil, noSandbox(ref.ID)
	}
	return Read(ctx, s.DB, fields)
}

// SandboxFilter picks sandboxes that meet all of its fields; zero fields pick all. Of States one must match, of Labels all.
//
// The HTTP parameters map to it one by one: name (exact), state (repeatable or comma-separated), label, created_after and created_before
// (RFC 3339, exclusive). The caller checks the values; an unknown state picks nothing.
type SandboxFilter struct {
	Name    string
	States  []farm.SandboxState
	Labels  map[string]string
	Created db.TimeRange
}

func (f SandboxFilter) picks(box *farm.Sandbox) bool {
	if f.Name != "" && box.Spec.Name != f.Name || len(f.States) > 0 && !slices.Contains(f.States, box.State) || !f.Created.Contains(box.CreatedAt) {
		return false
	}
	for name, want := range f.Labels {
		if got, ok := box.Spec.Labels[name]; !ok || got != want {
			return false
		}
	}
	return true
}

// Sandboxes lists sandboxes, newest first; pages and cursors as in Jobs, but that a call which filters by labels looks at 400 records.
func (s *Store) Sandboxes(ctx context.Context, tenant string, f SandboxFilter, p db.Page) (boxes []*farm.Sandbox, next string, err error) {
	l := db.Listing[farm.Sandbox]{
		Index: s.Index(tenant, db.IndexSandboxes),
		Load: func(ctx context.Context, ids []string) ([]db.Sized[farm.Sandbox], error) {
			return db.FetchSized(ctx, s.DB, tenant, db.KeySandbox, ids, s.read)
		},
		ID:   func(box *farm.Sandbox) string { return box.ID },
		Want: f.picks, Whole: len(f.Labels) > 0, Passed: func(box *farm.Sandbox) bool { return f.Created.Passed(box.CreatedAt) },
	}
	if len(f.States) > 0 && !slices.ContainsFunc(f.States, leavesOpen) {
		l.From = s.Index(tenant, db.IndexOpenSandboxes)
	}
	return db.Scan(ctx, s.DB, l, p)
}

// leavesOpen reports whether the index of open sandboxes may lack one in this state: that of a run is taken out when it begins to close.
func leavesOpen(state farm.SandboxState) bool { return state.Final() || state == farm.SandboxClosing }

// OpenSandboxes lists the tenant's sandboxes that are not final, oldest first.
func (s *Store) OpenSandboxes(ctx context.Context, tenant string) ([]*farm.Sandbox, error) {
	ids, err := s.Redis.ZRange(ctx, s.Index(tenant, db.IndexOpenSandboxes), 0, -1).Result()
	if err != nil {
		return nil, db.Wrap("list open sandboxes", err)
	}
	return db.Fetch(ctx, s.DB, tenant, db.KeySandbox, ids, s.read)
}

// OpenRefs lists the sandboxes of all tenants that are not final, without reading their records.
func (s *Store) OpenRefs(ctx context.Context) ([]farm.Ref, error) {
	tenants, err := s.Tenants(ctx)
	if err != nil || len(tenants) == 0 {
		return nil, err
	}
	pipe := s.Redis.Pipeline()
	cmds := make([]*redis.StringSliceCmd, len(tenants))
	for i, tenant := range tenants {
		cmds[i] = pipe.ZRange(ctx, s.Index(tenant, db.IndexOpenSandboxes), 0, -1)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, db.Wrap("list open sandboxes", err)
	}
	var out []farm.Ref
	for i, cmd := range cmds {
		for _, id := range cmd.Val() {
			out = append(out, farm.Ref{Tenant: tenants[i], ID: id})
		}
	}
	return out, nil
}

// Due lists sandboxes whose deadline has passed and that are neither closing nor final, the longest overdue first.
func (s *Store) Due(ctx context.Context, tenant string, limit int) ([]farm.Ref, error) {
	ids, err := s.Redis.ZRangeByScore(ctx, s.Index(tenant, db.IndexDeadlines), &redis.ZRangeBy{
		Min: "-inf", Max: db.Micros(s.Now()), Count: int64(max(limit, 1)),
	}).Result()
	if err != nil {
		return nil, db.Wrap("list due sandboxes", err)
	}
	return db.Refs(tenant, ids), nil
}

// DocBytes is how much of the record of a sandbox stays in Redis; a longer one is a document.
const DocBytes = 16 << 10

func (s *Store) read(ctx context.Context, fields map[string]string) (*farm.Sandbox, error) {
	return Read(ctx, s.DB, fields)
}

// Read reads a sandbox from its hash. If its document is gone, it has no more than what Redis knows of it: enough to end it, so that is an error,
// ErrDocumentGone, only until it is closing.
func Read(ctx context.Context, d *db.DB, fields map[string]string) (*farm.Sandbox, error) {
	doc, err := d.Resolve(ctx, fields["doc"])
	if farm.CodeOf(err) == farm.CodeNotFound {
		return readBare(ctx, d, fields)
	}
	if err != nil {
		return nil, fmt.Errorf("read sandbox record: %w", err)
	}
	fields["doc"] = doc
	leave, err := budget.Core(ctx, len(doc))
	if err != nil {
		return nil, err
	}
	defer leave()
	return decode(fields)
}

// Known is Read, but no sandbox, and no error, if the document is gone.
func Known(ctx context.Context, d *db.DB, fields map[string]string) (*farm.Sandbox, error) {
	box, err := Read(ctx, d, fields)
	if errors.Is(err, db.ErrDocumentGone) {
		return nil, nil
	}
	return box, err
}

func readBare(ctx context.Context, d *db.DB, fields map[string]string) (*farm.Sandbox, error) {
	ref := farm.OwnerOf(strings.TrimPrefix(fields["doc"], db.Reference))
	d.Log.WarnContext(ctx, "the document of a sandbox is gone", "sandbox_id", ref.ID, "tenant", ref.Tenant)
	doc, err := db.Encode("sandbox", farm.Sandbox{ID: ref.ID, Tenant: ref.Tenant})
	if err != nil {
		return nil, err
	}
	fields["doc"] = string(doc)
	box, err := decode(fields)
	if err == nil && box.State != farm.SandboxClosing && !box.State.Final() {
		err = fmt.Errorf("read sandbox %s: %w", ref.ID, db.ErrDocumentGone)
	}
	return box, err
}

// Encode encodes what a sandbox was created with. Of its variables only the names are kept: the values are in the request of the job
// that creates it.
func Encode(box *farm.Sandbox) ([]byte, error) {
	kept := *box
	kept.Spec.Env = maps.Clone(box.Spec.Env)
	for name := range kept.Spec.Env {
		kept.Spec.Env[name] = ""
	}
	return db.Encode("sandbox", kept)
}

// decode reads a sandbox's hash: doc is what it was created with; fields that are set override it.
func decode(f map[string]string) (*farm.Sandbox, error) {
	var box farm.Sandbox
	if err := json.Unmarshal([]byte(f["doc"]), &box); err != nil {
		return nil, fmt.Errorf("decode sandbox record: %w", err)
	}
	box.State = farm.SandboxState(f["state"])
	box.ReadyAt, box.ClosedAt = db.Moment(f["ready"]), db.Moment(f["closed"])
	box.LastUsedAt, box.ExpiresAt = db.Moment(f["used"]), db.Moment(f["expires"])
	box.Expired = f["expired"] == "1"
	box.Generation, _ = strconv.Atoi(f["gen"])
	box.Generation = max(box.Generation, 1)
	box.Spec.IdleSeconds, _ = strconv.Atoi(f["idle"])
	for name, to := range map[string]*string{"reason": &box.Reason, "node": &box.Node, "container": &box.Container, "runtime": &box.Runtime} {
		if text, ok := f[name]; ok {
			*to = text
		}
	}
	if name, ok := f["name"]; ok {
		box.Spec.Name = name
	}
	if ttl, ok := f["ttl"]; ok {
		box.Spec.TTLSeconds, _ = strconv.Atoi(ttl)
	}
	if text, ok := f["labels"]; ok {
		box.Spec.Labels = nil
		if err := json.Unmarshal([]byte(text), &box.Spec.Labels); err != nil {
			return nil, fmt.Errorf("decode labels of sandbox %s: %w", box.ID, err)
		}
	}
	if text, ok := f["hosts"]; ok {
		box.Spec.AllowHosts = nil
		if err := json.Unmarshal([]byte(text), &box.Spec.AllowHosts); err != nil {
			return nil, fmt.Errorf("decode hosts of sandbox %s: %w", box.ID, err)
		}
	}
	box.Recent = decodeUse(f["recent"])
	return &box, nil
}

// decodeUse reads samples as usage_add.lua writes them: thousandths of a core and KiB, separated by colons. What cannot be read is left out.
func decodeUse(text string) []farm.UseSample {
	var out []farm.UseSample
	for one := range strings.FieldsSeq(text) {
		cpu, memory, _ := strings.Cut(one, ":")
		milli, err1 := strconv.Atoi(cpu)
		kb, err2 := strconv.Atoi(memory)
		if err1 == nil && err2 == nil {
			out = append(out, farm.UseSample{CPUs: float64(milli) / 1000, MemoryMB: kb >> 10})
		}
	}
	return out
}

// Charge is what a sandbox counts against the quotas of its tenant.
func Charge(box *farm.Sandbox) (memoryMB, millicores, gpus int) {
	if box.Spec.GPU != nil {
		gpus = box.Spec.GPU.Count
	}
	capacity := box.Spec.Resources.Capacity()
	return capacity.MemoryMB, capacity.Millicores(), gpus
}

//go:embed *.lua
var scripts embed.FS

// Lua has the scripts, for db.New.
func Lua() fs.FS { return scripts }

// Store reads and writes sandboxes. It is safe for concurrent use.
type Store struct{ *db.DB }

// New makes a Store.
func New(d *db.DB) *Store { return &Store{d} }

package store

import (
	"context"
	"slices"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// SandboxFilter picks sandboxes that meet all of its fields; zero fields pick all. Of States one must match, of Labels all.
//
// The HTTP parameters map to it one by one: name (exact), state (repeatable or comma-separated), label, created_after and created_before
// (RFC 3339, exclusive). The caller checks the values; an unknown state picks nothing.
type SandboxFilter struct {
	Name    string
	States  []farm.SandboxState
	Labels  map[string]string
	Created TimeRange
}

func (f SandboxFilter) picks(box *farm.Sandbox) bool {
	if f.Name != "" && box.Spec.Name != f.Name || len(f.States) > 0 && !slices.Contains(f.States, box.State) || !f.Created.contains(box.CreatedAt) {
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
func (s *Store) Sandboxes(ctx context.Context, tenant string, f SandboxFilter, p Page) (boxes []*farm.Sandbox, next string, err error) {
	l := listing[farm.Sandbox]{
		index: s.Index(tenant, IndexSandboxes),
		load: func(ctx context.Context, ids []string) ([]*farm.Sandbox, error) {
			return fetch(ctx, s, tenant, KeySandbox, ids, s.readSandbox)
		},
		id:   func(box *farm.Sandbox) string { return box.ID },
		want: f.picks, whole: len(f.Labels) > 0, passed: func(box *farm.Sandbox) bool { return f.Created.passed(box.CreatedAt) },
	}
	return scan(ctx, s, l, p)
}

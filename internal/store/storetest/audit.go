package storetest

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
)

func auditIsListed(t *testing.T, f Factory) {
	s, ctx := setup(t, f), t.Context()
	var all, blue []farm.AuditEntry
	for i := range 25 {
		e := farm.AuditEntry{ID: farm.NewID(farm.AuditPrefix), Tenant: []string{"blue", "red", ""}[i%3], Route: fmt.Sprint("POST /", i), Status: 200}
		if err := s.AppendAudit(ctx, []farm.AuditEntry{e}); err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
		if e.Tenant == "blue" {
			blue = append(blue, e)
		}
	}
	for tenant, want := range map[string][]farm.AuditEntry{"": all, "blue": blue, "green": nil} {
		seen := map[string]bool{}
		cursor, pages := "", 0
		for {
			page, next, err := s.Audit(ctx, tenant, store.TimeRange{}, store.Page{Limit: 4, Cursor: cursor})
			if err != nil || len(page) == 0 && len(want) > 0 {
				t.Fatalf("%q, page %d: %d entries, %v", tenant, pages, len(page), err)
			}
			for _, e := range page {
				if seen[e.ID] {
					t.Errorf("%q: %s is listed twice", tenant, e.Route)
				}
				seen[e.ID] = true
			}
			if pages++; next == "" || pages > 30 {
				break
			}
			cursor = next
		}
		for _, e := range want {
			if !seen[e.ID] {
				t.Errorf("%q: %s is missing", tenant, e.Route)
			}
		}
		if len(seen) != len(want) {
			t.Errorf("%q: %d entries, want %d", tenant, len(seen), len(want))
		}
	}
	newest, _, err := s.Audit(ctx, "blue", store.TimeRange{}, store.Page{Limit: 1})
	if diff := cmp.Diff([]farm.AuditEntry{blue[len(blue)-1]}, newest); diff != "" || err != nil {
		t.Errorf("%v, newest (-want +got):\n%s", err, diff)
	}
	if _, _, err := s.Audit(ctx, "", store.TimeRange{}, store.Page{Cursor: "x"}); farm.CodeOf(err) != farm.CodeInvalid {
		t.Errorf("a bad cursor: %v", err)
	}
}

// A tenant that does much pushes out its own entries, never those of another.
func auditIsBounded(t *testing.T, f Factory) {
	const most = 100
	s, ctx := setup(t, f, func(l *farm.Limits) { l.MaxAudit = most }), t.Context()
	if err := s.AppendAudit(ctx, []farm.AuditEntry{{ID: "quiet", Tenant: "quiet"}}); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		batch := make([]farm.AuditEntry, 100)
		for i := range batch {
			batch[i] = farm.AuditEntry{ID: "x", Tenant: "loud"}
		}
		if err := s.AppendAudit(ctx, batch); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.rdb.XLen(ctx, s.prefix+"{loud}:audit").Val(); n < most || n > most+100 {
		t.Errorf("%d entries of 2000 are kept, want about %d", n, most)
	}
	if kept, _, err := s.Audit(ctx, "quiet", store.TimeRange{}, store.Page{}); err != nil || len(kept) != 1 {
		t.Errorf("%d entries of the quiet tenant, %v", len(kept), err)
	}
}

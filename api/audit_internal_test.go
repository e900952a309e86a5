package api

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// slowAudit is a store that takes nothing until it is released.
type slowAudit struct {
	begun, release chan struct{}
	entries        map[string]int // that were written, by tenant
	missed         int
}

func (s *slowAudit) AppendAudit(_ context.Context, entries []farm.AuditEntry) error {
	select {
	case s.begun <- struct{}{}:
	default:
	}
	<-s.release
	for _, e := range entries {
		s.entries[e.Tenant]++
		s.missed += e.Missed
	}
	return nil
}

// While Redis is slow, the flood of one tenant took all the places in memory, and entries of others were dropped.
func TestOneTenantLeavesRoomInTheAudit(t *testing.T) {
	t.Parallel()
	to := &slowAudit{begun: make(chan struct{}, 1), release: make(chan struct{}), entries: map[string]int{}}
	a := &auditor{store: to, log: slog.New(slog.DiscardHandler), now: time.Now}
	a.add(t.Context(), farm.AuditEntry{Tenant: "first"})
	<-to.begun // nothing leaves the queue any more
	for range auditWaiting {
		a.add(t.Context(), farm.AuditEntry{Tenant: "loud"})
	}
	a.add(t.Context(), farm.AuditEntry{Tenant: "quiet"})
	close(to.release)
	a.close()
	if to.entries["quiet"] != 1 || to.entries["loud"] != auditWaiting/2 || to.missed != auditWaiting/2 {
		t.Errorf("written: %v, %d missed", to.entries, to.missed)
	}
	a.add(t.Context(), farm.AuditEntry{Tenant: "loud"}) // there is room again
	a.close()
	if to.entries["loud"] != auditWaiting/2+1 {
		t.Errorf("written: %v", to.entries)
	}
}

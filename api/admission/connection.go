package admission

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/sandfarm/sandfarm/internal/store"
)

// opened counts a connection, and starts the renewal if it is the first.
func (g *Gate) opened(tenant, id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[tenant] == nil {
		g.open[tenant] = map[string]bool{}
	}
	g.open[tenant][id] = true
	if g.stop == nil {
		stop := make(chan struct{})
		g.stop = stop
		g.calls.Go(func() { g.renewUntil(stop) })
	}
}

// closed stops counting a connection. It does not wait for Redis; if it does not answer, the lease ends on its own.
func (g *Gate) closed(ctx context.Context, tenant, id string) {
	g.mu.Lock()
	delete(g.open[tenant], id)
	if len(g.open[tenant]) == 0 {
		delete(g.open, tenant)
	}
	if len(g.open) == 0 {
		g.stopRenewal()
	}
	g.mu.Unlock()
	g.calls.Go(func() {
		ctx, done := context.WithTimeout(context.WithoutCancel(ctx), callTimeout) // the request is over
		defer done()
		if err := g.store.EndConnection(ctx, tenant, id); err != nil {
			g.log.DebugContext(ctx, "the lease of a connection ends on its own", "tenant", tenant, "error", err)
		}
	})
}

// stopRenewal ends the renewal; the caller holds mu.
func (g *Gate) stopRenewal() {
	if g.stop != nil {
		close(g.stop)
		g.stop = nil
	}
}

// renewUntil renews the leases of the open connections until stop is closed.
func (g *Gate) renewUntil(stop <-chan struct{}) {
	tick := time.NewTicker(store.RenewConnectionsEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			g.renew()
		}
	}
}

func (g *Gate) renew() {
	g.mu.Lock()
	ids := make(map[string][]string, len(g.open))
	for tenant, open := range g.open {
		ids[tenant] = slices.Collect(maps.Keys(open))
	}
	g.mu.Unlock()
	ctx, done := context.WithTimeout(context.Background(), callTimeout) //nolint:forbidigo // of no request
	defer done()
	if err := g.store.RenewConnections(ctx, ids); err != nil {
		g.log.WarnContext(ctx, "open connections are not counted against their tenants' quotas for a while", "error", err)
	}
}

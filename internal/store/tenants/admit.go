package tenants

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store/db"
)

// connectionLease is how long a request counts against max_connections without RenewConnections: so long do those of an API server that died.
const connectionLease = 15 * time.Second

// RenewConnectionsEvery is how often a server must renew the connections that it serves.
const RenewConnectionsEvery = connectionLease / 3

// Admitted says what is left of requests_per_minute after a request.
type Admitted struct {
	Limited bool          // the tenant has the quota; without it the rest is zero
	Left    int           // requests that are allowed at once
	Full    time.Duration // until as many as the quota are allowed again, in whole seconds
}

type admitArgs struct {
	Rate        int    `lua:"rate"`        // requests in a minute; -1: no bound
	Connections int    `lua:"connections"` // at once; -1: no bound
	ID          string `lua:"id"`
	LeaseMS     int64  `lua:"lease_ms"`
	Count       int    `lua:"count"` // requests that are to be admitted
}

// Admit counts a request of a tenant against requests_per_minute and max_connections, in one step. The request has an id of its own; with
// max_connections it counts until EndConnection. A request beyond one of them is CodeExhausted, with the quota.
func (s *Store) Admit(ctx context.Context, tenant, id string, quotas farm.Quotas) (Admitted, error) {
	r, err := s.Run(ctx, "admit request", "tenant_admit", tenant, admitArgs{
		Rate: quotas.RequestsPerMinute, Connections: quotas.MaxConnections, ID: id, LeaseMS: connectionLease.Milliseconds(), Count: 1,
	})
	if err != nil {
		return Admitted{}, err
	}
	switch r.Text(0) {
	case "rate":
		return Admitted{}, rateError(quotas, time.Duration(r.Number(1))*time.Microsecond)
	case "connections":
		return Admitted{}, farm.QuotaError(farm.QuotaUse{Name: farm.QuotaConnections, Limit: float64(quotas.MaxConnections), Used: db.Number(r.Text(1))}, 1)
	}
	return Admitted{Limited: r.Text(1) != "", Left: r.Number(1), Full: time.Duration(r.Number(2)) * time.Second}, nil
}

// AdmitMore counts further requests of a tenant, which are part of one that was admitted, against requests_per_minute. It returns how many of them
// are admitted, and if these are fewer, beside it the refusal of the others, which is CodeExhausted with the quota.
func (s *Store) AdmitMore(ctx context.Context, tenant string, requests int, quotas farm.Quotas) (int, error) {
	r, err := s.Run(ctx, "admit requests", "tenant_admit", tenant, admitArgs{
		Rate: quotas.RequestsPerMinute, Connections: farm.NoQuota, Count: requests,
	})
	switch {
	case err != nil:
		return 0, err
	case r.Text(0) == "rate":
		return 0, rateError(quotas, time.Duration(r.Number(1))*time.Microsecond)
	case r.Number(3) < requests:
		return r.Number(3), rateError(quotas, time.Minute/time.Duration(quotas.RequestsPerMinute))
	}
	return requests, nil
}

// rateError refuses a request beyond requests_per_minute. The next one is allowed after a while.
func rateError(quotas farm.Quotas, after time.Duration) error {
	rate := float64(quotas.RequestsPerMinute)
	return farm.QuotaError(farm.QuotaUse{Name: farm.QuotaRequests, Limit: rate, Used: rate, RetryAfter: after}, 1)
}

// EndConnection says that a request of Admit is over.
func (s *Store) EndConnection(ctx context.Context, tenant, id string) error {
	return db.Wrap("end connection", s.Redis.ZRem(ctx, s.Index(tenant, db.IndexConnections), id).Err())
}

// RenewConnections keeps requests of Admit counted; call it every RenewConnectionsEvery with the ids of each tenant.
func (s *Store) RenewConnections(ctx context.Context, ids map[string][]string) error {
	now, err := s.Redis.Time(ctx).Result() // leases end by the clock of Redis
	if err != nil {
		return db.Wrap("renew connections", err)
	}
	end := float64(now.Add(connectionLease).UnixMicro())
	_, err = s.Redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		for tenant, of := range ids {
			members := make([]redis.Z, len(of))
			for i, id := range of {
				members[i] = redis.Z{Score: end, Member: id}
			}
			p.ZAdd(ctx, s.Index(tenant, db.IndexConnections), members...)
			p.PExpire(ctx, s.Index(tenant, db.IndexConnections), connectionLease)
		}
		return nil
	})
	return db.Wrap("renew connections", err)
}

package access

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/store"
)

const (
	refreshAfter = time.Second     // how old the remembered quotas of a tenant may be before they are read again
	callTimeout  = 3 * time.Second // of calls that no request waits for
	maxTenants   = 10_000          // whose quotas are remembered
)

const (
	// ByteRate is how many bytes the requests of a tenant may move through a server in a second, once there is another tenant: one that sends as
	// fast as the network takes the cores and the disk that others need.
	ByteRate = 64 << 20
	// ByteBurst is how many of them it may move at once.
	ByteBurst = 256 << 20
)

// GateStore keeps quotas and counts; *store.Store is one.
type GateStore interface {
	TenantQuotas(ctx context.Context, tenant string) (farm.Quotas, map[farm.QuotaName]float64, error)
	Admit(ctx context.Context, tenant, id string, quotas farm.Quotas) (store.Admitted, error)
	AdmitMore(ctx context.Context, tenant string, requests int, quotas farm.Quotas) (int, error)
	EndConnection(ctx context.Context, tenant, id string) error
	RenewConnections(ctx context.Context, ids map[string][]string) error
}

// Gate lets requests of a tenant in, as many as its quotas requests_per_minute and max_connections allow. The counts are in Redis, one call for both,
// so all API servers share them; a tenant without these quotas costs no call. What it remembers of the quotas is at most a second old when
// requests come steadily. It is safe for concurrent use.
type Gate struct {
	store   GateStore
	now     func() time.Time
	log     *slog.Logger
	refused func(farm.QuotaName)

	calls sync.WaitGroup

	mu      sync.Mutex
	tenants map[string]*known
	open    map[string]map[string]bool // connections that are counted, by tenant
	stop    chan struct{}              // ends the renewal; nil: none runs
}

// known is what a server remembers of a tenant.
type known struct {
	quotas  farm.Quotas
	read    time.Time
	reading bool
	changed bool          // the quotas were set by this server: they are read before the next request
	blocked time.Time     // until then every request is beyond the rate, so Redis is not asked
	bytes   *rate.Limiter // nothing is bounded while the server knows no other tenant
}

// GateConfig are the parts of a Gate. All but Store have defaults.
type GateConfig struct {
	Store   GateStore
	Now     func() time.Time     // default time.Now
	Logger  *slog.Logger         // default: nothing is logged
	Refused func(farm.QuotaName) // called for every refused request; default: nothing
}

// NewGate makes a Gate. It does no I/O.
func NewGate(c GateConfig) *Gate {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Refused == nil {
		c.Refused = func(farm.QuotaName) {}
	}
	return &Gate{store: c.Store, now: c.Now, log: c.Logger, refused: c.Refused, tenants: map[string]*known{}, open: map[string]map[string]bool{}}
}

// Enter admits a request, whose id is unique, and sets the RateLimit headers of its answer if its tenant has a rate. leave, which is
// never nil, must be called at the end of the request. The error is CodeExhausted, with the quota. If Redis does not answer, every request is
// admitted: those that need Redis fail on their own.
//
// A caller that is not admitted is none that package httpserver knows: nothing else bounds how many it sends.
func (g *Gate) Enter(ctx context.Context, tenant, id string, header http.Header) (leave func(), err error) {
	if leave, err = g.enter(ctx, tenant, id, header); err == nil {
		httpserver.Known(ctx, tenant, g.Bytes(tenant))
	}
	return leave, err
}

func (g *Gate) enter(ctx context.Context, tenant, id string, header http.Header) (leave func(), err error) {
	leave = func() {}
	quotas, blocked, ok := g.quotas(ctx, tenant)
	if !ok || quotas.RequestsPerMinute < 0 && quotas.MaxConnections < 0 {
		return leave, nil
	}
	var got store.Admitted
	if blocked > 0 {
		err = beyondRate(quotas, blocked)
	} else {
		got, err = g.store.Admit(ctx, tenant, id, quotas)
	}
	if use := g.refusal(tenant, quotas, err, blocked <= 0); use != nil {
		if use.RetryAfter > 0 {
			rateHeaders(header, quotas.RequestsPerMinute, 0, use.RetryAfter)
		}
		return leave, err
	}
	if err != nil {
		g.log.WarnContext(ctx, "a request is not counted against its tenant's quotas", "tenant", tenant, "error", err)
		return leave, nil
	}
	if got.Limited {
		rateHeaders(header, quotas.RequestsPerMinute, got.Left, got.Full)
	}
	if quotas.MaxConnections < 0 {
		return leave, nil
	}
	g.opened(tenant, id) //nolint:contextcheck // leases of all requests are renewed together
	return sync.OnceFunc(func() { g.closed(ctx, tenant, id) }), nil
}

// lease counts who needs the place of a request among its tenant's connections.
type lease struct {
	holders atomic.Int64
	leave   func()
}

func (l *lease) end() {
	if l.holders.Add(-1) == 0 {
		l.leave()
	}
}

type leaseKey struct{}

// WithLease makes Outlast possible for a request of Enter. end takes the place of leave: it is called once, at the end of the request.
func WithLease(ctx context.Context, leave func()) (leased context.Context, end func()) {
	l := &lease{leave: leave}
	l.holders.Store(1)
	return context.WithValue(ctx, leaseKey{}, l), l.end
}

// Outlast keeps a request counted against max_connections until end is called, once: for work that goes on when the request is over. It is called
// while the request lasts, with its context.
func Outlast(ctx context.Context) (end func()) {
	l, ok := ctx.Value(leaseKey{}).(*lease)
	if !ok {
		return func() {}
	}
	l.holders.Add(1)
	return l.end
}

// Bytes bounds the bytes that all requests of a tenant move through this server, see httpserver.Known; nil: the tenant has had none.
func (g *Gate) Bytes(tenant string) *rate.Limiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	if k := g.tenants[tenant]; k != nil {
		return k.bytes
	}
	return nil
}

// More admits further requests, which one request that was admitted holds, such as the jobs of a batch or the cells of a WebSocket. It returns how many of them are, and if these are fewer,
// beside it the refusal of the others: CodeExhausted, with the quota.
func (g *Gate) More(ctx context.Context, tenant string, requests int) (int, error) {
	quotas, blocked, ok := g.quotas(ctx, tenant)
	if !ok || quotas.RequestsPerMinute < 0 || requests < 1 {
		return requests, nil
	}
	admitted, err := 0, error(nil)
	if blocked > 0 {
		err = beyondRate(quotas, blocked)
	} else {
		admitted, err = g.store.AdmitMore(ctx, tenant, requests, quotas)
	}
	if g.refusal(tenant, quotas, err, blocked <= 0 && admitted == 0) != nil {
		return admitted, err
	}
	if err != nil {
		g.log.WarnContext(ctx, "further requests are not counted against their tenant's quotas", "tenant", tenant, "error", err)
	}
	return requests, nil
}

// beyondRate refuses a request of a tenant whose every request is beyond the rate for a while.
func beyondRate(quotas farm.Quotas, blocked time.Duration) error {
	perMinute := float64(quotas.RequestsPerMinute)
	return farm.QuotaError(farm.QuotaUse{Name: farm.QuotaRequests, Limit: perMinute, Used: perMinute, RetryAfter: blocked}, 1)
}

// refusal counts the refusal of a request by a quota, and returns the quota; nil: err is no refusal. block: until its RetryAfter every request of
// the tenant is refused, which is remembered.
func (g *Gate) refusal(tenant string, quotas farm.Quotas, err error, block bool) *farm.QuotaUse {
	e, ok := errors.AsType[*farm.Error](err)
	if !ok || e.Quota == nil {
		return nil
	}
	if block && e.Quota.RetryAfter > 0 {
		g.block(tenant, quotas, e.Quota.RetryAfter)
	}
	g.refused(e.Quota.Name)
	return e.Quota
}

// rateHeaders sets the headers of draft-ietf-httpapi-ratelimit-headers-10: the policy is the quota in 60 seconds, and left requests are
// allowed now. until is when all of them are allowed again, or the next one if none is left.
func rateHeaders(h http.Header, perMinute, left int, until time.Duration) {
	seconds := strconv.Itoa(int(math.Ceil(until.Seconds())))
	h.Set("RateLimit-Policy", `"requests";q=`+strconv.Itoa(perMinute)+`;w=60`)
	h.Set("RateLimit", `"requests";r=`+strconv.Itoa(left)+`;t=`+seconds)
}

// quotas are those of a tenant, and for how long every request is beyond the rate. They are read from Redis for the first request of a tenant,
// and later beside the requests. ok is false if they could not be read.
func (g *Gate) quotas(ctx context.Context, tenant string) (q farm.Quotas, blocked time.Duration, ok bool) {
	g.mu.Lock()
	k := g.tenants[tenant]
	if k == nil || k.changed {
		g.mu.Unlock()
		return g.read(ctx, tenant)
	}
	defer g.mu.Unlock()
	if now := g.now(); !k.reading && now.Sub(k.read) >= refreshAfter {
		k.reading = true
		g.calls.Go(func() {
			ctx, done := context.WithTimeout(context.WithoutCancel(ctx), callTimeout) // for the next requests, not for this one
			defer done()
			g.read(ctx, tenant)
		})
	}
	return k.quotas, k.blocked.Sub(g.now()), true
}

// read reads the quotas of a tenant and remembers them.
func (g *Gate) read(ctx context.Context, tenant string) (farm.Quotas, time.Duration, bool) {
	began := g.now()
	quotas, _, err := g.store.TenantQuotas(ctx, tenant)
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.tenants[tenant]
	if err != nil {
		if k != nil {
			k.reading = false
		}
		return farm.Quotas{}, 0, false
	}
	if k == nil {
		if len(g.tenants) >= maxTenants {
			clear(g.tenants) // they are read again
		}
		k = &known{bytes: rate.NewLimiter(rate.Inf, ByteBurst)}
		g.tenants[tenant] = k
		if len(g.tenants) == 2 {
			for _, k := range g.tenants {
				k.bytes.SetLimit(ByteRate)
			}
		}
		if len(g.tenants) > 2 {
			k.bytes.SetLimit(ByteRate)
		}
	}
	if k.quotas.RequestsPerMinute != quotas.RequestsPerMinute {
		k.blocked = time.Time{}
	}
	k.quotas, k.read, k.reading, k.changed = quotas, began, false, false
	return quotas, k.blocked.Sub(g.now()), true
}

// Forget reads a tenant's quotas again for its next request: they were changed by this server.
func (g *Gate) Forget(tenant string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if k := g.tenants[tenant]; k != nil {
		k.changed = true
	}
}

// block remembers that a tenant is beyond its rate.
func (g *Gate) block(tenant string, quotas farm.Quotas, d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if k := g.tenants[tenant]; k != nil && k.quotas.RequestsPerMinute == quotas.RequestsPerMinute {
		k.blocked = g.now().Add(d)
	}
}

// Close ends the renewal of connections and waits for calls in progress. Requests are over by then.
func (g *Gate) Close() {
	g.mu.Lock()
	clear(g.open)
	g.stopRenewal()
	g.mu.Unlock()
	g.calls.Wait()
}

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

package access_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// counts is a store that counts the calls that reach it.
type counts struct {
	mu                  sync.Mutex
	quotas              farm.Quotas
	answer              store.Admitted
	err                 error
	more                int // how many AdmitMore admits
	reads, admits, ends int
	renewed             []map[string][]string
}

func (c *counts) TenantQuotas(context.Context, string) (farm.Quotas, map[farm.QuotaName]float64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	return c.quotas, nil, nil
}

func (c *counts) Admit(context.Context, string, string, farm.Quotas) (store.Admitted, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.admits++
	return c.answer, c.err
}

func (c *counts) AdmitMore(_ context.Context, _ string, requests int, _ farm.Quotas) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.admits++
	return min(requests, c.more), c.err
}

func (c *counts) EndConnection(context.Context, string, string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends++
	return nil
}

func (c *counts) RenewConnections(_ context.Context, ids map[string][]string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renewed = append(c.renewed, ids)
	return nil
}

func (c *counts) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

func quotas(perMinute, connections int) farm.Quotas {
	q := farm.DefaultQuotas()
	q.RequestsPerMinute, q.MaxConnections = perMinute, connections
	return q
}

// The bytes of a tenant are bounded once the server knows another one.
func TestBytesOfTenants(t *testing.T) {
	t.Parallel()
	g := access.NewGate(access.GateConfig{Store: &counts{quotas: quotas(-1, -1)}})
	defer g.Close()
	limits := map[string]rate.Limit{}
	for _, tenant := range []string{"one", "two", "three"} {
		leave, err := g.Enter(t.Context(), tenant, "req", http.Header{})
		testbed.Must(t, err)
		leave()
		if limits[tenant] = g.Bytes(tenant).Limit(); tenant == "one" {
			testbed.Check(t, limits[tenant] == rate.Inf, "a tenant alone has %v bytes a second", limits[tenant])
		}
		testbed.Check(t, g.Bytes(tenant).Burst() == access.ByteBurst, "a tenant has %d bytes at once", g.Bytes(tenant).Burst())
	}
	limits["one"] = g.Bytes("one").Limit()
	testbed.Diff(t, "bytes a second", map[string]rate.Limit{"one": access.ByteRate, "two": access.ByteRate, "three": access.ByteRate}, limits)
}

// A caller that its quotas refuse is not known to the server, whatever its key: it could hold the connections of all others with requests that are never
// admitted.
func TestRefusedCallersAreNotKnown(t *testing.T) {
	t.Parallel()
	refusal := farm.QuotaError(farm.QuotaUse{Name: farm.QuotaConnections, Limit: 1, Used: 1}, 1)
	for name, err := range map[string]error{"admitted": nil, "refused": refusal, "without Redis": errors.New("connection refused")} {
		g := access.NewGate(access.GateConfig{Store: &counts{quotas: quotas(-1, 1), err: err}})
		defer g.Close()
		s := httpserver.New(httpserver.Config{Name: "test", Listen: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler), HTTP: &http.Server{
			ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				leave, _ := g.Enter(r.Context(), "acme", "req", http.Header{})
				defer leave()
				g.Bytes("acme").SetLimit(1)
				_, _ = io.WriteString(w, strings.Repeat("x", 10_000))
			}),
		}})
		testbed.Must(t, s.Start(t.Context()))
		answer, failed := http.Get("http://" + s.Addr()) //nolint:noctx // of this test's server
		testbed.Must(t, failed)
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		s.Stop()
		known := g.Bytes("acme").Tokens() < access.ByteBurst-9_000
		testbed.Check(t, known == (name != "refused"), "a caller that is %s is known: %v", name, known)
	}
}

// A tenant without these quotas costs no call of Redis for a request: its quotas are read once, and later beside the requests, at most once in
// a second. A quota that is set counts within a second.
func TestNoQuotaCostsNoCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &counts{quotas: quotas(-1, -1)}
		g := access.NewGate(access.GateConfig{Store: c})
		defer g.Close()
		enter := func() error {
			leave, err := g.Enter(t.Context(), "acme", "req", http.Header{})
			leave()
			return err
		}
		for range 1000 {
			testbed.Must(t, enter())
		}
		if c.reads != 1 || c.admits != 0 {
			t.Errorf("1000 requests read the quotas %d times and were counted %d times", c.reads, c.admits)
		}
		c.set(func() { c.quotas = quotas(5, -1) })
		time.Sleep(time.Second)
		for range 3 { // the first one starts the reading
			_ = enter()
			synctest.Wait()
		}
		if c.reads != 2 || c.admits != 2 {
			t.Errorf("after a change the quotas were read %d times, and %d requests counted; want 2 and 2", c.reads, c.admits)
		}
		c.set(func() { c.quotas = quotas(-1, -1) })
		g.Forget("acme")
		if _ = enter(); c.admits != 2 {
			t.Error("after Forget the old quotas count")
		}
	})
}

// A tenant beyond its rate is refused without Redis until its next request is allowed, and told so.
func TestBeyondTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		refused := map[farm.QuotaName]int{}
		c := &counts{quotas: quotas(20, -1), answer: store.Admitted{Limited: true, Left: 7, Full: 39 * time.Second}}
		g := access.NewGate(access.GateConfig{Store: c, Refused: func(q farm.QuotaName) { refused[q]++ }})
		defer g.Close()
		h := http.Header{}
		_, err := g.Enter(t.Context(), "acme", "req", h)
		testbed.Must(t, err)
		want := http.Header{"Ratelimit-Policy": {`"requests";q=20;w=60`}, "Ratelimit": {`"requests";r=7;t=39`}}
		testbed.Diff(t, "headers", want, h)
		c.set(func() {
			c.err = farm.QuotaError(farm.QuotaUse{Name: farm.QuotaRequests, Limit: 20, Used: 20, RetryAfter: 2500 * time.Millisecond}, 1)
		})
		for i := range 50 {
			h = http.Header{}
			_, err := g.Enter(t.Context(), "acme", fmt.Sprint(i), h)
			e, ok := errors.AsType[*farm.Error](err)
			if !ok || e.Code != farm.CodeExhausted || e.Quota == nil || e.Quota.RetryAfter != 2500*time.Millisecond || h.Get("RateLimit") != `"requests";r=0;t=3` {
				t.Fatalf("request %d: %v, headers %v", i, err, h)
			}
		}
		if c.admits != 2 || refused[farm.QuotaRequests] != 50 {
			t.Errorf("Redis was asked %d times and %v refusals were counted; want 2 and 50", c.admits, refused)
		}
		c.set(func() { c.err = nil })
		time.Sleep(2500 * time.Millisecond)
		if _, err := g.Enter(t.Context(), "acme", "later", h); err != nil {
			t.Errorf("when the next request is allowed: %v", err)
		}
	})
}

// What Enter and More are refused counts for both: each message of a WebSocket beyond the rate was a call of Redis. A batch of which some are
// admitted says nothing of the next request.
func TestFurtherRequestsBeyondTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		refused := 0
		c := &counts{
			quotas: quotas(20, -1), more: 2,
			err: farm.QuotaError(farm.QuotaUse{Name: farm.QuotaRequests, Limit: 20, Used: 20, RetryAfter: 2500 * time.Millisecond}, 1),
		}
		g := access.NewGate(access.GateConfig{Store: c, Refused: func(farm.QuotaName) { refused++ }})
		defer g.Close()
		if n, err := g.More(t.Context(), "acme", 5); n != 2 || farm.CodeOf(err) != farm.CodeExhausted {
			t.Errorf("of a batch of 5: %d, %v", n, err)
		}
		c.set(func() { c.more = 0 })
		for i := range 50 {
			n, err := g.More(t.Context(), "acme", 1)
			if e, ok := errors.AsType[*farm.Error](err); n != 0 || !ok || e.Quota == nil || e.Quota.RetryAfter != 2500*time.Millisecond {
				t.Fatalf("message %d: %d, %v", i, n, err)
			}
		}
		if _, err := g.Enter(t.Context(), "acme", "req", http.Header{}); farm.CodeOf(err) != farm.CodeExhausted {
			t.Errorf("a request beside them: %v", err)
		}
		if c.admits != 2 || refused != 52 {
			t.Errorf("Redis was asked %d times and %d refusals were counted; want 2 and 52", c.admits, refused)
		}
		c.set(func() { c.err, c.more = nil, 1 })
		time.Sleep(2500 * time.Millisecond)
		if n, err := g.More(t.Context(), "acme", 1); n != 1 || err != nil {
			t.Errorf("when the next is allowed: %d, %v", n, err)
		}
	})
}

// A Redis that does not answer stops nobody.
func TestRedisAway(t *testing.T) {
	t.Parallel()
	c := &counts{quotas: quotas(20, 20), err: errors.New("connection refused")}
	g := access.NewGate(access.GateConfig{Store: c})
	defer g.Close()
	if _, err := g.Enter(t.Context(), "acme", "req", http.Header{}); err != nil {
		t.Error(err)
	}
}

// Open connections are renewed while they are open, and given back once.
func TestConnectionsAreRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &counts{quotas: quotas(-1, 20)}
		g := access.NewGate(access.GateConfig{Store: c})
		var leaves []func()
		for _, id := range []string{"a", "b"} {
			leave, err := g.Enter(t.Context(), "acme", id, http.Header{})
			testbed.Must(t, err)
			leaves = append(leaves, leave)
		}
		time.Sleep(store.RenewConnectionsEvery + time.Second)
		synctest.Wait()
		if len(c.renewed) != 1 || len(c.renewed[0]["acme"]) != 2 {
			t.Errorf("renewed: %v", c.renewed)
		}
		leaves[0]()
		leaves[0]()
		time.Sleep(store.RenewConnectionsEvery)
		synctest.Wait()
		testbed.Diff(t, "renewed", map[string][]string{"acme": {"b"}}, c.renewed[len(c.renewed)-1])
		leaves[1]()
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(c.renewed) != 2 || c.ends != 2 {
			t.Errorf("after the end: renewed %d times, given back %d times; want 2 and 2", len(c.renewed), c.ends)
		}
		g.Close()
	})
}

// records makes key sets of the real store, without a network: a connection would not end in the bubble of synctest.
type records struct {
	mu      sync.Mutex
	sums    map[string]store.KeySum
	keys    map[string]farm.Key
	version int
	down    error
	hang    bool
	looks   int // calls of KeysVersion and KeySet
	used    map[string]time.Time
}

func newRecords() *records {
	return &records{sums: map[string]store.KeySum{}, keys: map[string]farm.Key{}, used: map[string]time.Time{}}
}

func (r *records) create(secret string, key farm.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key.ID = "key_" + secret
	r.sums[secret], r.keys[secret] = sha256.Sum256([]byte(secret)), key
	r.version++
}

func (r *records) revoke(secret string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.keys, secret)
	r.version++
}

func (r *records) lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.keys)
	r.version = 0
}

func (r *records) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = err
}

func (r *records) answer(ctx context.Context) error {
	r.mu.Lock()
	r.looks++
	down, hang := r.down, r.hang
	r.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return down
}

func (r *records) KeysVersion(ctx context.Context) (string, error) {
	if err := r.answer(ctx); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprint(r.version), nil
}

func (r *records) KeySet(ctx context.Context) (store.KeySet, error) {
	if err := r.answer(ctx); err != nil {
		return store.KeySet{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	set := store.NewKeySet(fmt.Sprint(r.version))
	for secret, key := range r.keys {
		if err := set.Add(r.sums[secret], key); err != nil {
			return set, err
		}
	}
	return set, nil
}

func (r *records) NoteKeyUse(_ context.Context, used map[string]time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down != nil {
		return r.down
	}
	for id, at := range used {
		r.used[id] = at
	}
	return nil
}

func acme(scopes ...farm.Scope) farm.Key { return farm.Key{Tenant: "acme", Scopes: scopes} }

func find(t *testing.T, ring *access.Keys, secret string) (access.Caller, farm.Code) {
	t.Helper()
	caller, err := ring.Find(t.Context(), secret)
	return caller, farm.CodeOf(err)
}

// Work that outlasts its request keeps it counted: its place is given back once, when both are over, whichever ends last.
func TestOutlastingWorkKeepsItsRequestCounted(t *testing.T) {
	t.Parallel()
	left := 0
	ctx, end := access.WithLease(t.Context(), func() { left++ })
	first, second := access.Outlast(ctx), access.Outlast(context.WithoutCancel(ctx))
	for i, over := range []func(){end, first} {
		over()
		testbed.Check(t, left == 0, "after the end of %d of three the place was given back", i+1)
	}
	second()
	testbed.Check(t, left == 1, "the place was given back %d times", left)
	access.Outlast(t.Context())() // nothing is counted
	ctx, end = access.WithLease(t.Context(), func() { left++ })
	access.Outlast(ctx)()
	testbed.Check(t, left == 1, "the work ended before its request")
	end()
	testbed.Check(t, left == 2, "a request that ends last")
}

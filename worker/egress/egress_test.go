package egress_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/secret"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/egress"
)

// here resolves every name to this machine.
type here struct{}

func (here) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

// world is a store with a sandbox, and a server that the sandbox may reach as api.example.com.
type world struct {
	store *store.Store
	box   *farm.Sandbox
	addr  string         // api.example.com and the server's port
	roots *x509.CertPool // that sign the server's certificate
}

func newWorld(t *testing.T, limits farm.Limits, serve http.HandlerFunc) *world {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	s := store.New(rdb, storetest.NoTasks, store.Options{Limits: limits})
	t.Cleanup(func() { _ = s.Close() })
	authority, roots := newAuthority(t)
	issuer, err := secret.NewIssuer(authority, time.Now)
	testbed.Must(t, err)
	certificate, err := issuer.Certify("api.example.com")
	testbed.Must(t, err)
	server := httptest.NewUnstartedServer(serve)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{*certificate}} //nolint:gosec // the test's own server
	server.StartTLS()
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	w := &world{store: s, addr: "api.example.com:" + port, roots: roots}
	w.box = &farm.Sandbox{
		ID: farm.NewID(farm.SandboxPrefix), Tenant: "acme", Generation: 1, CreatedAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour),
		Spec: farm.SandboxSpec{Image: "python", Network: farm.NetworkAllowlist, AllowHosts: []string{w.addr}},
	}
	_, err = s.RestoreSandbox(t.Context(), w.box)
	testbed.Must(t, err)
	return w
}

// open makes a proxy of the sandbox, as one worker does, and a client that uses it.
func (w *world) open(t *testing.T, change func(*egress.Deps)) (*egress.Egress, *http.Client) {
	t.Helper()
	rule, err := farm.ParseHostRule("*." + strings.TrimPrefix(w.addr, "api."))
	testbed.Must(t, err)
	deps := egress.Deps{
		Records: w.store, Log: slog.New(slog.DiscardHandler), Allow: []farm.HostRule{rule}, Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, Resolver: here{},
	}
	if change != nil {
		change(&deps)
	}
	e, err := egress.New(deps)
	testbed.Must(t, err)
	x := e.Open(t.Context(), w.box)
	t.Cleanup(x.Close)
	server := httptest.NewServer(x)
	t.Cleanup(server.CloseClientConnections)
	t.Cleanup(func() { go server.Close() })
	proxy, _ := url.Parse(server.URL)
	transport := &http.Transport{Proxy: http.ProxyURL(proxy), DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the test's own server
	t.Cleanup(transport.CloseIdleConnections)
	return e, &http.Client{Transport: transport, Timeout: time.Minute}
}

func (w *world) get(t *testing.T, c *http.Client) (int64, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+w.addr+"/", http.NoBody)
	testbed.Must(t, err)
	res, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	return io.Copy(io.Discard, res.Body)
}

// log waits until the log has an entry with a verdict.
func (w *world) log(t *testing.T, verdict string) farm.EgressEntry {
	t.Helper()
	var entries []farm.EgressEntry
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var err error
		entries, _, err = w.store.Egress(t.Context(), w.box.Ref(), "", 100)
		testbed.Must(t, err)
		for _, e := range entries {
			if e.Verdict == verdict {
				return e
			}
		}
	}
	t.Fatalf("the log has no %s entry: %+v", verdict, entries)
	return farm.EgressEntry{}
}

// A range that the operator allows does not open what listens on the worker's own machine, which no firewall sees.
func TestPrivateRangesAreNotThisMachine(t *testing.T) {
	t.Parallel()
	for prefix, open := range map[string]bool{"127.0.0.1/32": true, "127.0.0.0/31": false, "127.0.0.0/8": false, "0.0.0.0/0": false} {
		w := newWorld(t, farm.Limits{}, func(http.ResponseWriter, *http.Request) {})
		_, c := w.open(t, func(d *egress.Deps) { d.Private = []netip.Prefix{netip.MustParsePrefix(prefix)} })
		_, err := w.get(t, c)
		testbed.Check(t, (err == nil) == open, "with egress.private = %s: %v", prefix, err)
		if !open {
			e := w.log(t, string(egressproxy.Denied))
			testbed.Check(t, e.Reason == egressproxy.ReasonAddress, "with egress.private = %s: %+v", prefix, e)
		}
	}
}

// The list is changed while a tunnel is open: the tunnel ends, new ones are denied, and a list that allows them again does so at once.
func TestHostsChangeWhileATunnelIsOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t, farm.DefaultLimits(), func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, "begun\n")
		_ = http.NewResponseController(rw).Flush()
		if r.URL.Path == "/hang" {
			<-r.Context().Done()
		}
	})
	e, c := w.open(t, nil)
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+w.addr+"/hang", http.NoBody)
	res, err := c.Do(req)
	testbed.Must(t, err)
	defer func() { _ = res.Body.Close() }()
	body := bufio.NewReader(res.Body)
	if line, err := body.ReadString('\n'); line != "begun\n" {
		t.Fatalf("%q, %v", line, err)
	}
	for _, hosts := range [][]string{{w.addr, "other.example.com"}, {}, {w.addr}} {
		_, err = w.store.UpdateSandbox(t.Context(), w.box.Ref(), store.SandboxPatch{AllowHosts: &hosts})
		testbed.Must(t, err)
		testbed.Must(t, e.Refresh(t.Context(), w.box.Ref()))
		if len(hosts) == 0 {
			_, err := body.ReadByte()
			testbed.Check(t, err != nil, "the tunnel is still open")
		}
		_, err := w.get(t, c)
		testbed.Check(t, (err == nil) == (len(hosts) > 0), "hosts %q: %v", hosts, err)
	}
	// Other connections may end as the rules change, or by their client.
	if got := w.log(t, "denied"); got.Host != "api.example.com" || got.Method != http.MethodConnect || got.Reason != egressproxy.ReasonRules || got.Received == 0 || got.Sent == 0 || got.At.IsZero() {
		t.Errorf("%+v", got)
	}
}

// What an operator does not allow any more is not reached, whatever records say.
// A run that ends asks what was denied to it, and then the log has it, too.
func TestDeniedHostsAreKnownWhenARunEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, farm.DefaultLimits(), func(http.ResponseWriter, *http.Request) {})
	e, c := w.open(t, nil)
	began := time.Now()
	for _, host := range []string{"a.example.org", "b.example.org", "a.example.org"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+host+"/", http.NoBody)
		testbed.Must(t, err)
		if res, err := c.Do(req); err == nil {
			_ = res.Body.Close()
			t.Fatalf("%s was reached", host)
		}
	}
	_, err := w.get(t, c)
	testbed.Must(t, err)
	var hosts []string
	for _, d := range e.Denied(t.Context(), w.box.Ref(), began) {
		hosts = append(hosts, fmt.Sprintf("%s:%d %s", d.Host, d.Port, d.Reason))
	}
	want := []string{"b.example.org:443 " + egressproxy.ReasonRule, "a.example.org:443 " + egressproxy.ReasonRule}
	testbed.Check(t, slices.Equal(hosts, want), "denied %q, want %q", hosts, want)
	logged, _, err := w.store.Egress(t.Context(), w.box.Ref(), "", 100)
	testbed.Check(t, err == nil && len(logged) >= 3, "the log has %+v, %v", logged, err)
	later := e.Denied(t.Context(), w.box.Ref(), time.Now())
	testbed.Check(t, len(later) == 0, "denied to a later run: %+v", later)
	others := e.Denied(t.Context(), farm.Ref{Tenant: "acme", ID: "sbx_other"}, began)
	testbed.Check(t, len(others) == 0, "denied to another sandbox: %+v", others)
}

// A host that a rule allows may have a private address.
func TestAllowedHostsThatWereNotReachedAreKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, farm.DefaultLimits(), func(http.ResponseWriter, *http.Request) {})
	e, c := w.open(t, func(d *egress.Deps) { d.Private = nil })
	began := time.Now()
	_, err := w.get(t, c)
	testbed.Require(t, err != nil, "a private address was reached")
	found := e.Denied(t.Context(), w.box.Ref(), began)
	testbed.Check(t, len(found) == 1 && found[0].Reason == egressproxy.ReasonAddress, "not reached: %+v", found)
}

func TestTheOperatorsListBoundsRecords(t *testing.T) {
	t.Parallel()
	w := newWorld(t, farm.DefaultLimits(), func(http.ResponseWriter, *http.Request) {})
	_, c := w.open(t, func(d *egress.Deps) { d.Allow = nil })
	_, err := w.get(t, c)
	testbed.Check(t, err != nil, "the host was reached")
	w.log(t, "denied")
}

// A tenant's list that gets narrower ends a connection and denies new ones, and the log says why.
func TestTheTenantsListBoundsRecords(t *testing.T) {
	t.Parallel()
	w := newWorld(t, farm.DefaultLimits(), func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, "begun\n")
		_ = http.NewResponseController(rw).Flush()
		if r.URL.Path == "/hang" {
			<-r.Context().Done()
		}
	})
	e, c := w.open(t, nil)
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+w.addr+"/hang", http.NoBody)
	res, err := c.Do(req)
	testbed.Must(t, err)
	defer func() { _ = res.Body.Close() }()
	body := bufio.NewReader(res.Body)
	_, err = body.ReadString('\n')
	testbed.Must(t, err)
	own, err := farm.ParseHostRule(w.addr)
	testbed.Must(t, err)
	for i, hosts := range []store.TenantHosts{{Rules: []farm.HostRule{own}}, {}, {Farm: true}} {
		testbed.Must(t, w.store.ChangeTenant(t.Context(), w.box.Tenant, store.TenantChange{Hosts: &hosts}))
		testbed.Must(t, e.Refresh(t.Context(), w.box.Ref()))
		if i == 1 {
			_, err := body.ReadByte()
			testbed.Check(t, err != nil, "the tunnel is still open")
		}
		_, err := w.get(t, c)
		testbed.Check(t, (err == nil) == (i != 1), "with the tenant's hosts %+v: %v", hosts, err)
	}
	got := w.log(t, "denied")
	testbed.Check(t, got.Reason == egressproxy.ReasonCeiling, "%+v", got)
}

// Without the record nothing is allowed: the tenant's list may be narrower than what the caller knows of the sandbox.
func TestNothingIsReachedBeforeTheRulesAreRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, farm.DefaultLimits(), func(http.ResponseWriter, *http.Request) {})
	away := &unreadable{Store: w.store}
	away.is.Store(true)
	e, c := w.open(t, func(d *egress.Deps) { d.Records = away })
	_, err := w.get(t, c)
	testbed.Check(t, err != nil, "the host was reached")
	away.is.Store(false)
	testbed.Must(t, e.Refresh(t.Context(), w.box.Ref()))
	_, err = w.get(t, c)
	testbed.Must(t, err)
}

// unreadable is a store whose tenants cannot be read.
type unreadable struct {
	*store.Store
	is atomic.Bool
}

func (u *unreadable) TenantLists(ctx context.Context, tenant string) (store.TenantLists, error) {
	if u.is.Load() {
		return store.TenantLists{}, farm.Errorf(farm.CodeUnavailable, "Redis is away.")
	}
	return u.Store.TenantLists(ctx, tenant)
}

// The bytes of a sandbox are counted over all workers, and those of open connections at once.
func TestBytesCountAcrossWorkers(t *testing.T) {
	t.Parallel()
	const part = 400 << 10
	limits := farm.DefaultLimits()
	limits.EgressMB = 1
	w := newWorld(t, limits, func(rw http.ResponseWriter, r *http.Request) {
		_, _ = rw.Write(make([]byte, part))
	})
	_, first := w.open(t, func(d *egress.Deps) { d.Limits = limits })
	_, second := w.open(t, func(d *egress.Deps) { d.Limits = limits })
	total := func() int64 {
		n, err := w.store.AppendEgress(t.Context(), store.EgressAppend{Sandbox: w.box.Ref()})
		testbed.Must(t, err)
		return n
	}
	for i, c := range []*http.Client{first, second} {
		n, err := w.get(t, c)
		testbed.Require(t, n == part && err == nil, "%d bytes, %v", n, err)
		testbed.Until(t, "the bytes are counted", func() bool { return total() >= int64(i+1)*part })
	}
	_, third := w.open(t, func(d *egress.Deps) { d.Limits = limits }) // a worker that is new
	n, err := w.get(t, third)
	testbed.Check(t, err != nil && n < part, "%d bytes beyond the limit, %v", n, err)
	got := total()
	testbed.Check(t, got <= 1<<20, "%d bytes are counted, beyond the limit", got)
}

// Without memory for a connection it is refused with a reason, not kept waiting.
func TestConnectionsWithoutMemoryAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, farm.DefaultLimits(), func(http.ResponseWriter, *http.Request) {})
	memory := budget.New(0)
	taken := memory.Lasting("acme")
	testbed.Require(t, taken.Grow(memory.Share()/4), "nothing to take") // all that a tenant has for what lasts
	_, c := w.open(t, func(d *egress.Deps) { d.Budget = memory })
	_, err := w.get(t, c)
	testbed.Check(t, err != nil, "the host was reached")
	got := w.log(t, "failed")
	testbed.Check(t, strings.Contains(got.Reason, "no memory") && strings.HasPrefix(got.Host, "api.example.com"), "%+v", got)
	taken.Release()
	_, err = w.get(t, c)
	testbed.Check(t, err == nil, "with memory: %v", err)
}

// Streams are charged to the sandbox's tenant before their requests are read.
func TestStreamsWithoutMemoryAreNotAdmitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, farm.DefaultLimits(), nil)
	memory := budget.New(0)
	e, err := egress.New(egress.Deps{Records: w.store, Log: slog.New(slog.DiscardHandler), Budget: memory})
	testbed.Must(t, err)
	x := e.Open(t.Context(), w.box)
	defer x.Close()
	var releases []func()
	for release, ok := x.Admit(); ok; release, ok = x.Admit() {
		releases = append(releases, release)
	}
	got := w.log(t, "failed")
	testbed.Check(t, strings.Contains(got.Reason, "no memory"), "%+v", got)
	n := len(releases)
	testbed.Require(t, n != 0, "no stream is admitted")
	testbed.Check(t, !memory.Lasting("acme").Grow(budget.SmallBytes<<1), "the streams are not charged to the tenant")
	_, ok := e.Admit("acme")
	testbed.Check(t, !ok, "a stream to the package indexes is admitted without memory")
	releases[0]()
	_, ok = x.Admit()
	testbed.Check(t, ok, "with memory a stream is not admitted")
}

// Streams and connections last as long as their sandboxes like: two tenants with all that they can have stalled a third.
func TestStreamsLeaveMemoryToOtherTenants(t *testing.T) {
	t.Parallel()
	w := newWorld(t, farm.DefaultLimits(), nil)
	const worker = 64 << 20 // the budget of a worker with 256 MiB
	memory := budget.New(worker)
	e, err := egress.New(egress.Deps{Records: w.store, Log: slog.New(slog.DiscardHandler), Budget: memory})
	testbed.Must(t, err)
	for _, tenant := range []string{"one", "two"} {
		n := 0
		for release, ok := e.Admit(tenant); ok; release, ok = e.Admit(tenant) {
			defer release()
			n++
		}
		testbed.Check(t, n >= 50 && n <= 56, "a tenant has %d streams", n) // uv opens 50
	}
	third, ok := memory.TryAcquire("three", memory.Share())
	testbed.Check(t, ok, "the share of a third tenant is taken")
	third.Release()
}

// A burst of connections does not take memory beyond a bound: what is not in the log is counted.
func TestABurstIsCounted(t *testing.T) {
	t.Parallel()
	const burst = 700
	limits := farm.DefaultLimits()
	limits.EgressConnectsPerMinute = burst + 10
	w := newWorld(t, limits, func(http.ResponseWriter, *http.Request) {})
	e, err := egress.New(egress.Deps{Records: w.store, Log: slog.New(slog.DiscardHandler), Limits: limits})
	testbed.Must(t, err)
	x := e.Open(t.Context(), w.box)
	defer x.Close()
	ask := func(host string) {
		r := httptest.NewRequest(http.MethodGet, "http://"+host+"/", http.NoBody)
		x.ServeHTTP(httptest.NewRecorder(), r)
	}
	for i := range burst {
		ask(fmt.Sprintf("h%d.example.com", i))
	}
	last := ""
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		ask("last.example.com")
		entries, _, err := w.store.Egress(t.Context(), w.box.Ref(), "", 1000)
		testbed.Must(t, err)
		seen, missed := 0, 0
		for _, entry := range entries {
			if entry.Host != "last.example.com" {
				seen++
			}
			missed += entry.Missed
			last = entry.Host
		}
		if last == "last.example.com" {
			testbed.Check(t, seen <= burst && seen+missed >= burst, "%d of %d are in the log, %d are counted", seen, burst, missed)
			return
		}
	}
	t.Fatal("the log was not written")
}

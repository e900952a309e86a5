// Package egress is what a worker does for the network allowlist: it has a proxy for each sandbox of that network whose agent it is connected
// to, gives it the rules of the sandbox's record, also when they change, and writes what it reports to the sandbox's log. What may be
// connected to, and how, is package egressproxy's to decide.
package egress

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/secret"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/telemetry"
)

const (
	// readTimeout bounds reading a record. Until it has been read nothing is allowed; it is tried again.
	readTimeout = 2 * time.Second
	// connectionBytes is what a connection whose host is slow may keep in memory: a window of its stream, and what was read of it.
	connectionBytes = 320 << 10
	// streamBytes is what a stream of the agent may keep in memory before its request is read: the header, and what was received of it. Of a
	// worker with 256 MiB a tenant has 56 streams to the package indexes, or 16 connections to hosts: an eighth of 56 MiB, see budget.Lasting.
	streamBytes = 128 << 10
	// reasonMemory is the reason of a connection that was refused for want of memory.
	reasonMemory = "this farm's worker has no memory for more connections"
	// syncEvery is how often the rules are read again: the message about a change may be lost.
	syncEvery = 10 * time.Second
)

// Records are the records of sandboxes and the logs of their connections.
type Records interface {
	Sandbox(ctx context.Context, ref farm.Ref) (*farm.Sandbox, error)
	TenantLists(ctx context.Context, tenant string) (store.TenantLists, error)
	SandboxSecrets(ctx context.Context, ref farm.Ref) ([]byte, error)
	AppendEgress(ctx context.Context, a store.EgressAppend) (bytes int64, err error)
}

// Deps are the dependencies of an Egress. Records and Log are required.
type Deps struct {
	Records Records
	Log     *slog.Logger
	Limits  farm.Limits // zero: the defaults
	// Allow is what sandboxes may reach at most, whatever their records say; empty: nothing.
	Allow []farm.HostRule
	// Private are ranges of addresses that may be connected to although they are not public. An address of the worker's own machine must be named by
	// itself.
	Private []netip.Prefix
	// Secrets open the secrets of sandboxes; nil: hosts with a secret are not reached.
	Secrets *secret.Keys
	// SecretPort is the port of hosts with secrets; 0: farm.SecretPort. Roots sign their certificates; nil: the system's. Both are for tests.
	SecretPort int
	Roots      *x509.CertPool
	// Budget is for the buffers of connections; nil: without limit.
	Budget *budget.Budget
	// Resolver finds the addresses of hosts; nil: the system's.
	Resolver egressproxy.Resolver
	// Metrics registers the counters; nil: they are not registered.
	Metrics prometheus.Registerer
}

// Egress has the proxies of a worker. It is safe for concurrent use.
type Egress struct {
	deps    Deps
	metrics *metrics
	buffers *httpserver.Buffers

	mu   sync.Mutex
	open map[farm.Ref]map[*Exit]struct{} // a connection to an agent may begin before the one before it has ended
}

// New makes an Egress without proxies.
func New(deps Deps) (*Egress, error) {
	if deps.Limits == (farm.Limits{}) {
		deps.Limits = farm.DefaultLimits()
	}
	e := &Egress{deps: deps, metrics: newMetrics(), buffers: httpserver.NewBuffers(), open: map[farm.Ref]map[*Exit]struct{}{}}
	if deps.Metrics == nil {
		return e, nil
	}
	return e, telemetry.Register(deps.Metrics, e.metrics.collectors()...)
}

// Exit is the proxy of one sandbox, for as long as the worker is connected to its agent.
type Exit struct {
	egress *Egress
	ref    farm.Ref
	proxy  *egressproxy.Proxy
	log    *recorder
	rules  sync.Mutex         // held from reading rules until they are set, so that the newest win
	vault  *vault             // secrets that have been opened; nil: none yet
	flush  chan chan struct{} // asks run to write the log, and to close what it gets
	stop   context.CancelFunc
	done   chan struct{}
}

// Open makes the proxy of a sandbox, with the rules of its stored record. The caller must Close it.
func (e *Egress) Open(ctx context.Context, s *farm.Sandbox) *Exit {
	x := &Exit{egress: e, ref: s.Ref(), flush: make(chan chan struct{}), done: make(chan struct{})}
	x.log = newRecorder(e, s)
	read, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	used, err := x.log.begin(read)
	if err != nil {
		e.deps.Log.WarnContext(ctx, "the bytes that a sandbox has transferred are not known yet", "sandbox_id", s.ID, "error", err)
	}
	l := e.deps.Limits
	x.proxy = egressproxy.New(egressproxy.Options{
		Limits: egressproxy.Limits{Connections: l.EgressConnections, ConnectsPerMinute: l.EgressConnectsPerMinute, Bytes: int64(l.EgressMB) << 20},
		Used:   used, Report: x.log.add, Budget: e.deps.Budget, Tenant: s.Tenant, Buffers: e.buffers, Resolver: e.deps.Resolver, Public: e.public(),
		SecretPort: e.deps.SecretPort, Roots: e.deps.Roots,
	})
	e.add(x)
	if err := x.refresh(read); err != nil {
		e.deps.Log.WarnContext(ctx, "a sandbox reaches nothing until its rules can be read", "sandbox_id", s.ID, "error", err)
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	x.stop = stop
	go x.run(life)
	return x
}

// Admit charges for one more stream of the agent until release is called, if there is memory for it. A request on it is charged by ServeHTTP.
func (x *Exit) Admit() (release func(), ok bool) {
	release, ok = x.egress.Admit(x.ref.Tenant)
	if !ok {
		x.log.add(egressproxy.Connection{At: time.Now(), Verdict: egressproxy.Failed, Reason: reasonMemory})
	}
	return release, ok
}

// Admit charges a tenant for one more stream of an agent, also of one that reaches the package indexes only, until release is called.
func (e *Egress) Admit(tenant string) (release func(), ok bool) {
	hold := e.deps.Budget.Lasting(tenant)
	return hold.Release, hold.Grow(streamBytes)
}

// ServeHTTP is the proxy's, while there is memory for one more connection.
func (x *Exit) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	hold := x.egress.deps.Budget.Lasting(x.ref.Tenant)
	if !hold.Grow(connectionBytes) {
		x.log.add(egressproxy.Connection{At: time.Now(), Host: farm.Shorten(r.Host), Method: farm.Shorten(r.Method), Verdict: egressproxy.Failed, Reason: reasonMemory})
		http.Error(w, "The proxy cannot connect: "+reasonMemory+". Try again later.", http.StatusServiceUnavailable)
		return
	}
	defer hold.Release()
	x.proxy.ServeHTTP(w, r)
}

// Close ends the sandbox's connections and writes the rest of its log.
func (x *Exit) Close() {
	x.egress.remove(x)
	x.proxy.Close()
	x.stop()
	<-x.done
}

// run writes the log and reads the rules again until the exit is closed.
func (x *Exit) run(ctx context.Context) {
	defer close(x.done)
	write, sync := time.NewTicker(writeEvery), time.NewTicker(syncEvery)
	defer write.Stop()
	defer sync.Stop()
	for {
		select {
		case <-ctx.Done():
			x.log.write(context.WithoutCancel(ctx), x.proxy)
			return
		case <-write.C:
			x.log.write(ctx, x.proxy)
		case written := <-x.flush:
			x.log.write(ctx, x.proxy)
			close(written)
		case <-sync.C:
			if err := x.refresh(ctx); err != nil && ctx.Err() == nil {
				x.egress.deps.Log.DebugContext(ctx, "the rules of a sandbox were not read", "sandbox_id", x.ref.ID, "error", err)
			}
		}
	}
}

// refresh reads the rules and sets them. A sandbox without a record, or whose record has lost its document, reaches nothing.
func (x *Exit) refresh(ctx context.Context) error {
	ctx, done := context.WithTimeout(ctx, readTimeout)
	defer done()
	x.rules.Lock()
	defer x.rules.Unlock()
	s, err := x.egress.deps.Records.Sandbox(ctx, x.ref)
	switch {
	case farm.CodeOf(err) == farm.CodeNotFound || errors.Is(err, store.ErrDocumentGone):
		x.proxy.SetRules(egressproxy.Rules{})
		return nil
	case err != nil:
		return err
	}
	lists, err := x.egress.deps.Records.TenantLists(ctx, x.ref.Tenant)
	if err != nil {
		return err
	}
	rules := x.egress.rulesOf(s, lists.Hosts)
	if err := x.addSecrets(ctx, s, &rules); err != nil {
		x.egress.deps.Log.WarnContext(ctx, "the secrets of a sandbox cannot be used; it is tried again", "sandbox_id", x.ref.ID, "error", err)
	}
	x.proxy.SetRules(rules)
	return nil
}

// Denied lists the newest hosts that a sandbox did not reach since a time, since no rule allows them or although one does, each once, and writes the sandbox's log: when a run has ended,
// its connections that have ended are in it.
func (e *Egress) Denied(ctx context.Context, sandbox farm.Ref, since time.Time) []farm.EgressEntry {
	ctx, done := context.WithTimeout(ctx, writeTimeout)
	defer done()
	var denied []farm.EgressEntry
	for _, x := range e.exits(sandbox) {
		found, waits := x.log.deniedSince(since)
		denied = append(denied, found...)
		if waits {
			x.write(ctx)
		}
	}
	return denied
}

// write writes the log now, unless the exit is closed or ctx ends.
func (x *Exit) write(ctx context.Context) {
	written := make(chan struct{})
	select {
	case x.flush <- written:
	case <-x.done:
		return
	case <-ctx.Done():
		return
	}
	select {
	case <-written:
	case <-ctx.Done():
	}
}

// exits are the proxies of a sandbox.
func (e *Egress) exits(sandbox farm.Ref) []*Exit {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Keys(e.open[sandbox]))
}

// Refresh reads the rules of a sandbox again, if it has a proxy here. Connections that the new ones do not allow have ended when it returns.
func (e *Egress) Refresh(ctx context.Context, sandbox farm.Ref) error {
	var errs []error
	for _, x := range e.exits(sandbox) {
		errs = append(errs, x.refresh(ctx))
	}
	return errors.Join(errs...)
}

// rulesOf are the rules of a sandbox's record. Those that the operator does not allow to the farm or the tenant are beyond the ceiling.
func (e *Egress) rulesOf(s *farm.Sandbox, tenant store.TenantHosts) egressproxy.Rules {
	var rules egressproxy.Rules
	if s.Spec.Network != farm.NetworkAllowlist {
		return rules
	}
	for _, text := range s.Spec.AllowHosts {
		r, err := farm.ParseHostRule(text)
		switch {
		case err != nil: // a later release wrote it
		case r.Covered(e.deps.Allow) && tenant.Covers(r):
			rules.Allow = append(rules.Allow, r)
		default:
			rules.Beyond = append(rules.Beyond, r)
		}
	}
	return rules
}

// public says whether all of some addresses may be connected to; nil: the default of package egressproxy.
func (e *Egress) public() func(...netip.Addr) bool {
	if len(e.deps.Private) == 0 {
		return nil
	}
	return func(all ...netip.Addr) bool {
		var ranged, others []netip.Addr
		for _, ip := range all {
			ip = ip.Unmap()
			switch {
			case slices.ContainsFunc(e.deps.Private, func(p netip.Prefix) bool { return p.IsSingleIP() && p.Contains(ip) }):
			case slices.ContainsFunc(e.deps.Private, func(p netip.Prefix) bool { return p.Contains(ip) }):
				ranged = append(ranged, ip)
			default:
				others = append(others, ip)
			}
		}
		return !egressproxy.OfThisMachine(ranged...) && egressproxy.Public(others...)
	}
}

func (e *Egress) add(x *Exit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.open[x.ref] == nil {
		e.open[x.ref] = map[*Exit]struct{}{}
	}
	e.open[x.ref][x] = struct{}{}
}

func (e *Egress) remove(x *Exit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.open[x.ref], x)
	if len(e.open[x.ref]) == 0 {
		delete(e.open, x.ref)
	}
}

type metrics struct {
	connections *prometheus.CounterVec
	bytes       *prometheus.CounterVec
}

func newMetrics() *metrics {
	m := &metrics{
		connections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_egress_connections_total", Help: "Connections to hosts that sandboxes asked for, by verdict: allowed, denied or failed.",
		}, []string{"verdict"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_egress_bytes_total", Help: "Bytes of connections that have ended, by direction: sent (by sandboxes) or received.",
		}, []string{"direction"}),
	}
	for _, v := range []egressproxy.Verdict{egressproxy.Allowed, egressproxy.Denied, egressproxy.Failed} {
		m.connections.WithLabelValues(string(v))
	}
	return m
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.connections, m.bytes}
}

func (m *metrics) count(c egressproxy.Connection) {
	m.connections.WithLabelValues(string(c.Verdict)).Inc()
	m.bytes.WithLabelValues("sent").Add(float64(c.Sent))
	m.bytes.WithLabelValues("received").Add(float64(c.Received))
}

// vault has the secrets of one sandbox.
type vault struct {
	sealed []byte // what they were opened from
	values map[string]string
	issuer *secret.Issuer
}

// addSecrets adds the secrets of a sandbox to its rules. Without their values, which is an error, their hosts are not reached. The caller
// holds x.rules.
func (x *Exit) addSecrets(ctx context.Context, s *farm.Sandbox, rules *egressproxy.Rules) error {
	if len(s.Spec.Secrets) == 0 {
		return nil
	}
	var err error
	if opened, problem := x.egress.unseal(ctx, s, x.vault); problem == nil {
		x.vault = opened
	} else { // values that were known are used until there are others
		err = problem
	}
	for _, one := range s.Spec.Secrets {
		added := egressproxy.Secret{Secret: one}
		if x.vault != nil {
			added.Value = x.vault.values[one.Name]
		}
		rules.Secrets = append(rules.Secrets, added)
	}
	if x.vault != nil {
		rules.Certify = x.vault.issuer.Certify
	}
	return err
}

// unseal reads the secrets of a sandbox, and opens them if they are not those of a vault that is known; nil: none is.
func (e *Egress) unseal(ctx context.Context, s *farm.Sandbox, known *vault) (*vault, error) {
	sealed, err := e.deps.Records.SandboxSecrets(ctx, s.Ref())
	if err != nil {
		return nil, err
	}
	if known != nil && bytes.Equal(known.sealed, sealed) {
		return known, nil
	}
	bundle, err := e.deps.Secrets.Open(s.Ref(), sealed)
	if err != nil {
		return nil, err
	}
	if bundle.Authority == nil {
		return nil, fmt.Errorf("the sandbox has no authority: %w", secret.ErrSealed)
	}
	issuer, err := secret.NewIssuer(bundle.Authority, time.Now)
	if err != nil {
		return nil, err
	}
	return &vault{sealed: sealed, values: bundle.Values, issuer: issuer}, nil
}

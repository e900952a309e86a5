// Package egressproxy is the worker's side of the network allowlist: an HTTP proxy for the connections of one sandbox.
//
// The requests come from user code. These rules hold for each of them:
//
//   - A host is resolved only after a rule has allowed its name, and only by the worker. So no name that is denied reaches the DNS.
//   - A connection goes to an address that was resolved for it and checked. If one address of a name is not public, the name is refused.
//   - CONNECT carries TLS only, whose ClientHello must name the host of the CONNECT in the clear. Nothing is sent to the host before that.
//   - A plain request, or one inside TLS that the proxy ends, is written anew, with the host of its URL, and has a connection of its own. So the host sees one request, and the
//     rules see the same one.
//   - A host with a secret is asked over TLS only, which the proxy makes or ends itself; the client's own header of the secret's name is
//     dropped, and an answer that repeats the secret is ended before it.
//   - Connections, their rate, their bytes, their idle time and the memory for them are limited.
//   - Each attempt is reported once: when it ends, or when it is refused.
//
// It also tells the addresses of the public Internet from all others, for everything that connects to a host which a caller or user code names.
//
// What the rules cannot see is what a host does with an allowed connection: the name in an encrypted request for a server that serves
// several, and what the owner of a name below a wildcard reads from the labels.
package egressproxy

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
)

// Limits bound what one sandbox may do. A field that is not positive means its default (see DefaultLimits).
type Limits struct {
	Connections       int           // open at once
	ConnectsPerMinute int           // attempts, also those that are refused
	Bytes             int64         // in both directions over the life of the sandbox
	Idle              time.Duration // without a byte in either direction
	Dial              time.Duration // to resolve a name and connect
	Hello             time.Duration // from the answer to CONNECT until the whole ClientHello is there
}

// DefaultLimits are the limits without settings.
func DefaultLimits() Limits {
	return Limits{
		Connections: 64, ConnectsPerMinute: 600, Bytes: 10 << 30,
		Idle: 5 * time.Minute, Dial: 15 * time.Second, Hello: 10 * time.Second,
	}
}

func (l Limits) orDefaults() Limits {
	d := DefaultLimits()
	return Limits{
		Connections: orDefault(l.Connections, d.Connections), ConnectsPerMinute: orDefault(l.ConnectsPerMinute, d.ConnectsPerMinute),
		Bytes: orDefault(l.Bytes, d.Bytes), Idle: orDefault(l.Idle, d.Idle), Dial: orDefault(l.Dial, d.Dial), Hello: orDefault(l.Hello, d.Hello),
	}
}

func orDefault[T int | int64 | time.Duration](value, otherwise T) T {
	if value <= 0 {
		return otherwise
	}
	return value
}

// Rules say which hosts a sandbox reaches. The zero value allows none.
type Rules struct {
	Allow []farm.HostRule
	// Beyond are rules that the sandbox has and its operator does not allow. They allow nothing; a connection that only they would allow is
	// denied with a reason of its own.
	Beyond []farm.HostRule
	// Secrets are added to requests for their hosts, if Allow allows these.
	Secrets []Secret
	// Certify makes the certificates by which the proxy ends the TLS of hosts with secrets; nil: CONNECT to them is refused.
	Certify func(host string) (*tls.Certificate, error)
}

// Options of a Proxy. The zero value allows nothing.
type Options struct {
	Rules  Rules
	Limits Limits
	Used   int64            // bytes that the sandbox has transferred before, by other proxies
	Report func(Connection) // called once for each attempt; must not block; nil: not reported
	// Budget is charged for the buffers of connections that transfer much; what it does not grant makes them slower. nil: grants everything.
	Budget  *budget.Budget
	Tenant  string              // whom the budget charges
	Buffers *httpserver.Buffers // of connections to hosts, of all proxies of a process; nil: all have large ones

	SecretPort int            // the only port of hosts with secrets; 0: farm.SecretPort
	Roots      *x509.CertPool // that sign the certificates of hosts with secrets; nil: the system's
	Resolver   Resolver       // nil: the system's
	// Public says whether all of these addresses may be connected to. nil: Public.
	Public func(...netip.Addr) bool
}

// Proxy is the HTTP proxy of one sandbox. It answers CONNECT and requests with an absolute http:// URL, and refuses all others. It is safe
// for concurrent use.
type Proxy struct {
	limits   Limits
	report   func(Connection)
	resolver Resolver
	public   func(...netip.Addr) bool
	budget   *budget.Budget
	tenant   string
	buffers  *httpserver.Buffers
	rate     *rate.Limiter
	plain    *httputil.ReverseProxy
	used     atomic.Int64
	secure   int // port of hosts with secrets

	mu     sync.Mutex
	rules  Rules
	links  map[*link]struct{}
	closed bool
	ended  *sync.Cond // a link is gone
}

var _ http.Handler = (*Proxy)(nil)

// New makes a proxy. The caller must Close it.
func New(o Options) *Proxy {
	limits := o.Limits.orDefaults()
	p := &Proxy{
		limits: limits, report: o.Report, resolver: o.Resolver, public: o.Public, budget: o.Budget, tenant: o.Tenant, buffers: o.Buffers,
		rate:  rate.NewLimiter(rate.Limit(float64(limits.ConnectsPerMinute)/time.Minute.Seconds()), limits.ConnectsPerMinute),
		rules: o.Rules.clone(), links: map[*link]struct{}{},
	}
	p.ended = sync.NewCond(&p.mu)
	p.used.Store(o.Used)
	if p.secure = o.SecretPort; p.secure == 0 {
		p.secure = farm.SecretPort
	}
	if p.report == nil {
		p.report = func(Connection) {}
	}
	if p.public == nil {
		p.public = Public
	}
	p.plain = p.newPlain(o.Roots)
	return p
}

// Count adds bytes that the sandbox has transferred through other proxies since New.
func (p *Proxy) Count(bytes int64) { p.used.Add(bytes) }

// Used is how many bytes the sandbox has transferred, those of Options.Used and Count included.
func (p *Proxy) Used() int64 { return p.used.Load() }

func (r Rules) clone() Rules {
	return Rules{Allow: slices.Clone(r.Allow), Beyond: slices.Clone(r.Beyond), Secrets: slices.Clone(r.Secrets), Certify: r.Certify}
}

// SetRules replaces the rules, and ends connections that the new ones do not allow before it returns.
func (p *Proxy) SetRules(rules Rules) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = rules.clone()
	for l := range p.links {
		switch reasonAgainst(p.rules, l.target) {
		case "":
		case ReasonCeiling:
			l.end(Denied, ReasonCeiling)
		default:
			l.end(Denied, ReasonRules)
		}
	}
}

// closeTimeout is how long Close waits for connections to be reported. They end at once; a client that holds a write up may need longer.
const closeTimeout = 2 * time.Second

// Close ends all connections, refuses new ones and waits until those it ended are reported, at most two seconds.
func (p *Proxy) Close() {
	late := false
	timer := time.AfterFunc(closeTimeout, func() {
		p.mu.Lock()
		late = true
		p.ended.Broadcast()
		p.mu.Unlock()
	})
	defer timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for l := range p.links {
		l.end(Denied, ReasonClosed)
	}
	for len(p.links) > 0 && !late {
		p.ended.Wait()
	}
}

// ServeHTTP carries one request, or one tunnel until it ends. A tunnel takes the client's connection over (http.Hijacker). If the connection
// has a method CloseWrite, the end of one direction is passed on to it; else both end together.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to, reason := targetOf(r)
	p.serve(w, r, to, reason)
}

// serve carries out a request for a target, unless there is a reason against it.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, to target, reason string) {
	started := time.Now()
	if !p.rate.Allow() {
		reason = ReasonRate
	}
	var l *link
	if reason == "" {
		l, to, reason = p.admit(to, started)
	}
	if reason != "" {
		p.report(Connection{At: started, Host: to.host, Port: to.port, Method: to.method, Verdict: Denied, Reason: reason, Duration: time.Since(started)})
		refuse(w, to, reason)
		return
	}
	defer l.finish()
	switch {
	case r.Method != http.MethodConnect:
		l.forward(w, r)
	case len(l.secrets) > 0:
		l.terminate(r.Context(), w)
	default:
		l.tunnel(r.Context(), w)
	}
}

// admit opens a link if rules and limits allow it, and returns the target that they see. Rules and links change under one lock, so SetRules finds every link that older rules
// have allowed.
func (p *Proxy) admit(to target, at time.Time) (*link, target, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	to, secrets := p.rules.secretsOf(to, p.secure)
	reason := reasonAgainst(p.rules, to)
	if reason == "" {
		reason = secretProblem(to, secrets)
	}
	switch {
	case p.closed:
		reason = ReasonClosed
	case reason != "":
	case p.used.Load() >= p.limits.Bytes:
		reason = ReasonBytes
	case len(p.links) >= p.limits.Connections:
		reason = ReasonOpen
	}
	if reason != "" {
		return nil, to, reason
	}
	l := newLink(p, to, at)
	l.secrets, l.certify = secrets, p.rules.Certify
	p.links[l] = struct{}{}
	return l, to, ""
}

// take grants up to n of the bytes that the sandbox may still transfer.
func (p *Proxy) take(n int) int {
	for {
		used := p.used.Load()
		granted := max(min(int64(n), p.limits.Bytes-used), 0)
		if p.used.CompareAndSwap(used, used+granted) {
			return int(granted)
		}
	}
}

// Verdict says what became of a connection.
type Verdict string

// The verdicts.
const (
	Allowed Verdict = "allowed" // it was made, and one of its ends closed it
	Denied  Verdict = "denied"  // the proxy refused it, or ended it at a limit
	Failed  Verdict = "failed"  // it was allowed, and the host could not be reached or broke it off
)

// Connection reports one connection, or one request over plain HTTP.
type Connection struct {
	At       time.Time // when it was asked for
	Host     string    // normalised; where it is no valid name, what was asked for, shortened and without control characters
	Port     int       // 0: none, or not a valid one
	Method   string    // CONNECT, or that of the request
	Verdict  Verdict
	Reason   string // a short phrase; "" if the verdict is Allowed
	Sent     int64  // bytes to the host, of headers and TLS too
	Received int64  // bytes from the host
	Duration time.Duration
	Secrets  []string // names of the secrets that were added
}

// The reasons of connections that were not allowed to the end.
const (
	ReasonForm       = "not a proxy request: CONNECT host:port or an absolute http:// URL is needed"
	ReasonHost       = "not a host name: addresses and single labels are not allowed"
	ReasonRule       = "no rule allows this host and port"
	ReasonCeiling    = "a rule of the sandbox allows this, but the farm's operator does not"
	ReasonMethod     = "no rule for this host allows this method"
	ReasonUpgrade    = "a plain request must not switch protocols: use https or wss"
	ReasonAddress    = "the name has an address that is not public"
	ReasonNoTLS      = "the tunnel does not begin with a TLS ClientHello"
	ReasonHello      = "the TLS ClientHello did not arrive in time"
	ReasonNoSNI      = "the TLS ClientHello names no server"
	ReasonSNI        = "the TLS ClientHello names another server than CONNECT"
	ReasonECH        = "the TLS ClientHello is encrypted (ECH)"
	ReasonSecret     = "the secrets of this host cannot be read now"
	ReasonTrace      = "TRACE would repeat the secrets of this host"
	ReasonEcho       = "the answer repeats a secret"
	ReasonEncoded    = "the answer is compressed though the proxy did not ask for it, so it cannot be searched for the secret"
	ReasonHostHeader = "the request names another host than its tunnel"
	ReasonTrust      = "the TLS handshake for a host with a secret failed: the program may not trust the certificate of the farm"
	ReasonCert       = "the certificate of the host is not valid"
	ReasonRate       = "too many connections in a minute"
	ReasonOpen       = "too many open connections"
	ReasonBytes      = "all bytes that this sandbox may transfer are used"
	ReasonIdle       = "nothing was sent for too long"
	ReasonRules      = "the rules were changed"
	ReasonClosed     = "the sandbox was closed, or its worker stops"
	ReasonName       = "the name could not be resolved"
	ReasonConnect    = "the host could not be reached"
	ReasonBroken     = "the connection broke"
	ReasonNotStarted = "the connection was given up before it was made"
)

// shown makes a host or method of user code fit for a log: printable ASCII, at most 253 bytes.
func shown(text string) string {
	const longest = 253
	text = text[:min(len(text), longest)]
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}

// BesideIndex tells requests to a package index, which are in origin form, from those to a proxy. index may be nil.
func BesideIndex(index, proxy http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodConnect || r.URL.IsAbs():
			proxy.ServeHTTP(w, r)
		case index == nil:
			http.Error(w, "This farm has no package index.", http.StatusNotFound)
		default:
			index.ServeHTTP(w, r)
		}
	})
}

package relay

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// certificateLife is how long the certificate of a process is valid. It is replaced when half of that is over.
	certificateLife = 24 * time.Hour
	// refreshEvery is how often a process reads the authorities again.
	refreshEvery = time.Minute
)

// Authorities keep the list of authorities; *store.Store is one.
type Authorities interface {
	// LiveAuthorities reads the list; nil: there is none.
	LiveAuthorities(ctx context.Context) ([]byte, error)
	// ChangeLiveAuthorities replaces the list by what change makes of it, which is called again when another process was faster. Nil keeps it.
	ChangeLiveAuthorities(ctx context.Context, change func(list []byte) ([]byte, error)) ([]byte, error)
}

// Role is what a process may do on the live path.
type Role string

// The roles. A certificate has one, and the other end insists on it.
const (
	Caller Role = "api"
	Worker Role = "worker"
)

// Identity is the certificate of a process, and the authorities that it trusts. It is safe for concurrent use.
type Identity struct {
	source Authorities
	role   Role
	name   string
	now    func() time.Time
	log    *slog.Logger

	mu      sync.Mutex
	known   authorities
	own     *tls.Certificate
	renewAt time.Time
}

// IdentityConfig makes an Identity. All fields but Now and Log are required; Name is the worker's id, or anything for a Caller.
type IdentityConfig struct {
	Source Authorities
	Role   Role
	Name   string
	Now    func() time.Time
	Log    *slog.Logger
}

// NewIdentity makes an identity without a certificate: Refresh gets one.
func NewIdentity(c IdentityConfig) *Identity {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Identity{source: c.Source, role: c.Role, name: c.Name, now: c.Now, log: c.Log}
}

// Refresh reads the authorities, adds one if it is time, and renews the certificate of this process if it is.
func (i *Identity) Refresh(ctx context.Context) error {
	now := i.now()
	doc, err := i.source.LiveAuthorities(ctx)
	if err != nil {
		return fmt.Errorf("read the authorities of the live path: %w", err)
	}
	if parseAuthorities(doc, now).due(now) {
		if doc, err = i.source.ChangeLiveAuthorities(ctx, func(list []byte) ([]byte, error) { return addAuthority(list, now) }); err != nil {
			return fmt.Errorf("add an authority of the live path: %w", err)
		}
	}
	known := parseAuthorities(doc, now)
	if len(known) == 0 {
		return errors.New("read the authorities of the live path: there is none")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	trusted := i.own != nil && now.Before(i.renewAt) && i.signedBy(known)
	i.known = known
	if trusted {
		return nil
	}
	return i.renew(now)
}

// addAuthority adds an authority to a stored list if it is time.
func addAuthority(list []byte, now time.Time) ([]byte, error) {
	known := parseAuthorities(list, now)
	if !known.due(now) {
		return nil, nil
	}
	made, err := newAuthority(now)
	if err != nil {
		return nil, err
	}
	return json.Marshal(append(known, made))
}

// signedBy reports whether the own certificate is from one of these authorities. The caller holds mu.
func (i *Identity) signedBy(known authorities) bool {
	_, err := i.own.Leaf.Verify(x509.VerifyOptions{Roots: known.pool(), CurrentTime: i.now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err == nil
}

// renew makes a key and its certificate. The caller holds mu.
func (i *Identity) renew(now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key for the live path: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: string(i.role)}, NotBefore: now.Add(-skew), NotAfter: now.Add(certificateLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if i.role == Worker {
		template.ExtKeyUsage, template.DNSNames = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, []string{host(i.name)}
	}
	signer := i.known.signer(now)
	der, err := x509.CreateCertificate(rand.Reader, template, signer.cert, key.Public(), signer.key)
	if err != nil {
		return fmt.Errorf("make a certificate for the live path: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("read the own certificate: %w", err)
	}
	i.own = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	i.renewAt = now.Add(certificateLife / 2)
	return nil
}

// Keep refreshes the identity again and again until ctx ends.
func (i *Identity) Keep(ctx context.Context) {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := i.Refresh(ctx); err != nil && ctx.Err() == nil {
				i.log.WarnContext(ctx, "the certificate of the live path was not renewed; it is tried again", "error", err)
			}
		}
	}
}

// errNoIdentity says that Refresh did not succeed yet.
var errNoIdentity = farm.Errorf(farm.CodeUnavailable, "The farm's own certificates cannot be read now. Send the request again in a few seconds.")

// config is the TLS settings as of now.
func (i *Identity) config() (*tls.Config, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.own == nil {
		return nil, errNoIdentity
	}
	pool := i.known.pool()
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"}, Certificates: []tls.Certificate{*i.own}, Time: i.now,
		RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		SessionTicketsDisabled:      true, // a resumed session would skip the check of a certificate that is no longer trusted
		DynamicRecordSizingDisabled: true, // records of 1 KiB show a slow network its first byte sooner; here they cost a call of the kernel each
	}, nil
}

// ServerTLS are the TLS settings of a worker's listener. Each handshake uses what Refresh has found last.
func (i *Identity) ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return i.config() },
		GetCertificate:     func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errNoIdentity }, // GetConfigForClient goes first
	}
}

// clientTLS are the TLS settings for a connection to a worker: by HTTP/2, or by HTTP/1.1 for a connection to a port.
func (i *Identity) clientTLS(worker, protocol string) (*tls.Config, error) {
	c, err := i.config()
	if err == nil {
		c.ServerName, c.NextProtos = host(worker), []string{protocol}
	}
	return c, err
}

const (
	// authorityLife is how long an authority is valid, and authorityAge how old the newest one may become before another is added.
	authorityLife = 90 * 24 * time.Hour
	authorityAge  = 30 * 24 * time.Hour
	// authorityNotice is how long an authority is known before certificates are signed with it, so that every process has read it.
	authorityNotice = time.Hour
	// skew is how far the clocks of two processes may differ.
	skew = time.Hour
)

// authority signs the certificates of the farm's processes.
type authority struct {
	Cert []byte    `json:"cert"` // DER
	Key  []byte    `json:"key"`  // PKCS #8
	At   time.Time `json:"at"`   // when it was made

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes an authority.
func newAuthority(now time.Time) (authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, fmt.Errorf("make the key of an authority: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "Sandfarm live path"}, NotBefore: now.Add(-skew), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return authority{}, fmt.Errorf("make the certificate of an authority: %w", err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return authority{}, fmt.Errorf("encode the key of an authority: %w", err)
	}
	return authority{Cert: der, Key: raw, At: now.UTC()}, nil
}

// parse reads certificate and key.
func (a *authority) parse() error {
	cert, err := x509.ParseCertificate(a.Cert)
	if err != nil {
		return fmt.Errorf("read the certificate of an authority: %w", err)
	}
	key, err := x509.ParsePKCS8PrivateKey(a.Key)
	if err != nil {
		return fmt.Errorf("read the key of an authority: %w", err)
	}
	private, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return fmt.Errorf("read the key of an authority: it is a %T", key)
	}
	a.cert, a.key = cert, private
	return nil
}

// authorities are those that are valid, the oldest first.
type authorities []authority

// parseAuthorities reads a stored list without the authorities that are no longer valid. A list that cannot be read counts as empty: a new
// authority replaces it.
func parseAuthorities(doc []byte, now time.Time) authorities {
	var stored authorities
	if json.Unmarshal(doc, &stored) != nil {
		return nil
	}
	var valid authorities
	for _, a := range stored {
		if a.parse() == nil && now.Before(a.cert.NotAfter) {
			valid = append(valid, a)
		}
	}
	return valid
}

// due reports whether another authority is to be added.
func (l authorities) due(now time.Time) bool {
	return len(l) == 0 || now.Sub(l[len(l)-1].At) >= authorityAge
}

// signer is the newest authority that every process knows; the only one, if there is no other.
func (l authorities) signer(now time.Time) authority {
	for i := len(l) - 1; i > 0; i-- {
		if now.Sub(l[i].At) >= authorityNotice {
			return l[i]
		}
	}
	return l[0]
}

// pool is all of them, to verify certificates with.
func (l authorities) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, a := range l {
		pool.AddCert(a.cert)
	}
	return pool
}

// serial is the serial number of a new certificate.
func serial() *big.Int {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // never fails
	return new(big.Int).SetBytes(raw)
}

// host is the name of a worker in its certificate and in URLs.
func host(worker string) string { return strings.ReplaceAll(worker, "_", "-") + ".sandfarm" }

// Target is the sandbox that a request is for.
type Target struct {
	Ref        farm.Ref
	Generation int
}

// path is where a worker has a path of the sandbox's agent.
func (t Target) path(rest string) string {
	return "/" + t.Ref.Tenant + "/" + t.Ref.ID + "/" + strconv.Itoa(t.Generation) + rest
}

// ParsePath reads the path of a request to a worker: the sandbox, and the path of its agent. It fails if that is not below agent.LivePrefix.
func ParsePath(whole string) (t Target, rest string, err error) {
	parts := strings.SplitN(whole, "/", 5)
	if len(parts) != 5 || parts[0] != "" {
		return t, "", fmt.Errorf("%q is not a path of the live path", farm.Shorten(whole))
	}
	t.Ref = farm.Ref{Tenant: parts[1], ID: parts[2]}
	t.Generation, err = strconv.Atoi(parts[3])
	rest = "/" + parts[4]
	if err != nil || !farm.ValidTenant(t.Ref.Tenant) || !farm.ValidID(farm.SandboxPrefix, t.Ref.ID) {
		return t, "", fmt.Errorf("%q does not name a sandbox", farm.Shorten(whole))
	}
	if !strings.HasPrefix(rest, agent.LivePrefix) || path.Clean(rest) != rest {
		return t, "", fmt.Errorf("%q is not a path of an agent's live part", farm.Shorten(rest))
	}
	return t, rest, nil
}

// ListenAuto as host of a listen address means the address by which this machine reaches Redis.
const ListenAuto = "auto"

// ListenNone is the listen address of a worker without a listener.
const ListenNone = "none"

// CheckListen reports what cannot be a listen address.
func CheckListen(listen string) error {
	if listen == ListenNone || listen == ListenAuto {
		return nil
	}
	name, port, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("%q is not host:port, auto, auto:port or none", listen)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n > 65535 {
		return fmt.Errorf("%q has no valid port", listen)
	}
	if name == "" || net.ParseIP(name) != nil && net.ParseIP(name).IsUnspecified() {
		return fmt.Errorf("%q names no address that others could use: name one address, or auto:%s, the one by which this machine reaches Redis", listen, port)
	}
	return nil
}

// ListenAddress is the address to listen on. redis is the network and address of Redis; "tcp" and host:port, or a socket.
func ListenAddress(listen, network, redis string) (string, error) {
	port := "0"
	if listen != ListenAuto {
		name, p, err := net.SplitHostPort(listen)
		if err != nil || name != ListenAuto {
			return listen, nil // CheckListen has judged it
		}
		port = p
	}
	if network == "unix" {
		return net.JoinHostPort("127.0.0.1", port), nil
	}
	conn, err := net.Dial("udp", redis) //nolint:noctx // it sends nothing: the kernel only picks the route
	if err != nil {
		return "", fmt.Errorf("find the address by which this machine reaches Redis: %w", err)
	}
	defer func() { _ = conn.Close() }()
	name, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		return "", fmt.Errorf("find the address by which this machine reaches Redis: %w", err)
	}
	return net.JoinHostPort(name, port), nil
}

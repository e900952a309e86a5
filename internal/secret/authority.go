package secret

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"slices"
	"sync"
	"time"
)

const (
	// authorityLife is longer than any sandbox lives. The key is gone with the sandbox.
	authorityLife = 10 * 365 * 24 * time.Hour
	// leafLife is how long a certificate of a host is valid, and leafUse how long it is given to clients.
	leafLife = 24 * time.Hour
	leafUse  = 12 * time.Hour
	// early is how far clocks may differ.
	early = time.Hour
)

// Authority signs certificates for the hosts with secrets of one sandbox, and for no others.
type Authority struct {
	Certificate []byte `json:"certificate"` // X.509, DER
	Key         []byte `json:"key"`         // PKCS #8, DER
}

// NewAuthority makes the authority for some hosts.
func NewAuthority(hosts []string, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of an authority: %w", err)
	}
	hosts = slices.Clone(hosts)
	slices.Sort(hosts)
	template, err := template(now, authorityLife)
	if err != nil {
		return nil, err
	}
	template.Subject = pkix.Name{CommonName: "Sandfarm, for one sandbox"}
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign
	template.PermittedDNSDomainsCritical, template.PermittedDNSDomains = true, slices.Compact(hosts)
	a := &Authority{}
	if a.Certificate, err = x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key); err != nil {
		return nil, fmt.Errorf("make an authority: %w", err)
	}
	if a.Key, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		return nil, fmt.Errorf("make an authority: %w", err)
	}
	return a, nil
}

func template(now time.Time, life time.Duration) (*x509.Certificate, error) {
	const bits = 128
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), bits))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	return &x509.Certificate{SerialNumber: serial, NotBefore: now.Add(-early), NotAfter: now.Add(life)}, nil
}

// Issuer makes and keeps the certificates of hosts. It is safe for concurrent use.
type Issuer struct {
	parent *x509.Certificate
	key    any
	now    func() time.Time

	mu     sync.Mutex
	leaves map[string]leaf // of hosts with secrets only, which are few
}

type leaf struct {
	certificate *tls.Certificate
	until       time.Time
}

// NewIssuer makes an issuer of an authority.
func NewIssuer(a *Authority, now func() time.Time) (*Issuer, error) {
	parent, err := x509.ParseCertificate(a.Certificate)
	if err != nil {
		return nil, fmt.Errorf("read an authority: %w", err)
	}
	key, err := x509.ParsePKCS8PrivateKey(a.Key)
	if err != nil {
		return nil, fmt.Errorf("read the key of an authority: %w", err)
	}
	return &Issuer{parent: parent, key: key, now: now, leaves: map[string]leaf{}}, nil
}

// Certify returns a certificate for one of the authority's hosts; an error for another host.
func (i *Issuer) Certify(host string) (*tls.Certificate, error) {
	if !slices.Contains(i.parent.PermittedDNSDomains, host) {
		return nil, fmt.Errorf("the authority is not for %s", host)
	}
	now := i.now()
	i.mu.Lock()
	defer i.mu.Unlock()
	if l, ok := i.leaves[host]; ok && now.Before(l.until) {
		return l.certificate, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of a certificate: %w", err)
	}
	template, err := template(now, leafLife)
	if err != nil {
		return nil, err
	}
	template.Subject = pkix.Name{CommonName: "Sandfarm"}
	template.DNSNames, template.BasicConstraintsValid = []string{host}, true
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, i.parent, &key.PublicKey, i.key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	made := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	i.leaves[host] = leaf{made, now.Add(leafUse)}
	return made, nil
}

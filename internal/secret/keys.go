// Package secret seals the secrets of sandboxes for the time that they are stored, and has the authority of certificates that each sandbox
// with secrets trusts. What is sealed can be opened for the same sandbox only, by a process with one of the farm's keys.
package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// KeyBytes is the size of a key, of AES-256.
const KeyBytes = 32

// format is the first byte of what Seal makes.
const format = 1

// ErrSealed says that none of the keys opens a sealed bundle: another key or another sandbox sealed it, or it was changed.
var ErrSealed = errors.New("none of the keys opens the sealed secrets")

// Keys seal with the first key and open with each. A nil *Keys has none.
type Keys struct{ ciphers []cipher.AEAD }

// ParseKeys reads keys in base64, the one that seals first. Without any it returns nil. The error does not contain a key.
func ParseKeys(current string, old ...string) (*Keys, error) {
	if current == "" {
		if len(old) > 0 {
			return nil, errors.New("there are old keys and no current one")
		}
		return nil, nil // no keys
	}
	k := &Keys{}
	for _, text := range append([]string{current}, old...) {
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(key) != KeyBytes {
			return nil, fmt.Errorf("a key is %d random bytes in base64 (openssl rand -base64 %d)", KeyBytes, KeyBytes)
		}
		if err := k.add(key); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// NewKeys makes keys of one key of KeyBytes bytes.
func NewKeys(key []byte) (*Keys, error) {
	k := &Keys{}
	return k, k.add(key)
}

func (k *Keys) add(key []byte) error {
	block, err := aes.NewCipher(key)
	if err != nil {
		return fmt.Errorf("use a key: %w", err)
	}
	sealer, err := cipher.NewGCM(block)
	if err != nil {
		return fmt.Errorf("use a key: %w", err)
	}
	k.ciphers = append(k.ciphers, sealer)
	return nil
}

// Bundle is what is sealed for a sandbox.
type Bundle struct {
	Values    map[string]string `json:"values"` // by the name of the secret
	Authority *Authority        `json:"authority"`
}

// Seal seals a bundle for a sandbox.
func (k *Keys) Seal(sandbox farm.Ref, b Bundle) ([]byte, error) {
	text, err := json.Marshal(b)
	if err != nil {
		return nil, errors.New("encode secrets") // the cause could quote a value
	}
	sealer := k.ciphers[0]
	sealed := make([]byte, 1+sealer.NonceSize(), 1+sealer.NonceSize()+len(text)+sealer.Overhead())
	sealed[0] = format
	if _, err := rand.Read(sealed[1:]); err != nil {
		return nil, fmt.Errorf("seal secrets: %w", err)
	}
	return sealer.Seal(sealed, sealed[1:], text, bound(sandbox)), nil
}

// Open opens what was sealed for a sandbox; else ErrSealed.
func (k *Keys) Open(sandbox farm.Ref, sealed []byte) (Bundle, error) {
	var b Bundle
	if k == nil || len(sealed) == 0 || sealed[0] != format {
		return b, ErrSealed
	}
	for _, c := range k.ciphers {
		end := 1 + c.NonceSize()
		if len(sealed) < end {
			break
		}
		text, err := c.Open(nil, sealed[1:end], sealed[end:], bound(sandbox))
		if err == nil && json.Unmarshal(text, &b) == nil {
			return b, nil
		}
	}
	return Bundle{}, ErrSealed
}

// bound is the data that a bundle is bound to: it opens for one sandbox of one tenant. Neither name can have the byte between them.
func bound(sandbox farm.Ref) []byte {
	return []byte("sandfarm secrets\x00" + sandbox.Tenant + "\x00" + sandbox.ID)
}

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

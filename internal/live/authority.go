package live

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"math/big"
	"time"
)

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

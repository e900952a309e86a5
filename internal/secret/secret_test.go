package secret_test

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/secret"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func newKey(t *testing.T) string {
	t.Helper()
	key := make([]byte, secret.KeyBytes)
	_, _ = rand.Read(key)
	return base64.StdEncoding.EncodeToString(key)
}

func parse(t *testing.T, current string, old ...string) *secret.Keys {
	t.Helper()
	k, err := secret.ParseKeys(current, old...)
	testbed.Must(t, err)
	return k
}

func TestSealedOpensForItsSandboxOnly(t *testing.T) {
	t.Parallel()
	first, second := newKey(t), newKey(t)
	keys := parse(t, first)
	box := farm.Ref{Tenant: "acme", ID: "sbx_1"}
	authority, err := secret.NewAuthority([]string{"api.example.com"}, time.Now())
	testbed.Must(t, err)
	bundle := secret.Bundle{Values: map[string]string{"KEY": "the value of the secret"}, Authority: authority}
	sealed, err := keys.Seal(box, bundle)
	testbed.Must(t, err)
	if bytes.Contains(sealed, []byte("value")) {
		t.Error("the value can be read")
	}
	again, _ := keys.Seal(box, bundle)
	if bytes.Equal(sealed, again) {
		t.Error("sealed twice, a bundle is the same: the nonce is not random")
	}
	for name, k := range map[string]*secret.Keys{"its key": keys, "its key, now an old one": parse(t, second, first)} {
		got, err := k.Open(box, sealed)
		if diff := cmp.Diff(bundle, got); err != nil || diff != "" {
			t.Errorf("with %s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	changed := bytes.Clone(sealed)
	changed[len(changed)-1] ^= 1
	for name, c := range map[string]struct {
		keys   *secret.Keys
		box    farm.Ref
		sealed []byte
	}{
		"another key": {parse(t, second), box, sealed}, "no key": {nil, box, sealed}, "another sandbox": {keys, farm.Ref{Tenant: "acme", ID: "sbx_2"}, sealed},
		"another tenant": {keys, farm.Ref{Tenant: "b", ID: "sbx_1"}, sealed}, "changed": {keys, box, changed}, "cut": {keys, box, sealed[:8]},
		"empty": {keys, box, nil}, "another format": {keys, box, append([]byte{9}, sealed[1:]...)},
	} {
		if _, err := c.keys.Open(c.box, c.sealed); !errors.Is(err, secret.ErrSealed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeysAreChecked(t *testing.T) {
	t.Parallel()
	if k, err := secret.ParseKeys(""); k != nil || err != nil {
		t.Errorf("no key: %v, %v", k, err)
	}
	for _, bad := range []string{"x", base64.StdEncoding.EncodeToString(make([]byte, 31)), base64.StdEncoding.EncodeToString(make([]byte, 33)), strings.Repeat("!", 44)} {
		if _, err := secret.ParseKeys(bad); err == nil || strings.Contains(err.Error(), bad) && len(bad) > 1 {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := secret.ParseKeys("", newKey(t)); err == nil {
		t.Error("old keys without a current one are accepted")
	}
}

func TestAuthorityIsForItsHostsOnly(t *testing.T) {
	t.Parallel()
	now := time.Now()
	authority, err := secret.NewAuthority([]string{"b.example.com", "a.example.com"}, now)
	testbed.Must(t, err)
	clock := now
	issuer, err := secret.NewIssuer(authority, func() time.Time { return clock })
	testbed.Must(t, err)
	root, err := x509.ParseCertificate(authority.Certificate)
	testbed.Must(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(root)
	made, err := issuer.Certify("a.example.com")
	testbed.Must(t, err)
	leaf, err := x509.ParseCertificate(made.Certificate[0])
	testbed.Must(t, err)
	if _, err := leaf.Verify(x509.VerifyOptions{DNSName: "a.example.com", Roots: roots}); err != nil {
		t.Error(err)
	}
	for _, host := range []string{"other.example.com", "example.com", "x.a.example.com"} {
		if _, err := issuer.Certify(host); err == nil {
			t.Errorf("there is a certificate for %s", host)
		}
	}
	if again, _ := issuer.Certify("a.example.com"); again != made {
		t.Error("a certificate is not kept")
	}
	clock = now.Add(13 * time.Hour)
	if later, err := issuer.Certify("a.example.com"); err != nil || later == made {
		t.Errorf("after 13 hours the certificate is the same: %v", err)
	}
}

package egress_test

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/secret"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/store/storetest"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/egress"
)

const secretValue = "sk-0123456789abcdef"

func newKeys(t *testing.T, first byte) *secret.Keys {
	t.Helper()
	keys, err := secret.NewKeys(append([]byte{first}, make([]byte, secret.KeyBytes-1)...))
	testbed.Must(t, err)
	return keys
}

// A worker adds the secrets that the API has sealed, and another worker that takes the sandbox over does the same, by certificates of the
// same authority. Without the key, or without what was sealed, the host is not asked. The log names the secret and has not its value.
func TestSecretsOfASandbox(t *testing.T) {
	t.Parallel()
	asked := make(chan http.Header, 10)
	w := newWorld(t, farm.DefaultLimits(), func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header })
	_, text, _ := net.SplitHostPort(w.addr)
	port, _ := strconv.Atoi(text)
	keys := newKeys(t, 1)
	authority, inside := newAuthority(t)
	box := *w.box
	box.ID = farm.NewID(farm.SandboxPrefix)
	box.Spec.Secrets = []farm.Secret{{Name: "KEY", Host: "api.example.com", Header: "X-Key"}}
	box.Spec.Authority = authority.Certificate
	sealed, err := keys.Seal(box.Ref(), secret.Bundle{Values: map[string]string{"KEY": secretValue}, Authority: authority})
	testbed.Must(t, err)
	a := storetest.Create()
	a.Job.Tenant, a.Job.SandboxID, a.Sandbox, a.Secrets = box.Tenant, box.ID, &box, sealed
	_, err = w.store.Accept(t.Context(), a)
	testbed.Must(t, err)
	w.box = &box

	log := &bytes.Buffer{}
	use := func(d *egress.Deps) {
		d.Secrets, d.SecretPort, d.Roots = keys, port, w.roots
		d.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	for _, name := range []string{"first worker", "second worker"} {
		_, c := w.open(t, use)
		trust(t, c, inside)
		_, err := w.get(t, c)
		testbed.Require(t, err == nil, "%s: %v", name, err)
		got := <-asked
		testbed.Check(t, got.Get("X-Key") == secretValue, "%s: the host got %v", name, got)
	}
	// A new value, which other workers learn of from the record.
	const newValue = "sk-fedcba9876543210"
	again, err := keys.Seal(box.Ref(), secret.Bundle{Values: map[string]string{"KEY": newValue}, Authority: authority})
	testbed.Must(t, err)
	e, c := w.open(t, use)
	trust(t, c, inside)
	_, err = w.store.UpdateSandbox(t.Context(), box.Ref(), store.SandboxPatch{Secrets: &store.SealedSecrets{Was: sealed, Now: again}})
	testbed.Must(t, err)
	testbed.Must(t, e.Refresh(t.Context(), box.Ref()))
	_, err = w.get(t, c)
	testbed.Must(t, err)
	got := <-asked
	testbed.Check(t, got.Get("X-Key") == newValue, "after the change the host got %v", got)
	entry := w.log(t, "allowed")
	for entry.Method == http.MethodConnect { // the tunnel around the request is in the log as well
		entries, _, err := w.store.Egress(t.Context(), box.Ref(), "", 100)
		testbed.Must(t, err)
		for _, e := range entries {
			if e.Method == http.MethodGet {
				entry = e
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	testbed.Diff(t, fmt.Sprintf("%+v", entry), []string{"KEY"}, entry.Secrets)
	for name, change := range map[string]func(*egress.Deps){"no key": func(d *egress.Deps) { d.Secrets = nil }, "another key": func(d *egress.Deps) { d.Secrets = newKeys(t, 2) }} {
		_, c := w.open(t, func(d *egress.Deps) { use(d); change(d) })
		trust(t, c, inside)
		_, err := w.get(t, c)
		testbed.Check(t, err != nil && len(asked) == 0, "with %s: %v, the host was asked %d times", name, err, len(asked))
	}
	if got := w.log(t, "denied"); got.Reason != egressproxy.ReasonSecret {
		t.Errorf("%+v", got)
	}
	_, err = w.store.MoveSandbox(t.Context(), store.Move{Ref: box.Ref(), To: farm.SandboxFailed, Removed: true})
	testbed.Must(t, err)
	_, c = w.open(t, use)
	_, err = w.get(t, c)
	testbed.Check(t, err != nil && len(asked) == 0, "after the end: %v, the host was asked %d times", err, len(asked))
	testbed.Check(t, !strings.Contains(log.String(), secretValue) && !strings.Contains(log.String(), newValue), "the log has the value")
}

// newAuthority makes an authority for api.example.com, and a pool that trusts it and nothing else.
func newAuthority(t *testing.T) (*secret.Authority, *x509.CertPool) {
	t.Helper()
	a, err := secret.NewAuthority([]string{"api.example.com"}, time.Now())
	testbed.Must(t, err)
	root, err := x509.ParseCertificate(a.Certificate)
	testbed.Must(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(root)
	return a, pool
}

// trust makes a client trust a pool, and nothing else.
func trust(t *testing.T, c *http.Client, pool *x509.CertPool) {
	t.Helper()
	tr, ok := c.Transport.(*http.Transport)
	testbed.Require(t, ok, "another transport")
	tr.TLSClientConfig.InsecureSkipVerify, tr.TLSClientConfig.RootCAs = false, pool
}

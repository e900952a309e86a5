package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// certificate makes one for an address that is valid until then.
func certificate(t *testing.T, until time.Time, address net.IP) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "apiserver"}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: until,
		IPAddresses: []net.IP{address}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// An API server that refuses the worker, or whose certificate has expired, says so in words that an operator can act on. Both are faults that pass: the
// sandboxes of the cluster are not lost for it at once.
func TestRefusals(t *testing.T) {
	t.Parallel()
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	ready := func(status int, then http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/readyz" {
				w.WriteHeader(status)
				return
			}
			then(w, r)
		}
	}
	forbidden := answer(http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"cannot get resource","code":403}`)
	for name, c := range map[string]struct {
		until  time.Duration
		handle http.HandlerFunc
		code   farm.Code
		says   string
	}{
		"CertificateExpired": {-time.Hour, answer(http.StatusOK, "ok"), farm.CodeUnavailable, "certificate of the cluster's API server is not valid"},
		"TokenExpired":       {time.Hour, answer(http.StatusUnauthorized, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","code":401}`), farm.CodeUnavailable, "has expired or was revoked"},
		"Overload":           {time.Hour, answer(http.StatusServiceUnavailable, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"ServiceUnavailable","code":503}`), farm.CodeUnavailable, "does not answer"},
		"NotKubernetes":      {time.Hour, answer(http.StatusBadGateway, `<html>`), farm.CodeUnavailable, "does not answer"},
		"Starting":           {time.Hour, ready(http.StatusInternalServerError, forbidden), farm.CodeUnavailable, "is starting"},
		"Forbidden":          {time.Hour, ready(http.StatusOK, forbidden), farm.CodeConflict, "cannot get resource"},
		"KubeletAway":        {time.Hour, ready(http.StatusOK, answer(http.StatusInternalServerError, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","message":"error dialing backend: connection refused","code":500}`)), farm.CodeUnavailable, "The machine of the sandbox does not answer"},
		"Healthy":            {time.Hour, ready(http.StatusOK, answer(http.StatusOK, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"sbx-1","labels":{"sandfarm/role":"sandbox"}}}`)), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			made := certificate(t, time.Now().Add(c.until), net.IPv4(127, 0, 0, 1))
			server := httptest.NewUnstartedServer(c.handle)
			server.TLS = &tls.Config{Certificates: []tls.Certificate{made}} //nolint:gosec // the server of a test
			server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
			server.StartTLS()
			t.Cleanup(server.Close)
			file := filepath.Join(t.TempDir(), "kubeconfig")
			err := clientcmd.WriteToFile(api.Config{
				Clusters: map[string]*api.Cluster{"c": {
					Server: server.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: made.Certificate[0]}),
				}},
				AuthInfos: map[string]*api.AuthInfo{"u": {Token: "t"}}, CurrentContext: "x",
				Contexts: map[string]*api.Context{"x": {Cluster: "c", AuthInfo: "u", Namespace: "boxes"}},
			}, file)
			if err != nil {
				t.Fatal(err)
			}
			e, err := New(Config{Kubeconfig: file, AgentImage: "x"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = e.Close() })
			if err = e.Ping(t.Context()); err == nil || c.says == "is starting" {
				_, err = e.Inspect(t.Context(), "sbx-1")
			}
			if farm.CodeOf(err) != c.code || err != nil && !strings.Contains(farm.MessageOf(err), c.says) {
				t.Errorf("code %q, %q (%v)", farm.CodeOf(err), farm.MessageOf(err), err)
			}
		})
	}
}

// What is missing in the settings is said before anything is connected.
func TestSettings(t *testing.T) {
	t.Parallel()
	broken := filepath.Join(t.TempDir(), "kubeconfig")
	whole := filepath.Join(t.TempDir(), "kubeconfig")
	err := errors.Join(os.WriteFile(broken, []byte("{"), 0o600), clientcmd.WriteToFile(api.Config{
		Clusters: map[string]*api.Cluster{"c": {Server: "https://127.0.0.1:1"}}, Contexts: map[string]*api.Context{"x": {Cluster: "c"}}, CurrentContext: "x",
	}, whole))
	if err != nil {
		t.Fatal(err)
	}
	for says, cfg := range map[string]Config{
		"has no service account of a cluster": {AgentImage: "x"},
		"read the KUBECONFIG":                 {Kubeconfig: broken, AgentImage: "x"},
		`names the model "NVIDIA A100"`:       {Kubeconfig: whole, Namespace: "boxes", AgentImage: "x", GPUModels: []string{"Tesla-T4", "NVIDIA A100"}},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", cfg, err, says)
		}
	}
}

package server_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/server"
	"github.com/sandfarm/sandfarm/internal/secret"
)

// Programs of a sandbox with an authority find it, behind the certificates of the image, by their environment. Others get no such variables.
func TestTheEnvironmentNamesTheAuthority(t *testing.T) {
	t.Parallel()
	const show = `echo "$SSL_CERT_FILE|$REQUESTS_CA_BUNDLE|$CURL_CA_BUNDLE|$PIP_CERT|$GIT_SSL_CAINFO|$NODE_EXTRA_CA_CERTS"`
	authority, err := secret.NewAuthority([]string{"api.example.com"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	a := agenttest.StartProxied(t, "/usr/bin:/bin", http.NotFoundHandler(), func(cfg *server.Config) {
		cfg.Authority = authority.Certificate
		cfg.Env = append(cfg.Env, "PIP_CERT=/mine")
	})
	ran := agenttest.Run(t, a.Client, agenttest.Commands(show))
	paths := strings.Split(strings.TrimSpace(ran.Stdout), "|")
	if len(paths) != 6 || paths[0] == "" || paths[1] != paths[0] || paths[2] != paths[0] || paths[3] != "/mine" || paths[4] != paths[0] || paths[5] == paths[0] {
		t.Fatalf("%q", paths)
	}
	bundle, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	alone, err := os.ReadFile(paths[5])
	if err != nil || !bytes.HasSuffix(bundle, alone) {
		t.Errorf("the bundle does not end with the authority: %v", err)
	}
	block, _ := pem.Decode(alone)
	if block == nil || !bytes.Equal(block.Bytes, authority.Certificate) {
		t.Error("the authority is another one")
	}
	image, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err == nil && !bytes.HasPrefix(bundle, bytes.TrimSpace(image)) {
		t.Error("the certificates of the image are missing")
	}
	if !x509.NewCertPool().AppendCertsFromPEM(bundle) {
		t.Error("the bundle has no certificate")
	}
	plain := agenttest.StartProxied(t, "/usr/bin:/bin", http.NotFoundHandler(), nil)
	if ran := agenttest.Run(t, plain.Client, agenttest.Commands(show)); ran.Stdout != "|||||\n" {
		t.Errorf("without an authority: %q", ran.Stdout)
	}
}

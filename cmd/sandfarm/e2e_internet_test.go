//go:build integration

package main_test

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/secret"
)

// internet is what a farm of a test takes for the Internet: a DNS, a site that has all allowed names, and a victim that nothing may reach, at
// the same ports of another address. The farm needs no hook for it: its resolv.conf is another file, its roots of certificates are given by
// SSL_CERT_FILE, and the address of the site alone is allowed by egress.private.
type internet struct {
	t         *testing.T
	site      string // address of the site
	victim    string // address of the victim
	authority []byte // certificate that signs those of the site, PEM
	pypi      *upstream
	files     string // directory of the files for farms
	key       string // the farm's setting secrets.key

	visits atomic.Int64 // connections to the victim

	mu    sync.Mutex
	asked []string       // names that the DNS was asked for
	turns map[string]int // how often a name was asked for
	seen  []visit
}

// siteNames have certificates; names below good.test without one are for attacks.
var siteNames = []string{"api.good.test", "other.good.test", "plain.good.test", "index.good.test", "bare.wide.test"}

// newInternet starts the servers. Tests that run side by side have addresses of their own.
func newInternet(t *testing.T) *internet {
	t.Helper()
	n := &internet{t: t, files: t.TempDir(), pypi: newUpstream(t), turns: map[string]int{}}
	authority, err := secret.NewAuthority(siteNames, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := secret.NewIssuer(authority, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	n.authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate})
	certificates := &tls.Config{NextProtos: []string{"http/1.1"}, GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		return issuer.Certify(hello.ServerName)
	}}
	var open []net.Listener
	for range 20 {
		net := fmt.Sprintf("127.77.%d.", 1+rand.IntN(250))
		n.site, n.victim = net+"1", net+"2"
		if open, err = n.listen(net); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal("listen as the Internet: ", err)
	}
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	for i, handler := range []http.Handler{n, n, http.HandlerFunc(n.victimised), http.HandlerFunc(n.victimised)} {
		server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, ErrorLog: quiet}
		listener := open[i]
		if i == 1 {
			listener = tls.NewListener(listener, certificates)
		}
		if i > 1 {
			server.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					n.visits.Add(1)
				}
			}
		}
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(func() { _ = server.Close() })
	}
	key := make([]byte, secret.KeyBytes)
	for i := range key {
		key[i] = byte(rand.IntN(256)) //nolint:gosec // at most 255
	}
	n.key = base64.StdEncoding.EncodeToString(key)
	n.write("resolv.conf", "nameserver "+n.site+"\noptions timeout:5\n")
	roots, _ := os.ReadFile(os.Getenv("SSL_CERT_FILE")) // "": the directories of the system count too
	n.write("roots.pem", string(roots)+"\n"+string(n.authority))
	return n
}

// listen listens at the ports of site and victim, and as the DNS.
func (n *internet) listen(prefix string) (open []net.Listener, err error) {
	defer func() {
		if err != nil {
			for _, l := range open {
				_ = l.Close()
			}
		}
	}()
	for _, addr := range []string{n.site + ":80", n.site + ":443", n.victim + ":80", n.victim + ":443"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return open, err
		}
		open = append(open, l)
	}
	return open, n.serveDNS(prefix + "1:53")
}

func (n *internet) write(name, text string) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.files, name), []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// farm starts a farm on this internet that allows all names below good.test and wide.test.
func (n *internet) farm(env ...string) *farmProcess {
	n.t.Helper()
	env = append([]string{
		"SANDFARM_EGRESS_ALLOW=*.good.test,*.wide.test", "SANDFARM_EGRESS_PRIVATE=" + n.site + "/32", "SANDFARM_SECRETS_KEY=" + n.key,
		"SSL_CERT_FILE=" + filepath.Join(n.files, "roots.pem"),
	}, env...)
	return newFarmBy(n.t, []string{
		"unshare", "--mount", "--propagation", "private", "sh", "-c", `mount --bind "$0" "$(readlink -f /etc/resolv.conf)" && exec "$@"`,
		filepath.Join(n.files, "resolv.conf"),
	}, env...)
}

// victimised answers what must not be asked.
func (n *internet) victimised(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte("this is the victim"))
}

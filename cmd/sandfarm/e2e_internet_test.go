//go:build integration

package main_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandfarm/sandfarm/internal/secret"
	"github.com/sandfarm/sandfarm/internal/testbed"
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
	testbed.Must(t, err)
	issuer, err := secret.NewIssuer(authority, time.Now)
	testbed.Must(t, err)
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
	testbed.Must(n.t, os.WriteFile(filepath.Join(n.files, name), []byte(text), 0o600))
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

// strange are the addresses of names below good.test that are not the site's. SITE and VICTIM stand for theirs; of a name with several
// lists each question gets the next one, and the last one stays.
var strange = map[string][]string{
	"victim.good.test":    {"VICTIM"},
	"both.good.test":      {"SITE VICTIM"},
	"rebind.good.test":    {"SITE", "VICTIM"},
	"metadata.good.test":  {"169.254.169.254"},
	"metadata6.good.test": {"fd00:ec2::254"},
	"shared.good.test":    {"100.100.100.200"},
	"loopback.good.test":  {"127.0.0.1"},
	"loopback6.good.test": {"::1"},
	"mapped.good.test":    {"::ffff:VICTIM"},
	"nat64.good.test":     {"64:ff9b::169.254.169.254"},
	"6to4.good.test":      {"2002:a9fe:a9fe::1"},
	"teredo.good.test":    {"2001:0:a9fe:a9fe::1"},
	"zero.good.test":      {"0.0.0.0"},
	"zero6.good.test":     {"::"},
	"link.good.test":      {"fe80::1"},
	"private.good.test":   {"10.0.0.1"},
	"multi.good.test":     {"224.0.0.1"},
}

// serveDNS answers questions until the test ends.
func (n *internet) serveDNS(addr string) error {
	conn, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			size, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var question dnsmessage.Message
			if question.Unpack(buf[:size]) != nil || len(question.Questions) != 1 {
				continue
			}
			go func() { // the names of the real Internet take their time
				if answer, err := n.answer(question); err == nil {
					_, _ = conn.WriteTo(answer, from)
				}
			}()
		}
	}()
	return nil
}

// answer answers one question: names of the test by this file, all others as the system does.
func (n *internet) answer(question dnsmessage.Message) ([]byte, error) {
	asked := question.Questions[0]
	name := strings.ToLower(strings.TrimSuffix(asked.Name.String(), "."))
	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: question.ID, Response: true, RecursionDesired: true, RecursionAvailable: true},
		Questions: question.Questions,
	}
	head := dnsmessage.ResourceHeader{Name: asked.Name, Class: dnsmessage.ClassINET}
	for _, ip := range n.addresses(name, asked.Type) {
		switch {
		case ip.Is4() && asked.Type == dnsmessage.TypeA:
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: ip.As4()}})
		case ip.Is6() && asked.Type == dnsmessage.TypeAAAA:
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: ip.As16()}})
		}
	}
	return reply.Pack()
}

func (n *internet) addresses(name string, kind dnsmessage.Type) (found []netip.Addr) {
	n.mu.Lock()
	n.asked = append(n.asked, name)
	lists, is := strange[name]
	turn := n.turns[name]
	if kind == dnsmessage.TypeA { // A and AAAA are asked for together
		n.turns[name]++
	}
	n.mu.Unlock()
	switch {
	case is:
	case strings.HasSuffix(name, ".good.test") || strings.HasSuffix(name, ".wide.test"):
		lists, turn = []string{"SITE"}, 0
	case strings.HasSuffix(name, ".test"):
		return nil
	default:
		found, _ = net.DefaultResolver.LookupNetIP(n.t.Context(), "ip", name)
		for i := range found {
			found[i] = found[i].Unmap()
		}
		return found
	}
	text := strings.NewReplacer("SITE", n.site, "VICTIM", n.victim).Replace(lists[min(turn, len(lists)-1)])
	for field := range strings.FieldsSeq(text) {
		found = append(found, netip.MustParseAddr(field))
	}
	return found
}

// questions are the names below test that the DNS was asked for since the last call.
func (n *internet) questions() (names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range n.asked {
		if strings.HasSuffix(name, ".test") {
			names = append(names, name)
		}
	}
	n.asked = nil
	return names
}

// The headers in which the site takes secrets.
const (
	tokenHeader = "Authorization"
	keyHeader   = "X-Api-Key"
)

// visit is a request that the site got.
type visit struct {
	host, method, path string
	tls                bool
	header             http.Header
	body               string
}

// ServeHTTP is the site.
func (n *internet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	n.mu.Lock()
	n.seen = append(n.seen, visit{host: r.Host, method: r.Method, path: r.URL.RequestURI(), tls: r.TLS != nil, header: r.Header.Clone(), body: string(body)})
	n.mu.Unlock()
	if strings.HasPrefix(r.Host, "index.") {
		n.pypi.serve(w, r)
		return
	}
	switch r.URL.Path {
	case "/digest": // shows code that the headers were there, and not what they are
		for _, name := range []string{tokenHeader, keyHeader} {
			sum := sha256.Sum256([]byte(strings.Join(r.Header.Values(name), "\n")))
			_, _ = fmt.Fprintf(w, "%s %d %s\n", name, len(r.Header.Values(name)), hex.EncodeToString(sum[:]))
		}
	case "/redirect":
		w.Header().Set("Location", r.FormValue("to"))
		w.WriteHeader(http.StatusTemporaryRedirect)
	case "/hold":
		_, _ = io.WriteString(w, "begun\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case "/echo":
		repeat(w, r, r.Header.Get(tokenHeader)+"\n"+r.Header.Get(keyHeader)+"\n")
	default:
		_, _ = fmt.Fprintf(w, "%s %s\n", r.Method, r.Host)
	}
}

// repeat gives back what a host should keep to itself, in the form that the query names.
func repeat(w http.ResponseWriter, r *http.Request, text string) {
	line := strings.ReplaceAll(strings.TrimSpace(text), "\n", " ")
	switch r.FormValue("how") {
	case "header":
		w.Header().Set("X-Got", line)
	case "name":
		w.Header()[strings.NewReplacer(" ", "-", "\n", "").Replace("X-"+line)] = []string{"x"}
	case "cookie":
		http.SetCookie(w, &http.Cookie{Name: "got", Value: r.Header.Get(keyHeader)})
	case "location":
		w.Header().Set("Location", "https://other.good.test/?got="+url.QueryEscape(line))
		w.WriteHeader(http.StatusFound)
	case "hints":
		w.Header().Set("Link", "<https://other.good.test/"+url.PathEscape(line)+">; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
	case "trailer":
		w.Header().Set("Trailer", "X-Got")
		_, _ = io.WriteString(w, "the trailer has it\n")
		w.Header().Set("X-Got", line)
	case "gzip":
		w.Header().Set("Content-Encoding", "gzip")
		packed := gzip.NewWriter(w)
		_, _ = io.WriteString(packed, text)
		_ = packed.Close()
	case "json":
		_ = json.NewEncoder(w).Encode(map[string]string{"got": line})
	case "url":
		_, _ = io.WriteString(w, url.QueryEscape(line))
	case "drip": // each byte alone
		for _, c := range []byte(text) {
			_, _ = w.Write([]byte{c})
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Millisecond)
		}
	case "late":
		_, _ = w.Write(bytes.Repeat([]byte("x"), 300<<10))
		_, _ = io.WriteString(w, text)
	case "error":
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, "no such key: "+text)
	case "range":
		http.ServeContent(w, r, "got.txt", time.Time{}, strings.NewReader(text))
	default:
		_, _ = io.WriteString(w, text)
	}
}

// visited are the requests that the site got since the last call.
func (n *internet) visited() []visit {
	n.mu.Lock()
	defer n.mu.Unlock()
	got := n.seen
	n.seen = nil
	return got
}

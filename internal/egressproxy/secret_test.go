package egressproxy_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/secret"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

const token = "sk-0123456789abcdef"

// vault is a world with a TLS host good.test that has secrets.
type vault struct {
	*world
	inside *x509.CertPool // what programs in the sandbox trust

	mu   sync.Mutex
	seen []*http.Request
}

// issue makes a certificate for a name, and a pool that trusts its authority.
func issue(t *testing.T, host string) (*secret.Issuer, *x509.CertPool) {
	t.Helper()
	a, err := secret.NewAuthority([]string{host}, time.Now())
	testbed.Must(t, err)
	issuer, err := secret.NewIssuer(a, time.Now)
	testbed.Must(t, err)
	root, err := x509.ParseCertificate(a.Certificate)
	testbed.Must(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(root)
	return issuer, pool
}

// newVault makes a world whose host answers with serve, which need not keep to HTTP (nil: "ok").
func newVault(t *testing.T, serve http.HandlerFunc, change func(*egressproxy.Options)) *vault {
	t.Helper()
	v := &vault{world: &world{t: t, names: map[string][]string{"good.test": {publicIP}, "other.test": {publicIP}}, next: map[string][]string{}, changed: make(chan struct{}, 1)}}
	l, err := net.Listen("tcp", publicIP+":0")
	testbed.Must(t, err)
	v.port = l.Addr().(*net.TCPAddr).Port
	upstream, outside := issue(t, "good.test")
	certificate, err := upstream.Certify("good.test")
	testbed.Must(t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v.mu.Lock()
		v.seen = append(v.seen, r.Clone(context.Background()))
		v.mu.Unlock()
		if serve == nil {
			_, _ = io.WriteString(w, "ok")
			return
		}
		serve(w, r)
	}))
	_ = server.Listener.Close()
	server.Listener = l
	server.TLS = &tls.Config{Certificates: []tls.Certificate{*certificate}}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	t.Cleanup(server.Close)
	issuer, pool := issue(t, "good.test")
	v.inside = pool
	rules := v.rules("good.test:{P}", "other.test:{P}")
	rules.Certify = issuer.Certify
	rules.Secrets = []egressproxy.Secret{{Secret: farm.Secret{Name: "KEY", Host: "good.test", Header: "Authorization", Scheme: "Bearer"}, Value: token}}
	o := egressproxy.Options{
		Rules: rules, Limits: egressproxy.Limits{Hello: timeout}, Resolver: v.world, Report: v.report, Tenant: "t", SecretPort: v.port, Roots: outside,
		Public: func(all ...netip.Addr) bool { return slices.Equal(all, []netip.Addr{netip.MustParseAddr(publicIP)}) },
	}
	if change != nil {
		change(&o)
	}
	v.proxy = egressproxy.New(o)
	v.serve(v.proxy)
	return v
}

// urls are the two ways to ask good.test for a path.
func (v *vault) urls(path string) map[string]string {
	return map[string]string{"Plain": "http://good.test" + path, "TLS": "https://good.test:" + strconv.Itoa(v.port) + path}
}

func (v *vault) requests() []*http.Request {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.seen)
}

// ask sends a request through the proxy and reads the answer until it ends.
func (v *vault) ask(t *testing.T, method, target string, header http.Header) (status int, body string, err error) {
	t.Helper()
	client := v.client(v.inside)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	req, err := http.NewRequestWithContext(t.Context(), method, target, http.NoBody)
	testbed.Must(t, err)
	for name, values := range header {
		req.Header[name] = values
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

// reported waits for a report with a reason, "" for one of a request that was allowed.
func (v *vault) reported(t *testing.T, method, reason string) egressproxy.Connection {
	t.Helper()
	for n := 1; ; n++ {
		for _, c := range v.wait(n) {
			if c.Method == method && c.Reason == reason {
				return c
			}
		}
	}
}

// The header is set by the proxy, whatever the client sends, and the client's choices about the form of the answer are not passed on.
func TestSecretIsSet(t *testing.T) {
	t.Parallel()
	v := newVault(t, nil, nil)
	for name, target := range v.urls("/v1/models?q=1") {
		t.Run(name, func(t *testing.T) {
			before := len(v.requests())
			status, body, err := v.ask(t, "GET", target, http.Header{
				"Authorization": {farm.SecretPlaceholder, "second"}, "authorization": {"third"}, "Accept-Encoding": {"gzip, br"}, "Range": {"bytes=0-4"}, "If-Range": {"x"}, "Request-Range": {"bytes=0-4"}, "Accept-Charset": {"utf-16"}, "X-Own": {"kept"},
				"Accept_Encoding": {"gzip"}, "authorization_": {"kept"}, "X_HTTP_Method_Override": {"POST"},
			})
			if status != http.StatusOK || body != "ok" || err != nil {
				t.Fatalf("%d %q, %v", status, body, err)
			}
			got := v.requests()[before]
			want := http.Header{"Authorization": {"Bearer " + token}, "Accept-Encoding": {"identity"}, "Connection": {"close"}, "X-Own": {"kept"}, "Authorization_": {"kept"}, "User-Agent": {"Go-http-client/1.1"}}
			if diff := cmp.Diff(want, got.Header); diff != "" || got.URL.String() != "/v1/models?q=1" || got.Host != "good.test:"+strconv.Itoa(v.port) || got.TLS == nil {
				t.Errorf("%s %s of %s (-want +got):\n%s", got.Method, got.URL, got.Host, diff)
			}
		})
	}
	report := v.reported(t, "GET", "")
	if diff := cmp.Diff([]string{"KEY"}, report.Secrets); diff != "" || report.Host != "good.test" || report.Port != v.port || strings.Contains(fmt.Sprint(report), token) {
		t.Errorf("%+v", report)
	}
}

// The host chooses what its certificates cost, and the tenant the host.
func TestHostsAreVerifiedOnACoreOfTheTenant(t *testing.T) {
	t.Parallel()
	memory := budget.New(0)
	v := newVault(t, nil, func(o *egressproxy.Options) { o.Budget, o.Limits.Dial = memory, 100*time.Millisecond })
	defer testbed.TakeCores(t, memory, "t").Leave()
	for name, target := range v.urls("/") {
		if status, body, err := v.ask(t, "GET", target, nil); status != http.StatusBadGateway || err != nil || len(v.requests()) > 0 {
			t.Errorf("%s without a core: %d %q, %v", name, status, body, err)
		}
	}
}

// Trailers of a request do not reach the host: it may take them for headers, which are checked or set.
func TestTrailersOfARequestAreDropped(t *testing.T) {
	t.Parallel()
	v := newVault(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %v %v", body, r.Trailer, err)
	}, nil)
	conn := v.dial()
	fmt.Fprint(conn, "POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: X-Http-Method-Override\r\n\r\n"+
		"4\r\nbody\r\n0\r\nX-Http-Method-Override: DELETE\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if got, err := io.ReadAll(res.Body); string(got) != "body map[] <nil>" || err != nil {
		t.Errorf("the host got %q, %v", got, err)
	}
}

// Other hosts, and other ports of the host, are not sent the secret.
func TestSecretIsForItsHostOnly(t *testing.T) {
	t.Parallel()
	plain, err := record(t, publicIP+":0", answer)
	testbed.Must(t, err)
	port := plain.Addr().(*net.TCPAddr).Port
	v := newVault(t, nil, func(o *egressproxy.Options) {
		for _, name := range []string{"good.test", "other.test"} {
			r, _ := farm.ParseHostRule(name + ":" + strconv.Itoa(port))
			o.Rules.Allow = append(o.Rules.Allow, r)
		}
	})
	for _, host := range []string{"good.test", "other.test"} {
		if status, _, err := v.ask(t, "GET", fmt.Sprintf("http://%s:%d/", host, port), nil); status != http.StatusOK || err != nil {
			t.Errorf("%s: %d, %v", host, status, err)
		}
	}
	if got := plain.received(); strings.Contains(got, token) || !strings.Contains(got, "GET / HTTP/1.1") {
		t.Errorf("received %q", got)
	}
	for _, c := range v.wait(2) {
		if len(c.Secrets) > 0 {
			t.Errorf("%+v", c)
		}
	}
	// TLS to another host is not ended here: the client sees that host's own certificate, which it does not trust.
	if _, _, err := v.ask(t, "GET", fmt.Sprintf("https://other.test:%d/", v.port), nil); err == nil || len(v.requests()) > 0 {
		t.Errorf("%v, %d requests", err, len(v.requests()))
	}
}

// A redirect is the client's to follow: the other host gets no secret.
func TestSecretDoesNotFollowRedirects(t *testing.T) {
	t.Parallel()
	v := newVault(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://elsewhere.test/", http.StatusTemporaryRedirect)
	}, nil)
	for name, target := range v.urls("/") {
		if status, _, err := v.ask(t, "GET", target, nil); status != http.StatusTemporaryRedirect || err != nil {
			t.Errorf("%s: %d, %v", name, status, err)
		}
	}
	if got := v.lookups(); slices.Contains(got, "elsewhere.test.") {
		t.Errorf("looked up %q", got)
	}
}

// A host that repeats the secret, in whatever place or form, has its answer ended before it.
func TestEchoEndsTheAnswer(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100_000)
	flush := func(w http.ResponseWriter, parts ...string) {
		for _, part := range parts {
			_, _ = io.WriteString(w, part)
			_ = http.NewResponseController(w).Flush()
		}
	}
	for name, c := range map[string]struct {
		serve  http.HandlerFunc
		reason string
		begin  string // what may have been passed on: a beginning of it
	}{
		"Body":  {func(w http.ResponseWriter, r *http.Request) { flush(w, "you sent "+r.Header.Get("Authorization")) }, egressproxy.ReasonEcho, "you sent Bearer "},
		"Late":  {func(w http.ResponseWriter, _ *http.Request) { flush(w, long+token+long) }, egressproxy.ReasonEcho, long},
		"Split": {func(w http.ResponseWriter, _ *http.Request) { flush(w, "a ", token[:5], token[5:9], token[9:]+" z") }, egressproxy.ReasonEcho, "a "},
		"Bytes": {func(w http.ResponseWriter, _ *http.Request) { flush(w, strings.Split("sk-0sk-01"+token, "")...) }, egressproxy.ReasonEcho, "sk-0sk-01"},
		"Length": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(token)))
			flush(w, token)
		}, egressproxy.ReasonEcho, ""},
		"Header": {func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Echo", r.Header.Get("Authorization")) }, egressproxy.ReasonEcho, ""},
		"Cookie": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Add("Set-Cookie", "a="+token) }, egressproxy.ReasonEcho, ""},
		"Name":   {func(w http.ResponseWriter, _ *http.Request) { w.Header()[token] = []string{"x"} }, egressproxy.ReasonEcho, ""},
		"Gzip": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, token)
			_ = z.Close()
		}, egressproxy.ReasonEncoded, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVault(t, c.serve, nil)
			for way, target := range v.urls("/") {
				status, body, err := v.ask(t, "GET", target, nil)
				if strings.Contains(body, token) {
					t.Fatalf("%s: the secret was passed on: %d %.200q", way, status, body)
				}
				if err == nil && status != http.StatusBadGateway {
					t.Errorf("%s: %d %.100q is complete", way, status, body)
				}
				if err != nil && !strings.HasPrefix(c.begin, body) {
					t.Errorf("%s: %.100q was passed on, want a part of %.100q", way, body, c.begin)
				}
			}
			if got := v.reported(t, "GET", c.reason); got.Verdict != egressproxy.Denied {
				t.Errorf("%+v", got)
			}
		})
	}
}

// Headers before the final answer, and trailers behind the body, do not reach the client.
func TestEchoOutsideOfTheAnswer(t *testing.T) {
	t.Parallel()
	v := newVault(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", token)
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		w.Header().Set("Trailer", "X-Late")
		_, _ = io.WriteString(w, "body")
		w.Header().Set("X-Late", token)
		w.Header().Set(http.TrailerPrefix+"X-Later", token)
	}, nil)
	conn := v.dial()
	fmt.Fprintf(conn, "GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n")
	all, err := io.ReadAll(conn)
	if err != nil || strings.Contains(string(all), token) || !strings.Contains(string(all), "body") {
		t.Errorf("%q, %v", all, err)
	}
}

// What begins like the secret and is none passes, whole.
func TestAnswersWithoutTheSecretAreWhole(t *testing.T) {
	t.Parallel()
	want := strings.Repeat(token[:len(token)-1]+"|", 5000) + token[:7]
	v := newVault(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/length" {
			w.Header().Set("Content-Length", strconv.Itoa(len(want)))
		}
		_, _ = io.WriteString(w, want)
	}, nil)
	for _, path := range []string{"/length", "/chunks"} {
		for name, target := range v.urls(path) {
			if status, body, err := v.ask(t, "GET", target, nil); status != http.StatusOK || body != want || err != nil {
				t.Errorf("%s %s: %d, %d bytes of %d, %v", name, path, status, len(body), len(want), err)
			}
		}
	}
}

// Rules with methods hold for hosts with a secret over HTTPS too, when they are asked in plain.
func TestMethodsOfAHostWithASecret(t *testing.T) {
	t.Parallel()
	v := newVault(t, nil, func(o *egressproxy.Options) {
		r, _ := farm.ParseHostRule("GET good.test:" + strconv.Itoa(o.SecretPort))
		o.Rules.Allow = []farm.HostRule{r}
	})
	for method, want := range map[string]int{"GET": http.StatusOK, "POST": http.StatusForbidden} {
		if status, _, err := v.ask(t, method, "http://good.test/", nil); status != want || err != nil {
			t.Errorf("%s: %d, %v", method, status, err)
		}
	}
}

// A host whose secret cannot be read is not asked at all, and one whose certificate is not valid is not sent it.
func TestNoSecretNoRequest(t *testing.T) {
	t.Parallel()
	v := newVault(t, nil, func(o *egressproxy.Options) { o.Rules.Secrets[0].Value = "" })
	if status, body, err := v.ask(t, "GET", "http://good.test/", nil); status != http.StatusBadGateway || !strings.Contains(body, egressproxy.ReasonSecret) || err != nil {
		t.Errorf("%d %q, %v", status, body, err)
	}
	if _, _, err := v.ask(t, "GET", v.urls("/")["TLS"], nil); err == nil {
		t.Error("a tunnel is opened")
	}
	strange := newVault(t, nil, func(o *egressproxy.Options) { o.Roots = x509.NewCertPool() })
	if status, body, err := strange.ask(t, "GET", "http://good.test/", nil); status != http.StatusBadGateway || !strings.Contains(body, egressproxy.ReasonCert) || err != nil {
		t.Errorf("%d %q, %v", status, body, err)
	}
	if len(v.requests())+len(strange.requests()) > 0 {
		t.Error("the host was asked")
	}
}

// The forms in which a value may come back.
func TestFormsOfASecret(t *testing.T) {
	t.Parallel()
	pair := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:pass/\"word\n"))
	if diff := cmp.Diff([]string{pair, strings.TrimPrefix(pair, "Basic "), `pass/"word`}, farm.SecretForms(pair)); diff != "" {
		t.Error(diff)
	}
}

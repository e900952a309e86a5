package egressproxy_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// A proxy must ignore a Host that contradicts the URL (RFC 9112, 3.2.2). So these requests are made, but only as the request that was
// checked: the host gets one request, in its own name, and nothing of what was hidden in it.
func TestSmuggledRequestsAreTakenApart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		request string
		second  string // the reason of a second request that comes out of the first; "": there is none
		status  string
	}{
		"Host of another host":         {"GET http://good.test:{P}/ HTTP/1.1\nHost: evil.test\nConnection: close\n\n", "", "200"},
		"empty Host":                   {"GET http://good.test:{P}/ HTTP/1.1\nHost:\nConnection: close\n\n", "", "200"},
		"length and chunks":            {"POST http://good.test:{P}/ HTTP/1.1\nHost: x\nContent-Length: 60\nTransfer-Encoding: chunked\n\n0\n\nGET http://evil.test/ HTTP/1.1\nHost: evil.test\nX: ", egressproxy.ReasonRule, "200"},
		"length beyond the chunks":     {"POST http://good.test:{P}/ HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\nContent-Length: 4\n\n5\nhello\n0\n\nGET http://evil.test/ HTTP/1.1\nHost: evil.test\n\n", egressproxy.ReasonRule, "200"},
		"second request after no body": {"GET http://good.test:{P}/ HTTP/1.1\nHost: x\n\nGET http://evil.test/ HTTP/1.1\nHost: evil.test\n\n", egressproxy.ReasonRule, "200"},
		"folded header":                {"GET http://good.test:{P}/ HTTP/1.1\nHost: x\nX-A: b\n Host: evil.test\nConnection: close\n\n", "", "200"},
		"chunk extension":              {"POST http://good.test:{P}/ HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\nConnection: close\n\n5;GET /evil.test\nhello\n0\n\n", "", "200"},
		"trailer with a Host":          {"POST http://good.test:{P}/ HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\nTrailer: Host\nConnection: close\n\n0\nHost: evil.test\n\n", "", ""},
		"chunk size that overflows":    {"POST http://good.test:{P}/ HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n10000000000000005\nhello\n0\n\nGET http://evil.test/ HTTP/1.1\n\n", "", ""},
		"chunk size with a sign":       {"POST http://good.test:{P}/ HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n+5\nhello\n0\n\nGET http://evil.test/ HTTP/1.1\n\n", "", ""},
		"header that names others":     {"GET http://good.test:{P}/ HTTP/1.1\nHost: x\nConnection: close, X-Evil\nX-Evil: evil.test\n\n", "", "200"},
		"headers for the proxy":        {"GET http://good.test:{P}/ HTTP/1.1\nHost: x\nConnection: close\nProxy-Authorization: evil.test\nProxy-Foo: evil.test\n\n", "", "200"},
		"other method in a header":     {"GET http://good.test:{P}/ HTTP/1.1\nHost: x\nConnection: close\nX-HTTP-Method-Override: evil.test\nX-Method-Override: evil.test\nX-HTTP-Method: evil.test\n\n", "", "200"},
		"other method, underscores":    {"GET http://good.test:{P}/ HTTP/1.1\nHost: x\nConnection: close\nX_HTTP_METHOD_OVERRIDE: evil.test\nX-Method_Override: evil.test\nProxy_Foo: evil.test\n\n", "", "200"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, egressproxy.Limits{}, answer)
			conn := w.dial()
			_, _ = io.WriteString(conn, strings.ReplaceAll(w.fill(c.request), "\n", "\r\n"))
			if strings.HasSuffix(c.request, "X: ") {
				_, _ = io.WriteString(conn, "\r\n\r\n")
			}
			if c.second == "" && !strings.Contains(c.request, "close") {
				_ = conn.CloseWrite()
			}
			got, _ := io.ReadAll(conn)
			if c.status != "" && !strings.HasPrefix(string(got), "HTTP/1.1 "+c.status) {
				t.Errorf("the answer is %q", got)
			}
			sent := w.host.received()
			if c.status != "" && (!strings.Contains(sent, w.fill("\r\nHost: good.test:{P}\r\n")) || strings.Count(sent, "HTTP/1.1") != 1) {
				t.Errorf("the host got %q", sent)
			}
			if strings.Contains(strings.ReplaceAll(strings.ToLower(sent), "x-a: b host: evil.test", ""), "evil") || strings.Count(strings.ToLower(sent), "\nhost:") > 1 {
				t.Errorf("the host got %q", sent)
			}
			for _, asked := range w.lookups() {
				testbed.Diff(t, "asked the DNS for", "good.test.", asked)
			}
			if c.second != "" {
				if r := w.wait(2); r[1].Host != "evil.test" || r[1].Reason != c.second || r[1].Verdict != egressproxy.Denied {
					t.Errorf("%+v", r)
				}
			} else if r := w.wait(1); len(r) != 1 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// The client follows a redirect itself, so its next request is checked like any other.
func TestRedirectsAreTheClients(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{}, answer)
	for i, to := range []string{"http://evil.test/", "http://127.0.0.3:{P}/", "http://169.254.169.254/latest/meta-data/", "//evil.test/"} {
		base, _ := w.site(false, http.RedirectHandler(w.fill(to), http.StatusTemporaryRedirect))
		res, err := w.client(nil).Get(base)
		testbed.Must(t, err)
		_ = res.Body.Close()
		r := w.wait(2*i + 2)
		if res.StatusCode != http.StatusForbidden || r[2*i].Verdict != egressproxy.Allowed || r[2*i+1].Verdict != egressproxy.Denied {
			t.Errorf("%s: %d, %+v", to, res.StatusCode, r)
		}
	}
	if w.hide.conns.Load() != 0 {
		t.Error("the victim was reached")
	}
}

// asked is a resolver that knows no name and remembers those it was asked for.
type asked struct{ hosts []string }

// LookupNetIP implements address.Resolver.
func (a *asked) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	a.hosts = append(a.hosts, host)
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// Requests to the proxy come from user code. Whatever they look like, only a host that a rule allows is resolved, each attempt is reported
// once, and nothing but an error answers.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n", "CONNECT good.test:443 HTTP/1.1\r\nHost: good.test:443\r\n\r\n", "GET http://10.0.0.1/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
		"GET http://good.test@evil.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n", "CONNECT [::1]:443 HTTP/1.1\r\nHost: good.test\r\n\r\n", "GET http://GOOD.test.:80/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET http://good.test%2eevil.test/ HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT 0x7f.1:443 HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://good.test/ HTTP/1.1\r\nHost: evil.test\r\nUpgrade: websocket\r\n\r\n",
		"POST http://good.test/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\nGET /", "CONNECT a.good.test:80 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nxx", "GET / HTTP/1.1\r\nHost: good.test\r\n\r\n",
		"GET https://good.test/ HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT good.test:0443 HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://xn--good.test/ HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	rule, err := farm.ParseHostRule("good.test")
	testbed.Must(f, err)
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(in)))
		if err != nil {
			return
		}
		names, reports := &asked{}, []egressproxy.Connection{}
		p := egressproxy.New(egressproxy.Options{Rules: egressproxy.Rules{Allow: []farm.HostRule{rule}}, Resolver: names, Report: func(c egressproxy.Connection) { reports = append(reports, c) }})
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r.WithContext(t.Context()))
		p.Close()
		for _, host := range names.hosts {
			testbed.Diff(t, "host that was resolved", "good.test.", host)
		}
		if w.Code < http.StatusBadRequest {
			t.Errorf("status %d", w.Code)
		}
		if len(reports) != 1 || reports[0].Verdict == egressproxy.Allowed {
			t.Fatalf("reports %+v", reports)
		}
		if strings.ContainsFunc(reports[0].Host+reports[0].Method, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("the report of %+q %+q cannot be printed", reports[0].Method, reports[0].Host)
		}
	})
}

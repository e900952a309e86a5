package egressproxy_test

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
)

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
	if err != nil {
		f.Fatal(err)
	}
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
			if host != "good.test." {
				t.Errorf("%q was resolved", host)
			}
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

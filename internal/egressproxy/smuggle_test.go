package egressproxy_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/egressproxy"
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
				if asked != "good.test." {
					t.Errorf("asked the DNS for %q", asked)
				}
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
		if err != nil {
			t.Fatal(err)
		}
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

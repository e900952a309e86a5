package egressproxy_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// tunnel opens TLS to good.test through the proxy, as a program that trusts the farm's certificate.
func (v *vault) tunnel(t *testing.T, server string) *tls.Conn {
	t.Helper()
	conn, _, status := v.connect("good.test:{P}")
	if status != http.StatusOK {
		t.Fatalf("CONNECT: %d", status)
	}
	c := tls.Client(conn, &tls.Config{ServerName: server, RootCAs: v.inside, NextProtos: []string{"h2", "http/1.1"}})
	if server != "good.test" {
		return c
	}
	testbed.Must(t, c.HandshakeContext(t.Context()))
	testbed.Diff(t, "the protocol", "http/1.1", c.ConnectionState().NegotiatedProtocol)
	return c
}

// Requests inside a tunnel are checked one by one.
func TestRequestsInsideATunnel(t *testing.T) {
	t.Parallel()
	v := newVault(t, nil, nil)
	for name, c := range map[string]struct {
		request string
		status  int
		reason  string
	}{
		"Good":         {"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n", http.StatusOK, ""},
		"WithPort":     {"GET / HTTP/1.1\r\nHost: good.test:{P}\r\n\r\n", http.StatusOK, ""},
		"OtherHost":    {"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n", http.StatusForbidden, egressproxy.ReasonHostHeader},
		"OtherPort":    {"GET / HTTP/1.1\r\nHost: good.test:8\r\n\r\n", http.StatusForbidden, egressproxy.ReasonHostHeader},
		"AbsoluteForm": {"GET https://other.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n", http.StatusBadRequest, egressproxy.ReasonForm},
		"Connect":      {"CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n", http.StatusBadRequest, egressproxy.ReasonForm},
		"Trace":        {"TRACE / HTTP/1.1\r\nHost: good.test\r\n\r\n", http.StatusForbidden, egressproxy.ReasonTrace},
		"Upgrade":      {"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", http.StatusForbidden, egressproxy.ReasonUpgrade},
		"Smuggled":     {"POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: 4\r\nTransfer-Encoding: x\r\n\r\nabcd", http.StatusNotImplemented, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := v.tunnel(t, "good.test")
			defer conn.Close()
			_, _ = io.WriteString(conn, v.fill(c.request))
			res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: "GET"})
			if err != nil || res.StatusCode != c.status {
				t.Fatalf("%+v, %v", res, err)
			}
			_ = res.Body.Close()
			if c.reason != "-" {
				method, _, _ := strings.Cut(c.request, " ")
				v.reported(t, method, c.reason)
			}
		})
	}
	for _, r := range v.requests() {
		if r.Host != "good.test:"+strconv.Itoa(v.port) || r.Header.Get("Authorization") != "Bearer "+token {
			t.Errorf("%s %s of %s", r.Method, r.URL, r.Host)
		}
	}
}

// A header inside a tunnel has a bounded number of lines, also that of a later request.
func TestLinesInsideATunnelAreBounded(t *testing.T) {
	t.Parallel()
	v := newVault(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }, nil) // a host that does not read may break the connection
	conn := v.tunnel(t, "good.test")
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute)) // detects a hang
	r := bufio.NewReader(conn)
	const begin = "POST / HTTP/1.1\r\nHost: good.test\r\n"
	_, _ = io.WriteString(conn, begin+"Content-Length: 9999\r\n\r\n"+strings.Repeat("\n", 9999))
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%+v, %v", res, err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_, _ = io.WriteString(conn, begin+strings.Repeat("a:\n", 3000)) // and no end
	if res, err = http.ReadResponse(r, nil); err != nil || res.StatusCode != http.StatusBadRequest {
		t.Fatalf("%+v, %v", res, err)
	}
}

// A handshake for another name, or by a program that does not trust the farm's certificate, ends with a reason.
func TestHandshakeOfATunnelWithASecret(t *testing.T) {
	t.Parallel()
	v := newVault(t, nil, nil)
	if err := v.tunnel(t, "other.test").HandshakeContext(t.Context()); err == nil {
		t.Error("a handshake for another host succeeds")
	}
	v.reported(t, "CONNECT", egressproxy.ReasonSNI)
	conn, _, _ := v.connect("good.test:{P}")
	if err := tls.Client(conn, &tls.Config{ServerName: "good.test", RootCAs: x509.NewCertPool()}).HandshakeContext(t.Context()); err == nil {
		t.Error("the certificate is trusted without the authority")
	}
	_ = conn.Close()
	conn, _, _ = v.connect("good.test:{P}")
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n")
	v.reported(t, "CONNECT", egressproxy.ReasonNoTLS)
	testbed.Diff(t, "requests of the host", 0, len(v.requests()))
}

// Several requests of one connection have a connection to the host each, and end when the rules change.
func TestTunnelWithASecretGoesOnUntilTheRulesChange(t *testing.T) {
	t.Parallel()
	v := newVault(t, nil, nil)
	conn := v.tunnel(t, "good.test")
	r := bufio.NewReader(conn)
	for range 3 {
		_, _ = io.WriteString(conn, "POST /x HTTP/1.1\r\nHost: good.test\r\nContent-Length: 3\r\n\r\nabc")
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%+v, %v", res, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
	}
	v.proxy.SetRules(egressproxy.Rules{})
	if _, err := r.ReadByte(); err == nil {
		t.Error("the tunnel is open without a rule")
	}
	v.reported(t, "CONNECT", egressproxy.ReasonRules)
}

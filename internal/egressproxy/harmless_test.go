package egressproxy_test

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strconv"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// site is an HTTP server that the rules allow under the name of httptest's certificate.
func (w *world) site(secure bool, handler http.Handler) (base string, roots *x509.CertPool) {
	w.t.Helper()
	l, err := net.Listen("tcp", publicIP+":0")
	testbed.Must(w.t, err)
	server := httptest.NewUnstartedServer(handler)
	_ = server.Listener.Close()
	server.Listener, server.EnableHTTP2 = l, true
	scheme := "http"
	if secure {
		server.TLS = &tls.Config{CurvePreferences: w.curves}
		server.StartTLS()
		scheme = "https"
		roots = x509.NewCertPool()
		roots.AddCert(server.Certificate())
	} else {
		server.Start()
	}
	w.t.Cleanup(server.Close)
	at := "example.com:" + strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	w.mu.Lock()
	w.names["example.com"] = []string{publicIP}
	w.mu.Unlock()
	w.proxy.SetRules(w.rules(at, "good.test:{P}"))
	return scheme + "://" + at, roots
}

// both runs a test over plain HTTP and over TLS.
func both(t *testing.T, handler http.HandlerFunc, test func(t *testing.T, w *world, base string, client *http.Client)) {
	t.Helper()
	for _, secure := range []bool{false, true} {
		t.Run(map[bool]string{false: "http", true: "https"}[secure], func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, egressproxy.Limits{}, answer)
			base, roots := w.site(secure, handler)
			test(t, w, base, w.client(roots))
		})
	}
}

func TestRequestsAndAnswersPassUnchanged(t *testing.T) {
	t.Parallel()
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<19) // 8 MiB
	both(t, func(w http.ResponseWriter, r *http.Request) {
		got := sha256.New()
		n, _ := io.Copy(got, r.Body)
		w.Header().Set("X-Query", r.URL.RawQuery)
		w.Header().Set("X-Got", fmt.Sprintf("%s %d %x %v", r.Method, n, got.Sum(nil)[:4], r.TransferEncoding))
		w.Header().Set("X-Host", r.Host)
		switch r.URL.Path {
		case "/large":
			_, _ = w.Write(large)
		case "/none":
			w.WriteHeader(http.StatusNoContent)
		default:
			w.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(w, "short")
		}
	}, func(t *testing.T, w *world, base string, client *http.Client) {
		sum := fmt.Sprintf("%x", sha256.Sum256(large))[:8]
		empty := fmt.Sprintf("%x", sha256.Sum256(nil))[:8]
		for i, c := range []struct {
			method, path string
			body         io.Reader
			status, size int
			got          string
		}{
			{"GET", "/large?a=1;b=%zz", nil, 200, len(large), "GET 0 " + empty + " []"},
			{"GET", "/none", nil, 204, 0, "GET 0 " + empty + " []"},
			{"HEAD", "/large", nil, 200, 0, "HEAD 0 " + empty + " []"},
			{"POST", "/", bytes.NewReader(large), 418, 5, fmt.Sprintf("POST %d %s []", len(large), sum)},
			{"PUT", "/", io.MultiReader(bytes.NewReader(large)), 418, 5, fmt.Sprintf("PUT %d %s ", len(large), sum)}, // chunked
			{"PROPFIND", "/", strings.NewReader("x"), 418, 5, ""},
		} {
			req, _ := http.NewRequest(c.method, base+c.path, c.body)
			req.Header.Set("Upgrade", "h2c") // an offer that is ignored
			req.Header.Set("Connection", "Upgrade, HTTP2-Settings")
			req.Header.Set("Http2-Settings", "AAMAAABkAAQAAP__")
			if strings.HasPrefix(base, "https") {
				req.Header.Del("Upgrade")
				req.Header.Del("Connection")
			}
			res, err := client.Do(req)
			if err != nil {
				t.Fatalf("%s %s: %v", c.method, c.path, err)
			}
			body, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if err != nil || res.StatusCode != c.status || len(body) != c.size || !strings.HasPrefix(res.Header.Get("X-Got"), c.got) {
				t.Errorf("%s %s: %d with %d bytes, %v; the host got %q, want %q", c.method, c.path, res.StatusCode, len(body), err, res.Header.Get("X-Got"), c.got)
			}
			if i == 0 && res.Header.Get("X-Query") != "a=1;b=%zz" {
				t.Errorf("the query is %q", res.Header.Get("X-Query"))
			}
			testbed.Diff(t, "the Host", strings.SplitN(base, "//", 2)[1], res.Header.Get("X-Host"))
		}
		client.CloseIdleConnections()
		if c := w.wait(1)[0]; c.Verdict != egressproxy.Allowed || c.Reason != "" || c.Host != "example.com" || c.Received == 0 || c.Sent == 0 || c.At.IsZero() || c.Duration <= 0 {
			t.Errorf("the report is %+v", c)
		}
	})
}

func TestExpectContinuePasses(t *testing.T) {
	t.Parallel()
	both(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/refused" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	}, func(t *testing.T, _ *world, base string, client *http.Client) {
		transport, _ := client.Transport.(*http.Transport)
		transport.ExpectContinueTimeout = timeout
		for path, status := range map[string]int{"/": 200, "/refused": 403} {
			continued := false
			req, _ := http.NewRequest(http.MethodPost, base+path, strings.NewReader("body"))
			req.Header.Set("Expect", "100-continue")
			req = req.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { continued = true }}))
			res, err := client.Do(req)
			testbed.Must(t, err)
			_ = res.Body.Close()
			if res.StatusCode != status || (status == 200) != continued && res.ProtoMajor == 1 && status == 200 {
				t.Errorf("%s: %d, continued: %v", path, res.StatusCode, continued)
			}
		}
	})
}

func TestHelloArrivesUnchanged(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string][]byte{
		"in one record": hello("good.test"), "in records of 7 bytes": split(hello("good.test"), 7), "in capitals": hello("GOOD.Test"),
		"with an unknown extension": extend(hello("good.test"), 0x1a1a, []byte{1, 2, 3}),
		"with a ticket of 8 KiB":    extend(hello("good.test"), 35, make([]byte, 8<<10)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, egressproxy.Limits{}, func(c net.Conn) { // half close: the host answers when it has everything
				n, _ := io.Copy(io.Discard, c)
				fmt.Fprintf(c, "got %d", n)
			})
			conn, r, status := w.connect("GOOD.Test.:{P}")
			if status != http.StatusOK {
				t.Fatal(status)
			}
			for _, b := range sent {
				_, err := conn.Write([]byte{b})
				testbed.Must(t, err)
			}
			_, _ = conn.Write(data("and more"))
			_ = conn.CloseWrite()
			got, err := io.ReadAll(r)
			want := string(sent) + string(data("and more"))
			if err != nil || string(got) != fmt.Sprintf("got %d", len(want)) || w.host.received() != want {
				t.Errorf("the answer is %q, %v; the host has %d bytes, want %d", got, err, len(w.host.received()), len(want))
			}
			c := w.wait(1)[0]
			if c.Verdict != egressproxy.Allowed || c.Sent != int64(len(want)) || c.Received != int64(len(got)) || c.Method != http.MethodConnect || c.Port != w.port {
				t.Errorf("the report is %+v", c)
			}
		})
	}
}

// The host may end its direction first.
func TestHostEndsItsDirectionFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{}, func(c net.Conn) {
		tee, _ := c.(teeConn)
		tcp, _ := tee.Conn.(*net.TCPConn)
		_, _ = io.ReadFull(c, make([]byte, 5))
		_, _ = io.WriteString(tcp, "bye")
		_ = tcp.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	})
	conn, r, _ := w.connect("good.test:{P}")
	first := hello("good.test")
	_, _ = conn.Write(first)
	if got, err := io.ReadAll(r); string(got) != "bye" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	_, err := io.WriteString(conn, "still sent")
	testbed.Must(t, err)
	_ = conn.CloseWrite()
	if c := w.wait(1)[0]; c.Verdict != egressproxy.Allowed || c.Sent != int64(len(first)+len("still sent")) || c.Received != 3 {
		t.Errorf("the report is %+v", c)
	}
}

// A client that goes away is no failure of the host.
func TestClientGoesAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{}, func(c net.Conn) {
		for {
			if _, err := c.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	conn, r, _ := w.connect("good.test:{P}")
	_, _ = conn.Write(hello("good.test"))
	_, _ = io.ReadFull(r, make([]byte, 1<<20))
	_ = conn.SetLinger(0)
	_ = conn.Close()
	if c := w.wait(1)[0]; c.Verdict != egressproxy.Allowed || c.Received < 1<<20 {
		t.Errorf("%+v", c)
	}
}

func TestHostBreaksATunnel(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{}, func(c net.Conn) {
		tee, _ := c.(teeConn)
		_, _ = io.ReadFull(c, make([]byte, 5))
		_ = tee.Conn.(*net.TCPConn).SetLinger(0)
	})
	conn, r, _ := w.connect("good.test:{P}")
	_, _ = conn.Write(hello("good.test"))
	_, _ = io.Copy(io.Discard, r)
	if c := w.wait(1)[0]; c.Verdict != egressproxy.Failed || c.Reason != egressproxy.ReasonBroken {
		t.Errorf("%+v", c)
	}
}

func TestPlainClientsMayKeepTheirConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{}, answer)
	client := w.client(nil)
	for i := range 5 {
		reused := false
		req, _ := http.NewRequest(http.MethodGet, w.fill("http://good.test:{P}/"), nil)
		req = req.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused }}))
		res, err := client.Do(req)
		testbed.Must(t, err)
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if string(body) != "ok" || reused != (i > 0) {
			t.Errorf("request %d: %q, reused: %v", i, body, reused)
		}
	}
	if n := w.host.conns.Load(); n != 5 { // a connection for each, to the host
		t.Errorf("the host has %d connections", n)
	}
	w.wait(5)
}

func TestFailuresAreExplained(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{}, func(c net.Conn) { _, _ = io.ReadFull(c, make([]byte, 1)) }, "good.test:{P}", "none.test:{P}", "closed.test:1")
	w.names["closed.test"] = []string{publicIP}
	for i, c := range []struct{ target, reason string }{
		{"none.test:{P}", egressproxy.ReasonName}, {"closed.test:1", egressproxy.ReasonConnect}, {"good.test:{P}", egressproxy.ReasonBroken},
	} {
		res, err := w.client(nil).Get("http://" + w.fill(c.target) + "/")
		testbed.Must(t, err)
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusBadGateway || !strings.Contains(string(body), c.reason) || !strings.Contains(string(body), w.fill(c.target)) {
			t.Errorf("%s: %d %q", c.target, res.StatusCode, body)
		}
		if r := w.wait(i + 1)[i]; r.Verdict != egressproxy.Failed || r.Reason != c.reason {
			t.Errorf("%+v", r)
		}
	}
}

package egressproxy_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/sandfarm/sandfarm/internal/egressproxy"
)

// retryRequest is a HelloRetryRequest as a server sends it to a client that offers a key share it does not want.
func retryRequest(t *testing.T) []byte {
	t.Helper()
	local, remote := net.Pipe()
	defer local.Close()
	go func() {
		server := tls.Server(remote, &tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP521}, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return nil, io.EOF
		}})
		_ = server.Handshake()
		_ = remote.Close()
	}()
	if _, err := local.Write(hello("good.test")); err != nil {
		t.Fatal(err)
	}
	header := make([]byte, 5)
	if _, err := io.ReadFull(local, header); err != nil {
		t.Fatal(err)
	}
	rest := make([]byte, int(header[3])<<8+int(header[4]))
	if _, err := io.ReadFull(local, rest); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, local) }()
	return append(header, rest...)
}

func TestSecondHelloIsCheckedToo(t *testing.T) {
	t.Parallel()
	retry, ccs := retryRequest(t), []byte{20, 3, 3, 0, 1, 1}
	same, other := hello("good.test"), hello("evil.test")
	for name, c := range map[string]struct {
		second []byte
		passes []byte // what the host gets of it
		reason string
	}{
		"same name":                    {append(bytes.Clone(ccs), same...), append(bytes.Clone(ccs), same...), ""},
		"same name without ciphers":    {same, same, ""},
		"same name after early data":   {append(data("early"), same...), append(data("early"), same...), ""},
		"other name":                   {append(bytes.Clone(ccs), other...), ccs, egressproxy.ReasonSNI},
		"other name split":             {split(other, 5), nil, egressproxy.ReasonSNI},
		"no name":                      {hello(""), nil, egressproxy.ReasonNoSNI},
		"encrypted":                    {extend(same, 0xfe0d, outerECH), nil, egressproxy.ReasonECH},
		"something else than a record": {[]byte("GET / HTTP/1.1\r\n"), nil, egressproxy.ReasonNoTLS},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, egressproxy.Limits{}, func(c net.Conn) {
				_, _ = io.ReadFull(c, make([]byte, len(same)))
				_, _ = c.Write(retry)
				hold(c)
			})
			conn, r, status := w.connect("good.test:{P}")
			first := hello("good.test")
			first = append(first[:0:0], same[:len(first)]...)
			_, _ = conn.Write(first)
			got := make([]byte, len(retry))
			if _, err := io.ReadFull(r, got); status != http.StatusOK || err != nil || !bytes.Equal(got, retry) {
				t.Fatalf("%d, %v, %x", status, err, got)
			}
			_, _ = conn.Write(c.second)
			_ = conn.CloseWrite()
			_, _ = io.Copy(io.Discard, r)
			verdict := egressproxy.Allowed
			if c.reason != "" {
				verdict = egressproxy.Denied
			}
			if report := w.wait(1)[0]; report.Reason != c.reason || report.Verdict != verdict {
				t.Errorf("%+v", report)
			}
			want := string(first) + string(c.passes)
			w.until(func() bool { return len(w.host.received()) >= len(want) })
			if w.host.received() != want {
				t.Errorf("the host got %d bytes, want %d", len(w.host.received()), len(want))
			}
		})
	}
}

// Before the host has decided, a client may send early data, but no second ClientHello.
func TestNoHandshakeBeforeTheHostHasAnswered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{}, hold)
	conn := w.tunnel("good.test:{P}", "good.test")
	before := len(w.host.received())
	_, _ = conn.Write(append(data("early"), hello("good.test")...))
	w.until(func() bool { return len(w.host.received()) >= before+len(data("early")) })
	w.proxy.Close()
	w.wait(1)
	if got := w.host.received(); len(got) != before+len(data("early")) {
		t.Errorf("the host got %d bytes more", len(got)-before-len(data("early")))
	}
}

// A whole handshake with a retry works.
func TestHandshakeWithRetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{}, answer)
	w.curves = []tls.CurveID{tls.CurveP521}
	base, roots := w.site(true, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, map[bool]string{true: "retried", false: "not retried"}[r.TLS.HelloRetryRequest])
	}))
	client := w.client(roots)
	tr, _ := client.Transport.(*http.Transport)
	tr.TLSClientConfig.CurvePreferences = []tls.CurveID{tls.X25519, tls.CurveP521}
	res, err := client.Get(base)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if string(body) != "retried" {
		t.Errorf("%q", body)
	}
}

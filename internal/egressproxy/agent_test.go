package egressproxy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/agent/transport"
	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// throughAgent lets the test reach the proxy as programs in a sandbox do: by the agent's listener and a stream of the worker's session.
func (w *world) throughAgent() {
	w.t.Helper()
	l, err := net.Listen("tcp", proxyIP+":0")
	testbed.Must(w.t, err)
	remote, err := net.Dial("tcp", l.Addr().String())
	testbed.Must(w.t, err)
	local, err := l.Accept()
	testbed.Must(w.t, err)
	_ = l.Close()
	worker, err := client.New(local, client.Options{Egress: w.proxy, Proxy: true})
	testbed.Must(w.t, err)
	config := yamux.DefaultConfig()
	config.MaxStreamWindowSize = 1 << 20 // as the agent has it
	config.LogOutput = io.Discard
	session, err := yamux.Server(agent.Joined(remote), config)
	testbed.Must(w.t, err)
	life, end := context.WithCancel(context.Background())
	g, err := transport.ListenEgress(life, transport.EgressConfig{Addr: proxyIP + ":0", Workers: oneWorker{session}, Proxy: true})
	testbed.Must(w.t, err)
	w.addr = g.Addr()
	w.t.Cleanup(func() {
		w.proxy.Close()
		end()
		_ = worker.Close()
		_ = session.Close()
		g.Close()
	})
}

type oneWorker struct{ *yamux.Session }

func (o oneWorker) Stream(context.Context) (*yamux.Stream, error) { return o.OpenStream() }

func TestHalfCloseThroughTheAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{}, func(c net.Conn) {
		n, _ := io.Copy(io.Discard, c)
		fmt.Fprintf(c, "got %d", n)
	})
	w.throughAgent()
	conn, r, status := w.connect("good.test:{P}")
	first := hello("good.test")
	_, _ = conn.Write(first)
	for range 256 { // more than any window
		_, err := conn.Write(data(string(make([]byte, 16<<10))))
		testbed.Must(t, err)
	}
	_ = conn.CloseWrite()
	got, err := io.ReadAll(r)
	if want := fmt.Sprintf("got %d", len(first)+256*len(data(string(make([]byte, 16<<10))))); status != http.StatusOK || string(got) != want || err != nil {
		t.Errorf("%d, %q, %v; want %q", status, got, err, want)
	}
	if c := w.wait(1)[0]; c.Verdict != egressproxy.Allowed || c.Received != int64(len(got)) {
		t.Errorf("%+v", c)
	}
}

// What ends a link unblocks both sides of it, also where the client neither reads nor closes.
func TestLimitsThroughTheAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, egressproxy.Limits{}, func(c net.Conn) {
		for {
			if _, err := c.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	w.throughAgent()
	conn, _, _ := w.connect("good.test:{P}")
	_, _ = conn.Write(hello("good.test"))
	plain := w.dial()
	_, _ = io.WriteString(plain, w.fill("GET http://good.test:{P}/ HTTP/1.1\r\nHost: x\r\n\r\n"))
	w.until(func() bool { return w.host.conns.Load() == 2 && w.proxy.Used() > 1<<20 })
	w.proxy.SetRules(egressproxy.Rules{})
	for _, c := range w.wait(2) {
		if c.Verdict != egressproxy.Denied && c.Verdict != egressproxy.Failed { // the host answers the plain request with nonsense
			t.Errorf("%+v", c)
		}
	}
}

// BenchmarkDownload compares a download of 100 MiB through the proxy, and through agent and proxy, with a direct one. Host, worker, agent
// and client share this machine's cores, so what has no limit measures the processor; a host at 1 Gbit/s measures the way.
func BenchmarkDownload(b *testing.B) {
	const size = 100 << 20
	w := newWorld(b, egressproxy.Limits{Bytes: 1 << 50, ConnectsPerMinute: 1 << 30}, answer)
	piece := make([]byte, 1<<20)
	content := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		start := time.Now()
		for i := range size / len(piece) {
			if r.URL.Path == "/gigabit" {
				time.Sleep(time.Until(start.Add(time.Duration(i*len(piece)) * 8 * time.Nanosecond)))
			}
			_, _ = rw.Write(piece)
		}
	})
	for _, kind := range []string{"https", "http", "https at 1 Gbit/s"} {
		base, roots := w.site(strings.HasPrefix(kind, "https"), content)
		if strings.Contains(kind, "Gbit") {
			base += "/gigabit"
		}
		w.serve(w.proxy)
		proxied := w.client(roots)
		w.throughAgent()
		sandboxed := w.client(roots)
		direct := w.client(roots)
		tr, _ := direct.Transport.(*http.Transport)
		tr.Proxy = nil
		tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			_, port, _ := net.SplitHostPort(addr)
			return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(publicIP, port))
		}
		for _, way := range []struct {
			name   string
			client *http.Client
		}{{"direct", direct}, {"proxy", proxied}, {"agent", sandboxed}} {
			b.Run(kind+"/"+way.name, func(b *testing.B) {
				b.SetBytes(size)
				for b.Loop() {
					res, err := way.client.Get(base)
					testbed.Must(b, err)
					n, err := io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
					if n != size || err != nil {
						b.Fatal(n, err)
					}
				}
			})
		}
	}
}

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
	_, err := local.Write(hello("good.test"))
	testbed.Must(t, err)
	header := make([]byte, 5)
	_, err = io.ReadFull(local, header)
	testbed.Must(t, err)
	rest := make([]byte, int(header[3])<<8+int(header[4]))
	_, err = io.ReadFull(local, rest)
	testbed.Must(t, err)
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
	testbed.Must(t, err)
	body, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if string(body) != "retried" {
		t.Errorf("%q", body)
	}
}

package egressproxy_test

import (
	"context"
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
)

// throughAgent lets the test reach the proxy as programs in a sandbox do: by the agent's listener and a stream of the worker's session.
func (w *world) throughAgent() {
	w.t.Helper()
	l, err := net.Listen("tcp", proxyIP+":0")
	if err != nil {
		w.t.Fatal(err)
	}
	remote, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	local, err := l.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	_ = l.Close()
	worker, err := client.New(local, client.Options{Egress: w.proxy, Proxy: true})
	if err != nil {
		w.t.Fatal(err)
	}
	config := yamux.DefaultConfig()
	config.MaxStreamWindowSize = 1 << 20 // as the agent has it
	config.LogOutput = io.Discard
	session, err := yamux.Server(agent.Joined(remote), config)
	if err != nil {
		w.t.Fatal(err)
	}
	life, end := context.WithCancel(context.Background())
	g, err := transport.ListenEgress(life, transport.EgressConfig{Addr: proxyIP + ":0", Workers: oneWorker{session}, Proxy: true})
	if err != nil {
		w.t.Fatal(err)
	}
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
		if _, err := conn.Write(data(string(make([]byte, 16<<10)))); err != nil {
			t.Fatal(err)
		}
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
					if err != nil {
						b.Fatal(err)
					}
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

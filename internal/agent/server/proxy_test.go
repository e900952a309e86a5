package server_test

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/server"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// tunnel opens a connection through the agent's proxy, as a program in the sandbox does.
func tunnel(t *testing.T, a *agenttest.Agent) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", a.Server.EgressAddr())
	testbed.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	testbed.Must(t, conn.SetDeadline(time.Now().Add(2*time.Minute)))
	_, err = io.WriteString(conn, "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
	testbed.Must(t, err)
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil)
	testbed.Must(t, err)
	_ = res.Body.Close()
	testbed.Require(t, res.StatusCode == http.StatusOK, "CONNECT: %s", res.Status)
	return conn, r
}

// hijack takes over a connection as the worker's proxy does.
func hijack(t *testing.T, w http.ResponseWriter) net.Conn {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		t.Error(err)
		return nil
	}
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
	n := buffered.Reader.Buffered()
	testbed.Check(t, n <= 0, "%d bytes came before the answer", n)
	return conn
}

// A connection carries any amount in both directions, also when its worker is slow: then the program in the sandbox waits.
func TestAProxiedConnectionCarriesAnyAmount(t *testing.T) {
	t.Parallel()
	const size = 20 << 20
	read := make(chan struct{})
	sums := make(chan [32]byte, 1)
	a := agenttest.StartProxied(t, "/usr/bin:/bin", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Host != "example.com:443" {
			http.Error(w, "wrong "+r.Method+" "+r.Host, http.StatusBadRequest)
			return
		}
		conn := hijack(t, w)
		defer func() { _ = conn.Close() }()
		<-read
		sum := sha256.New()
		_, _ = io.Copy(io.MultiWriter(sum, conn), conn) // until the program ends its direction
		sums <- [32]byte(sum.Sum(nil))
	}), nil)
	conn, r := tunnel(t, a)
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i * i >> 3)
	}
	sent, sentAll := make(chan int, size), make(chan struct{})
	want := sha256.New()
	go func() {
		defer close(sentAll)
		for range size / len(block) {
			_, _ = want.Write(block)
			n, err := conn.Write(block)
			if err != nil {
				t.Error(err)
				return
			}
			sent <- n
		}
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	ahead := 0
	for quiet := false; !quiet; { // nobody reads at the other end
		select {
		case n := <-sent:
			ahead += n
		case <-time.After(300 * time.Millisecond):
			quiet = true
		}
	}
	testbed.Check(t, ahead <= 16<<20, "%d bytes were taken from the program before anybody read them", ahead)
	close(read)
	back := sha256.New()
	n, err := io.Copy(back, r)
	testbed.Check(t, err == nil && n == size, "%d bytes came back, %v", n, err)
	<-sentAll
	sum := <-sums
	testbed.Check(t, string(sum[:]) == string(want.Sum(nil)) && string(back.Sum(nil)) == string(want.Sum(nil)), "the bytes are not the same")
	_, err = a.Info(t.Context())
	testbed.Must(t, err)
}

// A worker that closes a connection in the middle of an upload ends it for the program, and nothing else.
func TestAProxiedUploadThatIsRefusedEnds(t *testing.T) {
	t.Parallel()
	a := agenttest.StartProxied(t, "/usr/bin:/bin", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _ = hijack(t, w).Close() }), nil)
	conn, r := tunnel(t, a)
	_, err := r.ReadByte()
	testbed.Check(t, err == io.EOF, "read: %v", err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for { // it ends although nobody takes the bytes
			if _, err := conn.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the program still sends")
	}
	_, err = a.Info(t.Context())
	testbed.Must(t, err)
}

func TestAProxyTakesBodiesAndTheIndexDoesNot(t *testing.T) {
	t.Parallel()
	a := agenttest.StartProxied(t, "/usr/bin:/bin", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %d", r.URL, len(body))
	}), nil)
	for target, want := range map[string]string{"http://example.com/x": "http://example.com/x 100000", "/pypi/simple/": "The package index does not accept requests with a body.\n"} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", a.Server.EgressAddr())
		testbed.Must(t, err)
		testbed.Must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		go func() {
			_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: example.com\r\nContent-Length: 100000\r\n\r\n%s", target, strings.Repeat("x", 100_000))
		}()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		testbed.Must(t, err)
		if got, _ := io.ReadAll(res.Body); string(got) != want {
			t.Errorf("%s: %s %q", target, res.Status, got)
		}
		_ = res.Body.Close()
		_ = conn.Close()
	}
}

func TestProxiedConnectionsOverTheLimitAreServedLater(t *testing.T) {
	t.Parallel()
	limitOfConnections(t, agent.MaxProxyStreams, func(t *testing.T, proxy http.HandlerFunc) *agenttest.Agent {
		return agenttest.StartProxied(t, "/usr/bin:/bin", proxy, nil)
	})
}

// Programs learn of the proxy by their environment, unless the sandbox's own says otherwise.
func TestTheEnvironmentNamesTheProxy(t *testing.T) {
	t.Parallel()
	const show = `echo "$HTTP_PROXY|$http_proxy|$HTTPS_PROXY|$https_proxy|$NO_PROXY|$no_proxy|$ALL_PROXY|$NODE_USE_ENV_PROXY"`
	const direct = "localhost,127.0.0.1,::1"
	for name, c := range map[string]struct {
		own  []string
		want func(proxy string) string
	}{
		"Plain": {nil, func(p string) string { return strings.Join([]string{p, p, p, p, direct, direct, "", "1"}, "|") }},
		"Own": {
			[]string{"https_proxy=http://mine:1", "NO_PROXY=*", "NODE_USE_ENV_PROXY=0"},
			func(p string) string { return strings.Join([]string{p, p, "", "http://mine:1", "*", "", "", "0"}, "|") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := agenttest.StartProxied(t, "/usr/bin:/bin", http.NotFoundHandler(), func(cfg *server.Config) { cfg.Env = append(cfg.Env, c.own...) })
			ran := agenttest.Run(t, a.Client, agenttest.Commands(show))
			want := c.want("http://"+a.Server.EgressAddr()) + "\n"
			testbed.Check(t, ran.Stdout == want, "%q\nwant %q", ran.Stdout, want)
		})
	}
	indexOnly := agenttest.StartIndexed(t, "/usr/bin:/bin", http.NotFoundHandler(), nil)
	ran := agenttest.Run(t, indexOnly.Client, agenttest.Commands(show))
	testbed.Check(t, ran.Stdout == "|||||||\n", "without a proxy: %q", ran.Stdout)
}

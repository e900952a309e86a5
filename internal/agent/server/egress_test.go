package server_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/server"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// indexed starts an agent whose index is the test's handler.
func indexed(t *testing.T, index http.HandlerFunc) *agenttest.Agent {
	t.Helper()
	return agenttest.StartIndexed(t, "/usr/bin:/bin", index, nil)
}

// get requests a path from the index as code in the sandbox does.
func get(ctx context.Context, a *agenttest.Agent, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.Server.EgressAddr()+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	return (&http.Client{Transport: &http.Transport{DisableCompression: true}}).Do(req)
}

func TestIndexCarriesLargeAnswersToManyAtOnceAndStaysResponsive(t *testing.T) {
	t.Parallel()
	const size, clients = 50 << 20, 20
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i * i >> 3)
	}
	whole := sha256.New()
	for range size / len(block) {
		_, _ = whole.Write(block)
	}
	a := indexed(t, func(w http.ResponseWriter, r *http.Request) {
		if r.RemoteAddr != "sandbox" || !strings.HasPrefix(r.Host, "127.0.0.1:") || r.URL.Path != "/pypi/files/big" {
			http.Error(w, "wrong "+r.RemoteAddr+" "+r.Host+" "+r.URL.Path, http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(size))
		for range size / len(block) {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	began := time.Now()
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			res, err := get(ctx, a, "/pypi/files/big")
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = res.Body.Close() }()
			sum := sha256.New()
			if n, err := io.Copy(sum, res.Body); err != nil || n != size || string(sum.Sum(nil)) != string(whole.Sum(nil)) || res.StatusCode != http.StatusOK {
				t.Errorf("%s: %d bytes, %v", res.Status, n, err)
			}
		})
	}
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	for asked := 0; ; asked++ {
		select {
		case <-done:
			t.Logf("%d MiB in %v beside %d calls", clients*size>>20, time.Since(began), asked)
			testbed.Check(t, asked >= 10, "only %d calls were answered meanwhile", asked) // some hundred are normal
			return
		default:
		}
		_, err := a.Info(ctx)
		testbed.Must(t, err)
	}
}

func TestIndexConnectionsOverTheLimitAreServedLater(t *testing.T) {
	t.Parallel()
	limitOfConnections(t, agent.MaxIndexStreams, indexed)
}

// limitOfConnections requests twice as much as may be served at once: half of it waits for the other half, and the session stays.
func limitOfConnections(t *testing.T, limit int, start func(*testing.T, http.HandlerFunc) *agenttest.Agent) {
	t.Helper()
	began, release := make(chan struct{}, 2*limit), make(chan struct{})
	a := start(t, func(w http.ResponseWriter, _ *http.Request) {
		began <- struct{}{}
		<-release
		_, _ = io.WriteString(w, "in")
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	answers := make(chan error, 2*limit)
	for range 2 * limit {
		go func() {
			res, err := get(ctx, a, "/x")
			if err == nil {
				_, err = io.ReadAll(res.Body)
				_ = res.Body.Close()
			}
			answers <- err
		}()
	}
	for range limit {
		<-began
	}
	close(release)
	for range 2 * limit {
		testbed.Must(t, <-answers)
	}
	_, err := a.Info(ctx)
	testbed.Must(t, err)
}

func TestIndexTakesNoBodyAndKeepsTheSession(t *testing.T) {
	t.Parallel()
	a := indexed(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "in") })
	for name, sent := range map[string]string{
		"short":   "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
		"chunked": "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"long":    "PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n" + strings.Repeat("x", 9_000_000),
		"garbage": strings.Repeat("\x00\xff", 1<<20),
		"headers": "GET /x HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("y", 20<<10) + "\r\n\r\n",
		"nothing": "",
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", a.Server.EgressAddr())
			testbed.Must(t, err)
			defer func() { _ = conn.Close() }()
			testbed.Must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
			go func() {
				_, _ = io.WriteString(conn, sent)
				if tcp, ok := conn.(*net.TCPConn); ok && name == "nothing" {
					_ = tcp.CloseWrite()
				}
			}()
			raw, _ := io.ReadAll(bufio.NewReader(conn)) // a reset also counts as the end
			testbed.Check(t, !strings.Contains(string(raw), "200 OK"), "answer %q", raw)
			testbed.Check(t, name != "short" || strings.HasPrefix(string(raw), "HTTP/1.1 413"), "answer %q", raw)
			_, err = a.Info(t.Context())
			testbed.Must(t, err)
		})
	}
	res, err := get(t.Context(), a, "/x")
	testbed.Must(t, err)
	raw, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	testbed.Check(t, err == nil && string(raw) == "in", "afterwards: %q, %v", raw, err)
}

func TestAClientThatLeavesEndsItsRequest(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	a := indexed(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	res, err := get(ctx, a, "/x")
	testbed.Must(t, err)
	cancel()
	_ = res.Body.Close()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the request did not end")
	}
}

func TestAConnectionWaitsForAWorker(t *testing.T) {
	t.Parallel()
	a := indexed(t, func(http.ResponseWriter, *http.Request) {})
	testbed.Must(t, a.Close()) // the worker disconnects
	waitForSessions(t, a, 0)
	answer := make(chan string, 1)
	go func() {
		res, err := get(t.Context(), a, "/x")
		if err != nil {
			answer <- err.Error()
			return
		}
		raw, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		answer <- string(raw)
	}()
	for !a.Server.SessionAwaited() {
		select {
		case got := <-answer:
			t.Fatalf("answered %q without a worker", got)
		case <-time.After(time.Millisecond):
		}
	}
	for i, name := range []string{"older", "newest"} {
		agenttest.ConnectIndexed(t, a.Server, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
		waitForSessions(t, a, i+1) // so that the agent sees them in this order
	}
	got := <-answer
	testbed.Require(t, got == "older" || got == "newest", "answer %q", got)
	res, err := get(t.Context(), a, "/x")
	testbed.Must(t, err)
	raw, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	testbed.Check(t, string(raw) == "newest", "%q answers", raw)
}

// waitForSessions waits until the agent has this many sessions with workers.
func waitForSessions(t *testing.T, a *agenttest.Agent, n int) {
	t.Helper()
	testbed.Until(t, fmt.Sprintf("the agent has %d sessions", n), func() bool { return a.Server.OpenSessions() == n })
}

func TestWithoutAnIndexNobodyListens(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	testbed.Diff(t, "address", "", a.Server.EgressAddr())
	ran := agenttest.Run(t, a.Client, agenttest.Commands("env"))
	if strings.Contains(ran.Stdout, "PIP_INDEX_URL") || !strings.Contains(ran.Stdout, "PYTHONPATH="+a.Home+"/.packages\n") {
		t.Errorf("environment:\n%s", ran.Stdout)
	}
}

func TestTheSandboxsOwnEnvironmentWins(t *testing.T) {
	t.Parallel()
	a := agenttest.StartIndexed(t, "/usr/bin:/bin", http.NotFoundHandler(), func(c *server.Config) {
		c.Env = append(c.Env, "PIP_INDEX_URL=mine", "PYTHONPATH=/theirs")
	})
	ran := agenttest.Run(t, a.Client, agenttest.Commands(`echo "$PIP_INDEX_URL $UV_DEFAULT_INDEX $PYTHONPATH $PIP_TARGET $PATH $PIP_NO_COLOR $PIP_PROGRESS_BAR"`))
	dir := a.Home + "/.packages"
	want := fmt.Sprintf("mine http://%s/pypi/simple/ %s:/theirs %s %s/bin:%s/.node/node_modules/.bin:/usr/bin:/bin 1 off\n", a.Server.EgressAddr(), dir, dir, dir, a.Home)
	testbed.Check(t, ran.Stdout == want, "%q\nwant %q", ran.Stdout, want)
}

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
	testbed.Check(t, errors.Is(err, io.EOF), "read: %v", err)
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

package server_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/agent/transport"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// listen serves each connection to a port of this machine, which is the agent's.
func listen(t *testing.T, address string, serve func(*net.TCPConn)) int {
	t.Helper()
	l, err := net.Listen("tcp", address)
	testbed.Must(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer func() { _ = conn.Close() }()
				serve(conn.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return l.Addr().(*net.TCPAddr).Port
}

// listens reports whether a server listens at 127.0.0.1.
func listens(t *testing.T, port int) bool {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

func dial(t *testing.T, a *agenttest.Agent, port int) *client.PortConn {
	t.Helper()
	c, err := a.Live().DialPort(t.Context(), port)
	testbed.Must(t, err)
	t.Cleanup(func() {
		_ = c.Close()
		<-c.Over()
	})
	return c
}

// Bytes pass both ways at the same time; the server ends its direction only when the caller has ended its own.
func TestAPort(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<17)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "0.0.0.0:0"} {
		echo := func(conn *net.TCPConn) {
			_, _ = io.Copy(conn, conn)
			_, _ = io.WriteString(conn, "over")
		}
		port := listen(t, address, echo)
		for address == "[::1]:0" && listens(t, port) { // another test, at 127.0.0.1, which goes first
			port = listen(t, address, echo)
		}
		c := dial(t, a, port)
		go func() {
			_, _ = c.Write(sent)
			_ = c.CloseWrite()
		}()
		got, err := io.ReadAll(c)
		testbed.Check(t, err == nil && bytes.Equal(got, append(bytes.Clone(sent), "over"...)), "%s: %d bytes, %v", address, len(got), err)
	}
}

// The server ends its direction first, and still gets what the caller sends.
func TestAServerThatEndsFirst(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	got := make(chan string, 1)
	port := listen(t, "127.0.0.1:0", func(conn *net.TCPConn) {
		_, _ = io.WriteString(conn, "hello")
		_ = conn.CloseWrite()
		all, _ := io.ReadAll(conn)
		got <- string(all)
	})
	c := dial(t, a, port)
	if all, err := io.ReadAll(c); err != nil || string(all) != "hello" {
		t.Errorf("%q, %v", all, err)
	}
	_, err := io.WriteString(c, "and more")
	testbed.Must(t, err)
	testbed.Must(t, c.CloseWrite())
	testbed.Diff(t, "the server", "and more", <-got)
}

// Who breaks off is seen to have broken off at the other side.
func TestAConnectionThatIsBroken(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	port := listen(t, "127.0.0.1:0", func(conn *net.TCPConn) {
		_, _ = io.ReadFull(conn, make([]byte, 1))
		_ = conn.SetLinger(0)
	})
	c := dial(t, a, port)
	_, err := c.Write([]byte("x"))
	testbed.Must(t, err)
	if _, err := io.ReadAll(c); !errors.Is(err, transport.ErrReset) {
		t.Errorf("the server broke off: %v", err)
	}
	seen := make(chan error, 1)
	port = listen(t, "127.0.0.1:0", func(conn *net.TCPConn) {
		_, err := io.ReadAll(conn)
		seen <- err
	})
	dial(t, a, port).Reset()
	if err := <-seen; err == nil {
		t.Error("the caller broke off, and the server saw an end")
	}
	port = listen(t, "127.0.0.1:0", func(conn *net.TCPConn) {
		_, err := io.ReadAll(conn)
		seen <- err
	})
	gone := agenttest.Connect(t, a.Server)
	_, err = gone.Live().DialPort(t.Context(), port)
	testbed.Must(t, err)
	_ = gone.Close() // as a worker that is killed
	err = <-seen
	testbed.Check(t, err != nil, "the session broke, and the server saw an end")
}

func TestPortsThatAreRefused(t *testing.T) {
	t.Parallel()
	a := indexed(t, func(http.ResponseWriter, *http.Request) {})
	_, own, err := net.SplitHostPort(a.Server.EgressAddr())
	testbed.Must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	_, closed, err := net.SplitHostPort(l.Addr().String())
	testbed.Must(t, err)
	testbed.Must(t, l.Close())
	for port, want := range map[string]farm.Code{
		"0": farm.CodeInvalid, "65536": farm.CodeInvalid, "-1": farm.CodeInvalid, "080": farm.CodeInvalid, "+80": farm.CodeInvalid, "http": farm.CodeInvalid, "1e3": farm.CodeInvalid,
		"@sandfarm": farm.CodeInvalid, "%2Ftmp%2Fx.sock": farm.CodeInvalid, "127.0.0.1:80": farm.CodeInvalid, own: farm.CodeInvalid,
		closed: farm.CodeNotFound, "65535": farm.CodeNotFound,
	} {
		res, err := a.Relay(t.Context(), http.MethodPut, agent.PortsPath+"/"+port, nil, http.NoBody)
		testbed.Must(t, err)
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != agent.StatusOf(want) || !strings.Contains(string(body), `"code":"`+string(want)+`"`) {
			t.Errorf("%q: %s %s", port, res.Status, body)
		}
		testbed.Check(t, want != farm.CodeNotFound || strings.Contains(string(body), "Nothing listens on port "+port), "%q: %s", port, body)
	}
	_, err = a.Live().DialPort(t.Context(), 0)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeInvalid, "dial 0: %v", err)
}

func TestConnectionsToPortsAreCounted(t *testing.T) {
	t.Parallel()
	a := agenttest.StartPlain(t)
	port := listen(t, "127.0.0.1:0", func(conn *net.TCPConn) { _, _ = io.Copy(io.Discard, conn) })
	var last *client.PortConn
	for range agent.MaxPortStreams {
		last = dial(t, a, port)
	}
	_, err := a.Live().DialPort(t.Context(), port)
	testbed.Check(t, farm.CodeOf(err) == farm.CodeExhausted, "one more: %v", err)
	_ = last.Close()
	<-last.Over()
	dial(t, a, port)
}

// The list has what listens where it is reached, with the process, and not what is the agent's own.
func TestPortsAreListed(t *testing.T) {
	t.Parallel()
	a := indexed(t, func(http.ResponseWriter, *http.Request) {})
	four, six := listen(t, "127.0.0.1:0", func(*net.TCPConn) {}), listen(t, "[::]:0", func(*net.TCPConn) {})
	elsewhere := listen(t, "127.0.0.2:0", func(*net.TCPConn) {})
	list, err := a.Live().Ports(t.Context())
	testbed.Must(t, err)
	found := map[int]farm.Port{}
	for _, p := range list {
		found[p.Number] = p
	}
	p := found[four]
	testbed.Check(t, p.Address == "127.0.0.1" && p.PID == os.Getpid() && p.Command != "", "%+v", p)
	p = found[six]
	testbed.Check(t, p.Address == "::" && p.PID == os.Getpid(), "%+v", p)
	_, own, err := net.SplitHostPort(a.Server.EgressAddr())
	testbed.Must(t, err)
	hidden, err := strconv.Atoi(own)
	testbed.Must(t, err)
	testbed.Check(t, found[hidden].Number == 0 && found[elsewhere].Number == 0, "%+v, %+v", found[hidden], found[elsewhere])
}

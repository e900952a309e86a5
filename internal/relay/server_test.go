package relay_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/agent/transport"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/relay"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
	"github.com/sandfarm/sandfarm/worker/workertest"
)

func TestMain(m *testing.M) { workertest.Main(m) }

// node is a node with one sandbox, whose agent runs.
type node struct {
	t     *testing.T
	farm  *workertest.Farm
	box   *farm.Sandbox
	agent *agenttest.Agent
	uses  atomic.Int64
	path  *relay.Path

	mu     sync.Mutex
	last   string // the worker that connected to the agent last
	served map[string]*relay.Server
}

// serving is the worker that served the last request.
func (n *node) serving() *relay.Server {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.served[n.last]
}

func setup(t *testing.T) *node {
	t.Helper()
	f := workertest.New(t)
	ref := f.Ready()
	box, err := f.Store.Sandbox(t.Context(), ref)
	testbed.Must(t, err)
	n := &node{t: t, farm: f, box: box, agent: agenttest.StartPlain(t), served: map[string]*relay.Server{}}
	caller := relay.NewIdentity(relay.IdentityConfig{Source: f.Store, Role: relay.Caller})
	testbed.Must(t, caller.Refresh(t.Context()))
	n.path = relay.NewPath(caller, f.Store.Workers)
	t.Cleanup(n.path.Close)
	return n
}

// worker starts the listener of a worker and registers it.
func (n *node) worker(id string, change func(*relay.ServerConfig, *relay.ServerDeps)) *relay.Server {
	n.t.Helper()
	own := relay.NewIdentity(relay.IdentityConfig{Source: n.farm.Store, Role: relay.Worker, Name: id})
	testbed.Must(n.t, own.Refresh(n.t.Context()))
	agent := agenttest.Connect(n.t, n.agent.Server)
	cfg := relay.ServerConfig{Listen: "127.0.0.1:0", Connections: 8, Streams: 100, Tenant: 100}
	deps := relay.ServerDeps{
		Identity: own, Sandboxes: n.farm.Store, Node: func() string { return workertest.Node }, Log: slog.New(slog.DiscardHandler),
		Connect: func(context.Context, *farm.Sandbox) (*client.Client, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.last = id
			return agent, nil
		},
		DialPort: func(ctx context.Context, _ *farm.Sandbox, number uint16) (transport.PortServer, error) {
			n.mu.Lock()
			n.last = id
			n.mu.Unlock()
			return agent.Live().DialPort(ctx, int(number))
		},
		Used: func(context.Context, *farm.Sandbox) error { n.uses.Add(1); return nil },
	}
	if change != nil {
		change(&cfg, &deps)
	}
	s := relay.NewServer(cfg, deps)
	n.served[id] = s
	testbed.Must(n.t, s.Start(n.t.Context()))
	n.t.Cleanup(s.Stop)
	testbed.Must(n.t, n.farm.Store.Heartbeat(n.t.Context(), farm.Worker{ID: id, Node: workertest.Node, Live: s.Addr()}))
	return s
}

func (n *node) start(command string) farm.Process {
	n.t.Helper()
	p, err := n.path.Agent(n.box).StartProcess(n.t.Context(), farm.NewID(farm.ProcessPrefix), farm.ProcessSpec{Command: command, Stdin: true, MaxProcesses: 10, MaxReaders: 100})
	testbed.Must(n.t, err)
	return p
}

func admit(int) error { return nil }

// read reads output from a piece on until it holds a text.
func read(t *testing.T, a relay.Agent, id string, from uint64, want string) (text string, next uint64) {
	t.Helper()
	out, err := a.ProcessOutput(t.Context(), id, "reader", from)
	testbed.Must(t, err)
	defer out.Close()
	for next = from; !strings.Contains(text, want); {
		piece, err := out.Next(admit)
		testbed.Must(t, err)
		text, next = text+string(piece.Data), piece.Seq+1
	}
	return text, next
}

// Its process does not notice that the worker ends, and a reader goes on through another one where it stopped.
func TestAnotherWorkerGoesOn(t *testing.T) {
	t.Parallel()
	n := setup(t)
	n.worker("wrk_1", nil)
	n.worker("wrk_2", nil)
	a := n.path.Agent(n.box)
	p := n.start("while read line; do echo got $line; done")
	write := func(text string) {
		t.Helper()
		_, err := a.WriteProcess(t.Context(), p.ID, strings.NewReader(text), false)
		testbed.Must(t, err)
	}
	write("one\n")
	out, err := a.ProcessOutput(t.Context(), p.ID, "reader", 0)
	testbed.Must(t, err)
	piece, err := out.Next(admit)
	if err != nil || string(piece.Data) != "got one\n" {
		t.Fatalf("%q, %v", piece.Data, err)
	}
	next := piece.Seq + 1
	n.serving().Stop()
	if piece, err = out.Next(admit); err == nil {
		t.Fatalf("the stream of the worker that ended goes on: %+v", piece)
	}
	write("two\n")
	if text, _ := read(t, a, p.ID, next, "got two\n"); text != "got two\n" {
		t.Errorf("after the worker ended: %q", text)
	}
	if got, err := a.Process(t.Context(), p.ID); err != nil || got.PID != p.PID || got.State != farm.ProcessRunning {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestTheFence(t *testing.T) {
	t.Parallel()
	n := setup(t)
	n.worker("wrk_1", nil)
	code := func(change func(*farm.Sandbox)) farm.Code {
		box := *n.box
		change(&box)
		_, err := n.path.Agent(&box).Processes(t.Context())
		return farm.CodeOf(err)
	}
	for name, c := range map[string]struct {
		change func(*farm.Sandbox)
		want   farm.Code
	}{
		"As it is":           {func(*farm.Sandbox) {}, ""},
		"Earlier generation": {func(b *farm.Sandbox) { b.Generation-- }, farm.CodeConflict},
		"Later generation":   {func(b *farm.Sandbox) { b.Generation++ }, farm.CodeConflict},
		"Another tenant's":   {func(b *farm.Sandbox) { b.Tenant = "rival" }, farm.CodeNotFound},
		"Unknown":            {func(b *farm.Sandbox) { b.ID = farm.NewID(farm.SandboxPrefix) }, farm.CodeNotFound},
		"Another node":       {func(b *farm.Sandbox) { b.Node = "n2" }, farm.CodeUnavailable},
	} {
		testbed.Diff(t, name, c.want, code(c.change))
	}
	_, err := n.farm.Store.MoveSandbox(t.Context(), store.Move{Ref: n.box.Ref(), To: farm.SandboxClosing})
	testbed.Must(t, err)
	testbed.Diff(t, "closing", farm.CodeConflict, code(func(*farm.Sandbox) {}))
}

func TestLimitsOfStreams(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*relay.ServerConfig, *relay.ServerDeps)
		limit  int
	}{
		"Tenant": {func(c *relay.ServerConfig, _ *relay.ServerDeps) { c.Tenant = 3 }, 3},
		"Worker": {func(c *relay.ServerConfig, _ *relay.ServerDeps) { c.Streams = 4 }, 4},
		"Memory": {func(_ *relay.ServerConfig, d *relay.ServerDeps) { d.Memory = budget.New(1) }, 28}, // an eighth of 14 MiB, 64 KiB each
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := setup(t)
			n.worker("wrk_1", func(cfg *relay.ServerConfig, d *relay.ServerDeps) {
				cfg.Streams, cfg.Tenant = 1000, 1000
				c.change(cfg, d)
			})
			a := n.path.Agent(n.box)
			p, err := a.StartProcess(t.Context(), farm.NewID(farm.ProcessPrefix), farm.ProcessSpec{Command: "sleep 100", MaxProcesses: 1, MaxReaders: 1000})
			testbed.Must(t, err)
			var open []*relay.Output
			defer func() {
				for _, out := range open {
					out.Close()
				}
			}()
			for range c.limit {
				out, err := a.ProcessOutput(t.Context(), p.ID, farm.NewID("r"), 0)
				if err != nil {
					t.Fatalf("stream %d: %v", len(open)+1, err)
				}
				open = append(open, out)
			}
			if _, err := a.Processes(t.Context()); farm.CodeOf(err) != farm.CodeExhausted {
				t.Errorf("one more: %v", err)
			}
			open[0].Close()
			testbed.Until(t, "there is room again", func() bool {
				_, err := a.Processes(t.Context())
				return err == nil
			})
		})
	}
}

// Bytes of a process are use of the sandbox; to look at it is not, and an idle stream is not.
func TestUseIsNoted(t *testing.T) {
	t.Parallel()
	n := setup(t)
	idle := 4 // so use is noted every second
	_, err := n.farm.Store.UpdateSandbox(t.Context(), n.box.Ref(), store.SandboxPatch{IdleSeconds: &idle})
	testbed.Must(t, err)
	n.worker("wrk_1", nil)
	a := n.path.Agent(n.box)
	if _, err := a.Processes(t.Context()); err != nil || n.uses.Load() != 0 {
		t.Errorf("a list: %d uses, %v", n.uses.Load(), err)
	}
	p := n.start("read x; echo $x; sleep 100")
	testbed.Until(t, "the start is noted", func() bool { return n.uses.Load() == 1 })
	_, err = a.WriteProcess(t.Context(), p.ID, strings.NewReader("hello\n"), false)
	testbed.Must(t, err)
	read(t, a, p.ID, 0, "hello\n")
	testbed.Until(t, "bytes are noted", func() bool { return n.uses.Load() >= 2 })
	out, err := a.ProcessOutput(t.Context(), p.ID, "idle", 2)
	testbed.Must(t, err)
	defer out.Close()
	before := int64(-1)
	testbed.Until(t, "an idle stream is no use", func() bool { // nothing is noted for three times as long
		timer := time.NewTimer(3 * time.Second)
		defer timer.Stop()
		<-timer.C
		quiet := n.uses.Load() == before
		before = n.uses.Load()
		return quiet
	})
}

// A body that nobody has read is sent to the next worker; one that a worker has begun to read is not.
func TestABodyIsSentOnce(t *testing.T) {
	t.Parallel()
	n := setup(t)
	gone := n.worker("wrk_1", nil)
	n.worker("wrk_2", nil)
	_, err := n.path.Agent(n.box).Processes(t.Context()) // the list of workers is known
	testbed.Must(t, err)
	gone.Stop()
	p := n.start("cat")
	for range 5 {
		if k, err := n.path.Agent(n.box).WriteProcess(t.Context(), p.ID, io.MultiReader(strings.NewReader("a"), strings.NewReader("b")), false); err != nil || k != 2 {
			t.Errorf("%d, %v", k, err)
		}
	}
	broken := errors.New("the caller left")
	if _, err := n.path.Agent(n.box).WriteProcess(t.Context(), p.ID, io.MultiReader(strings.NewReader("c"), failing{broken}), false); err == nil {
		t.Error("a body that broke off was taken")
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestOnlyTheLivePartOfAnAgentIsReached(t *testing.T) {
	t.Parallel()
	n := setup(t)
	n.worker("wrk_1", nil)
	for _, path := range []string{"/v1/info", "/v1/executions", "/v1/live/../info", "/v1/files?path=", "/"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://agent"+path, http.NoBody)
		testbed.Must(t, err)
		res, err := n.path.Sandbox(n.box).RoundTrip(req)
		testbed.Must(t, err)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
}

// echo is a server on a port of this machine, which is the agent's. It sends back what it gets, then a last word.
func echo(t *testing.T) int {
	t.Helper()
	return agenttest.Serve(t, func(conn io.ReadWriter) {
		_, _ = io.Copy(conn, conn)
		_, _ = io.WriteString(conn, "over")
	})
}

func (n *node) dial(port int) *relay.PortConn {
	n.t.Helper()
	c, err := n.path.Agent(n.box).DialPort(n.t.Context(), port)
	testbed.Must(n.t, err)
	n.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Bytes pass both ways through a worker, and each direction ends by itself.
func TestAPortOverTheLivePath(t *testing.T) {
	t.Parallel()
	n := setup(t)
	n.worker("wrk_1", nil)
	c := n.dial(echo(t))
	below := c.Conn.NetConn().(*relay.Below).Conn.(*net.TCPConn)
	buffer := testbed.ReceiveBuffer(t, below)
	testbed.Diff(t, "bytes that the kernel may keep at the API, which no tenant pays", 2*96<<10, buffer)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	go func() {
		_, _ = c.Write(sent)
		_ = c.CloseWrite()
	}()
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, append(bytes.Clone(sent), "over"...)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	testbed.Until(t, "its bytes are use", func() bool { return n.uses.Load() > 0 })
}

// A connection whose worker ends is broken, not ended, and the next one goes over another worker. So does a dial that finds its worker gone.
func TestAPortWhenTheWorkerEnds(t *testing.T) {
	t.Parallel()
	n := setup(t)
	n.worker("wrk_1", nil)
	n.worker("wrk_2", nil)
	port := echo(t)
	c := n.dial(port)
	n.serving().Stop()
	if _, err := io.ReadAll(c); err == nil {
		t.Error("the connection looks complete")
	}
	for range 3 {
		c = n.dial(port)
		_, err := io.WriteString(c, "again")
		testbed.Must(t, err)
		got := make([]byte, 5)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != "again" {
			t.Errorf("%q, %v", got, err)
		}
	}
	n.serving().Stop()
	if _, err := n.path.Agent(n.box).DialPort(t.Context(), port); farm.CodeOf(err) != farm.CodeUnavailable {
		t.Errorf("no worker is left: %v", err)
	}
}

// The header of a worker's answer is bounded: package http reads one of any length.
func TestAnAnswerWithoutAnEnd(t *testing.T) {
	t.Parallel()
	n := setup(t)
	own := relay.NewIdentity(relay.IdentityConfig{Source: n.farm.Store, Role: relay.Worker, Name: "wrk_1"})
	testbed.Must(t, own.Refresh(t.Context()))
	listener, err := tls.Listen("tcp", "127.0.0.1:0", own.ServerTLS())
	testbed.Must(t, err)
	sent := make(chan int, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		total, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n")
		for n := 0; err == nil && total < 64<<20; total += n {
			n, err = io.WriteString(conn, strings.Repeat("a:\r\n", 1<<12))
		}
		_ = conn.Close()
		sent <- total
	}()
	t.Cleanup(func() { _ = listener.Close() })
	testbed.Must(t, n.farm.Store.Heartbeat(t.Context(), farm.Worker{ID: "wrk_1", Node: workertest.Node, Live: listener.Addr().String()}))
	if _, err := n.path.Agent(n.box).DialPort(t.Context(), 1); farm.CodeOf(err) != farm.CodeUnavailable {
		t.Errorf("%v", err)
	}
	if total := <-sent; total > 32<<20 { // what the sockets hold
		t.Errorf("%d bytes were read of the header", total)
	}
}

func TestADialThatIsCanceled(t *testing.T) {
	t.Parallel()
	n := setup(t)
	n.worker("wrk_1", nil)
	ctx, cancel := context.WithCancel(t.Context())
	port := echo(t)
	c, err := n.path.Agent(n.box).DialPort(ctx, port)
	testbed.Must(t, err)
	cancel() // it bounds the dial only
	_, err = io.WriteString(c, "x")
	testbed.Must(t, err)
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	testbed.Must(t, c.Close())
	if _, err := n.path.Agent(n.box).DialPort(ctx, port); !errors.Is(err, context.Canceled) && farm.CodeOf(err) != farm.CodeUnavailable {
		t.Errorf("%v", err)
	}
}

// A connection to a port is a stream: it counts, and its place is free when it is closed.
func TestPortsCountAsStreams(t *testing.T) {
	t.Parallel()
	n := setup(t)
	memory := budget.New(64 << 20)
	n.worker("wrk_1", func(c *relay.ServerConfig, d *relay.ServerDeps) { c.Tenant, d.Memory = 2, memory })
	port := echo(t)
	first := n.dial(port)
	n.dial(port)
	if _, err := n.path.Agent(n.box).DialPort(t.Context(), port); farm.CodeOf(err) != farm.CodeExhausted {
		t.Errorf("a third: %v", err)
	}
	if memory.Stats().Used == 0 {
		t.Error("open streams are charged nothing")
	}
	testbed.Must(t, first.Close())
	testbed.Until(t, "there is room again", func() bool {
		c, err := n.path.Agent(n.box).DialPort(t.Context(), port)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// Callers that do not read their answers hold up no other call: calls of all tenants share connections.
func TestUnreadAnswersDelayNoOther(t *testing.T) {
	t.Parallel()
	const processes, each = 3, 80 // of the 250 streams of a connection
	n := setup(t)
	n.worker("wrk_1", func(c *relay.ServerConfig, _ *relay.ServerDeps) { c.Streams, c.Tenant = 300, 300 })
	a := n.path.Agent(n.box)
	for range processes {
		p := n.start("head -c 500000 /dev/zero; echo done; exec sleep 1000")
		read(t, a, p.ID, 0, "done")
		for i := range each {
			out, err := a.ProcessOutput(t.Context(), p.ID, fmt.Sprint("unread", i), 0)
			testbed.Must(t, err)
			defer out.Close()
			_, err = out.Next(admit) // more is on its way
			testbed.Must(t, err)
		}
	}
	_, err := a.Processes(t.Context())
	testbed.Must(t, err)
}

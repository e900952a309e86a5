package node

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/agent/transport"
	"github.com/sandfarm/sandfarm/internal/egressproxy"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// connections holds one stream for each sandbox that this worker talks to. A stream that breaks is forgotten, and dialled
// again on its next use.
type connections struct {
	mu     sync.Mutex
	open   map[string]*connection
	closed bool
	wg     sync.WaitGroup

	onBreak, onDialError func() // nil: not counted
}

// connection is a stream that is open or being opened. The callers of a sandbox share it, so no caller's context ends it.
type connection struct {
	stop   context.CancelFunc
	ready  chan struct{} // closed when client or err is set
	client *client.Client
	ports  PortDialer // nil: through the agent
	err    error
	tenant atomic.Pointer[string] // of the sandbox; nil: a member of the warm pool, which none has yet
}

// dialFunc connects to the agent of a sandbox. tenant is charged for what the agent opens on the connection.
type dialFunc func(ctx context.Context, tenant func() string) (*client.Client, PortDialer, error)

// belongs says whose sandbox it is. A connection to a member of the warm pool goes on when a sandbox has claimed the member.
func (c *connection) belongs(tenant string) {
	if tenant != "" {
		c.tenant.Store(&tenant)
	}
}

// charged is the tenant that is charged for the connection; "": none yet.
func (c *connection) charged() string {
	if tenant := c.tenant.Load(); tenant != nil {
		return *tenant
	}
	return ""
}

// Connect returns the agent of a sandbox. All callers share one connection, which lives until Disconnect.
func (n *Node) Connect(ctx context.Context, s *farm.Sandbox) (*client.Client, error) {
	c, err := n.connection(ctx, s)
	if err != nil {
		return nil, err
	}
	return c.client, nil
}

// connection returns the open connection to a sandbox.
func (n *Node) connection(ctx context.Context, s *farm.Sandbox) (*connection, error) {
	c, err := n.connections.get(context.WithoutCancel(ctx), s.ID, s.Tenant, func(ctx context.Context, tenant func() string) (*client.Client, PortDialer, error) {
		return n.dial(ctx, s, tenant)
	})
	if err != nil {
		return nil, err
	}
	select {
	case <-c.ready:
		return c, c.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Disconnect closes the connection to a sandbox, if there is one.
func (n *Node) Disconnect(sandboxID string) { n.connections.drop(sandboxID) }

// Connected reports whether a connection to a sandbox is open or being opened.
func (n *Node) Connected(sandboxID string) bool { return n.connections.has(sandboxID) }

// UseConnection makes connect's client the connection to a sandbox. It is for tests, whose agents run in no container.
func (n *Node) UseConnection(ctx context.Context, sandboxID string, connect func() *client.Client) error {
	c, err := n.connections.get(context.WithoutCancel(ctx), sandboxID, "", func(context.Context, func() string) (*client.Client, PortDialer, error) { return connect(), nil, nil })
	if err != nil {
		return err
	}
	<-c.ready
	return c.err
}

// dial connects to the agent of a sandbox, and to its ports if the engine can do that.
func (n *Node) dial(ctx context.Context, s *farm.Sandbox, tenant func() string) (*client.Client, PortDialer, error) {
	conn, err := n.engine.DialSocket(ctx, n.Container(s), agent.SocketPath, agent.DialCommand(), agent.DialUser)
	if err != nil {
		return nil, nil, fmt.Errorf("dial agent: %w", err)
	}
	o, end := n.exit(ctx, s, tenant)
	c, err := client.New(conn, o)
	if err != nil {
		end()
		_ = conn.Close()
		return nil, nil, farm.Wrap(err, farm.CodeUnavailable, "The sandbox's agent does not answer")
	}
	n.connections.wg.Go(func() {
		<-c.Done()
		end()
	})
	ports, _ := conn.(PortDialer)
	return c, ports, nil
}

// get returns the connection to a sandbox of a tenant ("": not known); where none is alive, dial opens it.
func (cs *connections) get(ctx context.Context, sandboxID, tenant string, dial dialFunc) (*connection, error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closed {
		return nil, ErrStopping
	}
	if c, ok := cs.open[sandboxID]; ok && !c.over() {
		c.belongs(tenant)
		return c, nil
	}
	ctx, stop := context.WithCancel(ctx)
	c := &connection{stop: stop, ready: make(chan struct{})}
	c.belongs(tenant)
	cs.open[sandboxID] = c
	cs.wg.Go(func() {
		defer stop()
		c.client, c.ports, c.err = dial(ctx, c.charged)
		close(c.ready)
		if c.err == nil {
			select {
			case <-c.client.Done():
				count(ctx, cs.onBreak)
			case <-ctx.Done():
			}
			_ = c.client.Close()
		} else {
			count(ctx, cs.onDialError)
		}
		cs.forget(sandboxID, c)
	})
	return c, nil
}

// count calls f unless this worker closed the stream itself.
func count(ctx context.Context, f func()) {
	if f != nil && ctx.Err() == nil {
		f()
	}
}

// over reports whether a connection has failed or broken.
func (c *connection) over() bool {
	select {
	case <-c.ready:
	default:
		return false
	}
	if c.err != nil {
		return true
	}
	select {
	case <-c.client.Done():
		return true
	default:
		return false
	}
}

func (cs *connections) has(sandboxID string) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c, ok := cs.open[sandboxID]
	return ok && !c.over()
}

func (cs *connections) forget(sandboxID string, c *connection) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.open[sandboxID] == c {
		delete(cs.open, sandboxID)
	}
}

func (cs *connections) drop(sandboxID string) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c, ok := cs.open[sandboxID]; ok {
		c.stop()
		delete(cs.open, sandboxID)
	}
}

// closeAll closes every stream, waits for them, and refuses new ones.
func (cs *connections) closeAll() {
	cs.mu.Lock()
	cs.closed = true
	for id, c := range cs.open {
		c.stop()
		delete(cs.open, id)
	}
	cs.mu.Unlock()
	cs.wg.Wait()
}

func (cs *connections) count() int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return len(cs.open)
}

// Exit is the proxy of a sandbox of the network allowlist, for one connection to its agent.
type Exit interface {
	http.Handler
	Admit() (release func(), ok bool) // one more connection of the sandbox
	Close()
}

// way is what a sandbox can reach.
type way int

const (
	nothing     way = iota
	indexOnly       // the package indexes
	indexAndAll     // the package indexes, and hosts through a proxy
)

// wayOf is what a sandbox's agent and the worker agree on when its container is made and when the worker connects to it.
func (n *Node) wayOf(s *farm.Sandbox) way {
	switch {
	case s.Spec.Network == farm.NetworkAllowlist && n.deps.Exit != nil:
		return indexAndAll
	case s.Spec.Network == farm.NetworkPackages && n.deps.Index != nil:
		return indexOnly
	default:
		return nothing
	}
}

// exit answers the connections that a sandbox's agent opens, and charges them to a tenant. The caller calls end when the connection to the agent has
// ended.
func (n *Node) exit(ctx context.Context, s *farm.Sandbox, tenant func() string) (o client.Options, end func()) {
	switch n.wayOf(s) {
	case indexOnly:
		o = client.Options{Egress: n.index(tenant)}
		if n.deps.Admit != nil {
			o.Admit = func() (func(), bool) { return n.deps.Admit(tenant()) }
		}
		return o, func() {}
	case indexAndAll:
		proxy := n.deps.Exit(ctx, s)
		var index http.Handler
		if n.deps.Index != nil {
			index = n.index(tenant)
		}
		return client.Options{Egress: egressproxy.BesideIndex(index, proxy), Proxy: true, Admit: proxy.Admit}, proxy.Close
	default:
		return client.Options{}, func() {}
	}
}

// index serves the package indexes to the tenant of the time: a member of the warm pool has none before it is claimed.
func (n *Node) index(tenant func() string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.deps.Index(tenant()).ServeHTTP(w, r) })
}

// DialPort connects to a port of a sandbox's loopback: straight where the engine runs on this host, else through the agent. ctx bounds the dial. Not
// found: nothing listens there.
func (n *Node) DialPort(ctx context.Context, s *farm.Sandbox, number uint16) (transport.PortServer, error) {
	c, err := n.connection(ctx, s)
	if err != nil {
		return nil, err
	}
	switch {
	case c.ports == nil:
		return c.client.Live().DialPort(ctx, int(number))
	case n.wayOf(s) != nothing && number == farm.EgressPort:
		return nil, farm.ErrOwnPort(number)
	}
	return transport.DialPort(ctx, number, c.ports.DialTCP)
}

package client

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// callTimeout bounds calls that the agent answers immediately; it is long because a sandbox may be short of CPU.
	callTimeout = 30 * time.Second
	// kernelTimeout bounds the start of a kernel, which imports many modules; several may start at once.
	kernelTimeout = 3 * time.Minute
	// streamWindow allows enough data in flight on one stream for engines with a round trip of some milliseconds.
	streamWindow = 4 << 20
	// proxyWindow is the same in a session with a proxy: the least that yamux has.
	proxyWindow = 256 << 10
	// writeTimeout is how long a write may make no progress before the session counts as broken.
	writeTimeout = 30 * time.Second
)

// Options tune a client. The zero value is usable.
type Options struct {
	Logger *slog.Logger // nil: silent

	// Egress answers the connections that the agent opens, each one request. Requests have the remote address "sandbox"; the sandbox controls
	// everything else in them. Those in origin form, which are for the package index, come without a body. Nil: a stream that the agent
	// opens ends the session.
	Egress http.Handler

	// Proxy says that Egress is a proxy as well: requests in absolute form have bodies, and Egress may take over connections. The agent may then
	// open agent.MaxProxyStreams of them and send any amount, as fast as Egress reads. False: requests are small.
	Proxy bool
}

// Client talks to the agent of one sandbox. It is safe for concurrent use.
type Client struct {
	caller
	session *yamux.Session
	live    *http.Transport // for Relay
	once    sync.Once
	closed  error
}

// New creates a client on a stream to the agent. The client then owns the stream: Close closes it.
func New(conn io.ReadWriteCloser, o Options) (*Client, error) {
	config := yamux.DefaultConfig()
	config.MaxStreamWindowSize = streamWindow
	if o.Proxy { // it bounds what is in memory of each connection whose receiver is slow
		config.MaxStreamWindowSize = proxyWindow
	}
	config.ConnectionWriteTimeout = writeTimeout
	config.AcceptBacklog = acceptBacklog
	if o.Proxy { // yamux resets streams beyond it, and programs open many connections at once
		config.AcceptBacklog += agent.MaxProxyStreams
	}
	config.LogOutput = io.Discard
	session, err := yamux.Client(agent.Joined(agent.FewPings(conn)), config)
	if err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	c := &Client{session: session}
	go serveEgress(session, o)
	c.http = &http.Client{Transport: &http.Transport{
		DialContext:        func(context.Context, string, string) (net.Conn, error) { return session.Open() },
		DisableCompression: true,
		// The largest header is the description of a file: a path of 4 KiB, escaped.
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        time.Minute,
		WriteBufferSize:        64 << 10,
		ReadBufferSize:         64 << 10,
	}}
	c.live = &http.Transport{
		DialContext:        func(context.Context, string, string) (net.Conn, error) { return session.Open() },
		DisableCompression: true, MaxResponseHeaderBytes: 64 << 10, MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute,
	}
	return c, nil
}

// Done is closed when the session has ended, for whatever reason.
func (c *Client) Done() <-chan struct{} { return c.session.CloseChan() }

// Close ends the session and closes its stream. It is idempotent.
func (c *Client) Close() error {
	c.once.Do(func() {
		c.closed = c.session.Close()
		c.http.CloseIdleConnections()
		c.live.CloseIdleConnections()
	})
	return c.closed
}

func unavailable(err error, message string) error {
	return farm.Wrap(err, farm.CodeUnavailable, "%s", message)
}

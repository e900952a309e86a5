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

	"github.com/sandfarm/sandfarm/internal/farm"
)

const (
	// callTimeout bounds calls that the agent answers at once; it is long because a sandbox may be starved of CPU.
	callTimeout = 30 * time.Second
	// kernelTimeout bounds the start of a kernel, which imports much and may be one of several.
	kernelTimeout = 3 * time.Minute
	// streamWindow lets one stream hold enough in flight for engines that are some milliseconds away.
	streamWindow = 4 << 20
	// writeTimeout is how long the stream may take nothing before the session counts as broken.
	writeTimeout = 30 * time.Second
)

// Options tune a client. The zero value is good.
type Options struct {
	Logger *slog.Logger // nil: silent

	// Index answers the connections that the agent opens, each a request for a package index. Requests come without a body
	// and with the remote address "sandbox"; everything else in them is the sandbox's to choose. Nil: a stream that the agent
	// opens ends the session.
	Index http.Handler
}

// Client speaks to the agent of one sandbox. It is safe for concurrent use.
type Client struct {
	session *yamux.Session
	http    *http.Client
	once    sync.Once
	closed  error
}

// New makes a client of a stream to the agent. The client owns the stream from here on: Close closes it.
func New(conn io.ReadWriteCloser, o Options) (*Client, error) {
	config := yamux.DefaultConfig()
	config.MaxStreamWindowSize = streamWindow
	config.ConnectionWriteTimeout = writeTimeout
	config.AcceptBacklog = acceptBacklog
	config.LogOutput = io.Discard
	session, err := yamux.Client(conn, config)
	if err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	c := &Client{session: session}
	go serveIndex(session, o.Index)
	c.http = &http.Client{Transport: &http.Transport{
		DialContext:        func(context.Context, string, string) (net.Conn, error) { return session.Open() },
		DisableCompression: true,
		// The description of a file is the largest: a path of 4 KiB, escaped.
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        time.Minute,
		WriteBufferSize:        64 << 10,
		ReadBufferSize:         64 << 10,
	}}
	return c, nil
}

// Done is closed when the session has ended, for whatever reason.
func (c *Client) Done() <-chan struct{} { return c.session.CloseChan() }

// Close ends the session and closes the stream under it. It is idempotent.
func (c *Client) Close() error {
	c.once.Do(func() {
		c.closed = c.session.Close()
		c.http.CloseIdleConnections()
	})
	return c.closed
}

func unavailable(err error, message string) error {
	return farm.Wrap(err, farm.CodeUnavailable, "%s", message)
}

package relay

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/client"
	"github.com/sandfarm/sandfarm/internal/agent/transport"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
)

const (
	// headerTimeout bounds a handshake and the header of a request.
	headerTimeout = 5 * time.Second
	// serverIdle closes connections without streams. The API's end does so sooner.
	serverIdle = 2 * time.Minute
	// serverPing is after how long a connection to a process that is gone is asked for a sign, and how long that may take.
	serverPing = 15 * time.Second
	// writeTimeout ends a connection that takes no byte.
	writeTimeout = 30 * time.Second
	// connectionStreams is how many streams one connection has; the API opens another one for more.
	connectionStreams = 250
	// frameBytes is the longest frame of a request. The API has a buffer of that size for each open stream.
	frameBytes = 32 << 10
	// bodyWindow is what the API may send ahead on one stream, see answerWindow. It may send that much before it knows this setting.
	bodyWindow = 64 << 10
	// copyBytes is the buffer of one direction of a stream.
	copyBytes = 32 << 10
	// streamBytes is what an open stream is charged: its buffers here, and those of its connections.
	streamBytes = 64 << 10
	// maxHeader bounds the header of a request.
	maxHeader = 16 << 10
)

// ServerConfig are the settings of a Server.
type ServerConfig struct {
	Listen      string // host:port
	Connections int    // at a time, beside those of ports; see httpserver.Config
	Streams     int    // at a time, of all tenants
	Tenant      int    // streams of one tenant at a time
}

// Sandboxes are the records.
type Sandboxes interface {
	Sandbox(ctx context.Context, ref farm.Ref) (*farm.Sandbox, error)
}

// ServerDeps are the dependencies of a Server. All but Memory are required.
type ServerDeps struct {
	Identity  *Identity
	Sandboxes Sandboxes
	// Node is the identity of the worker's engine; empty: it is not known yet.
	Node func() string
	// Connect returns the agent of a sandbox.
	Connect func(ctx context.Context, box *farm.Sandbox) (*client.Client, error)
	// DialPort connects to a port of a sandbox's loopback. Not found: nothing listens there.
	DialPort func(ctx context.Context, box *farm.Sandbox, number uint16) (transport.PortServer, error)
	// Used notes that a sandbox is in use.
	Used func(ctx context.Context, box *farm.Sandbox) error
	// Memory is the budget for the buffers of streams; nil: without limit.
	Memory *budget.Budget
	Log    *slog.Logger
}

// Server is the listener. Create it with NewServer.
type Server struct {
	cfg  ServerConfig
	deps ServerDeps
	http *httpserver.Server
	use  usage

	mu      sync.Mutex
	streams int
	tenants map[string]int

	base context.Context // the life of all streams, ended by Stop
	end  context.CancelFunc

	ports sync.WaitGroup // connections to ports, which the HTTP server does not know any more
}

// NewServer makes a server; nothing is started.
func NewServer(cfg ServerConfig, deps ServerDeps) *Server {
	s := &Server{cfg: cfg, deps: deps, tenants: map[string]int{}}
	s.base, s.end = context.WithCancel(context.Background()) //nolint:forbidigo // Stop ends it
	s.use = usage{note: deps.Used, log: deps.Log, base: s.base}
	s.http = httpserver.New(httpserver.Config{
		Name: "live path", Listen: cfg.Listen, MaxConnections: cfg.Connections + cfg.Streams, Log: deps.Log,
		Accepted: func(c net.Conn) net.Conn { return &Below{Conn: c} },
		HTTP: &http.Server{
			Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: headerTimeout, IdleTimeout: serverIdle, MaxHeaderBytes: maxHeader,
			TLSConfig: deps.Identity.ServerTLS(),
			HTTP2: &http.HTTP2Config{
				MaxConcurrentStreams: connectionStreams, MaxReadFrameSize: frameBytes, MaxReceiveBufferPerStream: bodyWindow, MaxReceiveBufferPerConnection: connectionStreams * bodyWindow,
				SendPingTimeout: serverPing, PingTimeout: serverPing, WriteByteTimeout: writeTimeout,
			},
		},
	})
	return s
}

// Start listens. ctx bounds the start.
func (s *Server) Start(ctx context.Context) error { return s.http.Start(ctx) }

// Addr is the address to announce; empty before Start.
func (s *Server) Addr() string { return s.http.Addr() }

// Stop ends all streams at once: the API continues through another worker.
func (s *Server) Stop() {
	s.mu.Lock() // see enter
	s.end()
	s.mu.Unlock()
	s.http.Stop()
	s.ports.Wait()
	s.use.stop()
}

// serve passes one request on.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	target, path, err := ParsePath(r.URL.Path)
	if err != nil {
		fail(w, farm.NotFoundf("%s", err.Error()))
		return
	}
	ctx, done := context.WithCancel(r.Context())
	defer done()
	defer context.AfterFunc(s.base, done)() //nolint:contextcheck // the worker stops, not the request
	release, err := s.admit(target.Ref.Tenant)
	if err != nil {
		fail(w, err)
		return
	}
	defer release()
	box, err := s.fence(ctx, target)
	switch {
	case err != nil:
	case r.Header.Get("Upgrade") == PortProtocol:
		err = s.port(ctx, w, box, path)
	default:
		err = s.relay(ctx, w, r, box, path)
	}
	if err != nil {
		if s.base.Err() != nil || errors.Is(err, errElsewhere) {
			w.Header().Set(HeaderElsewhere, "1")
			err = farm.Wrap(err, farm.CodeUnavailable, "This worker does not serve the sandbox now.")
		}
		fail(w, err)
	}
}

// admit counts a stream and charges its memory.
func (s *Server) admit(tenant string) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.streams >= s.cfg.Streams:
		return nil, farm.Errorf(farm.CodeExhausted, "The worker has %d interactive streams, the most that it serves. Try again later.", s.cfg.Streams)
	case s.tenants[tenant] >= s.cfg.Tenant:
		return nil, farm.Errorf(farm.CodeExhausted, "You have %d interactive streams on this worker, the most that one tenant may have. End those that you do not need.", s.cfg.Tenant)
	}
	hold := s.deps.Memory.Lasting(tenant)
	if !hold.Grow(streamBytes) {
		return nil, farm.Errorf(farm.CodeExhausted, "The worker has no memory for another interactive stream now. Try again later.")
	}
	s.streams++
	s.tenants[tenant]++
	return func() {
		hold.Release()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.streams--
		if s.tenants[tenant]--; s.tenants[tenant] == 0 {
			delete(s.tenants, tenant)
		}
	}, nil
}

// fence reads the record of a sandbox, and refuses one that is not what the caller has seen.
func (s *Server) fence(ctx context.Context, t Target) (*farm.Sandbox, error) {
	box, err := s.deps.Sandboxes.Sandbox(ctx, t.Ref)
	switch {
	case err != nil:
		return nil, err
	case box.Generation != t.Generation:
		return nil, farm.Conflictf("Sandbox %s began anew on another node. Read it again.", box.ID)
	case !box.State.Reachable():
		return nil, farm.Conflictf("Sandbox %s is %s: it has no processes that could be reached.", box.ID, box.State)
	case box.Node != s.deps.Node():
		return nil, errElsewhere
	}
	return box, nil
}

// relay passes a request to the agent, and its answer back. An error after the answer has begun ends the stream.
func (s *Server) relay(ctx context.Context, w http.ResponseWriter, r *http.Request, box *farm.Sandbox, path string) error {
	c, err := s.deps.Connect(ctx, box)
	if err != nil {
		return err
	}
	body := io.Reader(http.NoBody)
	if r.ContentLength != 0 {
		body = &noted{Reader: r.Body, note: func() { s.use.noted(box) }} //nolint:contextcheck // use is noted also of a request that has ended
	}
	res, err := c.Relay(ctx, r.Method, path, r.URL.Query(), body)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	out := http.NewResponseController(w)
	from := io.Reader(res.Body)
	if kind := res.Header.Get("Content-Type"); kind == agent.FramesType || kind == agent.StreamType {
		w.Header().Set("Content-Type", kind)
		from = &noted{Reader: res.Body, note: func() { s.use.noted(box) }} //nolint:contextcheck // as above
	}
	w.WriteHeader(res.StatusCode)
	if err := out.Flush(); err != nil {
		panic(http.ErrAbortHandler)
	}
	buf := make([]byte, copyBytes)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				panic(http.ErrAbortHandler)
			}
			if err := out.Flush(); err != nil {
				panic(http.ErrAbortHandler)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			panic(http.ErrAbortHandler) // the API must not mistake a part for the whole
		}
	}
}

// noted calls note for everything that is read.
type noted struct {
	io.Reader
	note func()
}

func (n *noted) Read(p []byte) (int, error) {
	count, err := n.Reader.Read(p)
	if count > 0 {
		n.note()
	}
	return count, err
}

// fail answers as an agent does.
func fail(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(agent.StatusOf(farm.CodeOf(err)))
	_ = json.NewEncoder(w).Encode(map[string]string{"code": string(farm.CodeOf(err)), "message": farm.MessageOf(err)})
}

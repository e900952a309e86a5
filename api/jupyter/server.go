package jupyter

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Base is where the routes are.
const Base = "/jupyter"

// Config are the settings of a Server. All are required.
type Config struct {
	Service   *service.Service
	Version   string
	Heartbeat time.Duration // between two pings
	Stall     time.Duration // how long a client may take nothing, or leave a ping unanswered
	Guard     guard.Guard   // pages that may open a WebSocket
	Log       *slog.Logger
	Closing   <-chan struct{} // closed when the server stops
	// Opened is called when a WebSocket begins.
	Opened func(*gin.Context)
	// More counts the messages of a WebSocket that are requests to the farm.
	More More
	// Now tells the time.
	Now func() time.Time
}

// Server serves the routes. Create it with New, and stop it with Close.
type Server struct {
	cfg     Config
	started time.Time
	life    context.Context // of what outlives requests
	end     context.CancelFunc
	work    sync.WaitGroup // sessions that run cells, and WebSockets

	mu      sync.Mutex
	kernels map[farm.Ref]*kernel // those with sessions
}

// New makes a server. It does no I/O.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, started: cfg.Now(), kernels: map[farm.Ref]*kernel{}}
	s.life, s.end = context.WithCancel(context.Background()) //nolint:forbidigo // Close ends it
	return s
}

// Drain ends all WebSockets: their clients connect again, to another process. Cells run on, as all jobs do.
func (s *Server) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
}

// Close waits for the end of what Drain has ended. WebSockets that come later are refused.
func (s *Server) Close() {
	s.Drain()
	s.work.Wait()
}

// begin counts a WebSocket, until work.Done, unless the server stops.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return false
	}
	s.work.Add(1)
	return true
}

// Route is one route.
type Route struct {
	Method, Path string // in the router's form
	Scope        farm.Scope
	Open         bool // it needs no key
	Stream       bool // it lasts, and is not to be audited at its end
	Handler      func(*gin.Context) error
}

// Routes are all routes.
func (s *Server) Routes() []Route {
	const (
		kernels, kernel   = Base + "/api/kernels", Base + "/api/kernels/{id}"
		sessions, session = Base + "/api/sessions", Base + "/api/sessions/{id}"
	)
	read, run := farm.ScopeRead, farm.ScopeRun
	return []Route{
		{Method: http.MethodGet, Path: Base + "/api", Open: true, Handler: s.version},
		{Method: http.MethodGet, Path: Base + "/api/status", Scope: read, Handler: s.status},
		{Method: http.MethodGet, Path: Base + "/api/kernelspecs", Scope: read, Handler: s.listSpecs},
		{Method: http.MethodGet, Path: Base + "/api/kernelspecs/{name}", Scope: read, Handler: s.readSpec},
		{Method: http.MethodGet, Path: kernels, Scope: read, Handler: s.listKernels},
		{Method: http.MethodPost, Path: kernels, Scope: run, Handler: s.createKernel},
		{Method: http.MethodGet, Path: kernel, Scope: read, Handler: s.readKernel},
		{Method: http.MethodDelete, Path: kernel, Scope: run, Handler: s.deleteKernel},
		{Method: http.MethodPost, Path: kernel + "/interrupt", Scope: run, Handler: s.interruptKernel},
		{Method: http.MethodPost, Path: kernel + "/restart", Scope: run, Handler: s.restartKernel},
		{Method: http.MethodGet, Path: kernel + "/channels", Scope: run, Stream: true, Handler: s.channels},
		{Method: http.MethodGet, Path: sessions, Scope: read, Handler: s.listSessions},
		{Method: http.MethodPost, Path: sessions, Scope: run, Handler: s.createSession},
		{Method: http.MethodGet, Path: session, Scope: read, Handler: s.readSession},
		{Method: http.MethodPatch, Path: session, Scope: run, Handler: s.changeSession},
		{Method: http.MethodDelete, Path: session, Scope: run, Handler: s.deleteSession},
	}
}

// Present makes the key of a request what the farm's other routes expect: Jupyter's clients send it as "Authorization: token KEY" or as
// ?token=KEY, and an empty one where they have none.
func Present(r *http.Request) {
	scheme, key, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	scheme, key = strings.ToLower(scheme), strings.TrimSpace(key)
	if scheme == "token" {
		r.Header.Del("Authorization")
	}
	if scheme != "" && scheme != "token" || r.Header.Get("X-Api-Key") != "" {
		return
	}
	if key == "" {
		key = r.URL.Query().Get("token")
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
}

// Package jupyter serves the farm's kernels to clients of Jupyter: the REST routes and the WebSocket of a Jupyter server, as far as its clients
// use them (docs/jupyter.md).
//
// A kernel is the context default of a sandbox with a label. Its id is the sandbox's, written as a UUID, so there is no table of kernels. A cell
// is a job in the sandbox's FIFO, and what a client sees is made of the job's events: it can be made again for a client that comes back, by any
// API process. What is not code (completion, comms, input) goes over the live path.
//
// Guarantees: a cell always ends with a reply and the status idle, whatever becomes of its kernel, sandbox or worker. What a client sends is
// bounded before it is decoded, and its memory is charged. A client that does not read is closed; it does not stop its cell.
package jupyter

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/time/rate"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/guard"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

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
	// Check refuses what has waited, if the key of its caller has ended meanwhile, as access.Keys.Check does.
	Check func(context.Context, access.Caller) error
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
	kernels map[farm.Ref]*kernel     // those with sessions
	rates   map[string]*rate.Limiter // of the messages of a tenant's clients
}

// New makes a server. It does no I/O.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, started: cfg.Now(), kernels: map[farm.Ref]*kernel{}, rates: map[string]*rate.Limiter{}}
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

// Base is where the routes are.
const Base = "/jupyter"

// Routes are the routes for clients of Jupyter. docs/jupyter.md describes them; the OpenAPI document has only /v1.
func (s *Server) Routes() []rest.Route {
	const (
		kernels, kernel   = Base + "/api/kernels", Base + "/api/kernels/{id}"
		sessions, session = Base + "/api/sessions", Base + "/api/sessions/{id}"
	)
	read, run := farm.ScopeRead, farm.ScopeRun
	all := []rest.Route{
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
	for i := range all {
		all[i].Hidden, all[i].Present, all[i].Refuse = true, present, s.refuse
	}
	return all
}

// refuse answers with an error in the form that Jupyter's clients read.
func (s *Server) refuse(c *gin.Context, err error) {
	rest.FailAs(c, s.cfg.Log, err, func(p wire.Problem) {
		rest.WriteJSON(c, p.Status, "application/json; charset=utf-8", errorModel{Problem: p, Message: p.Detail, Reason: p.Title})
	})
}

// present makes the key of a request what the farm's other routes expect: Jupyter's clients send it as "Authorization: token KEY" or as
// ?token=KEY, and an empty one where they have none.
func present(r *http.Request) {
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

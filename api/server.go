// Package api is the farm's HTTP server. It owns the table of routes, the handlers of /v1, access control, metrics, the
// OpenAPI document and its page. Package service has the operations, package wire the types of bodies, package rest the
// code that all handlers share, and the packages ports, tools, jupyter and e2b have the routes of other protocols. The
// router and /openapi.json are both made from the table of routes, so neither can miss a route. The server is stateless: any number of servers may run behind one address.
package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/e2b"
	"github.com/sandfarm/sandfarm/api/jupyter"
	"github.com/sandfarm/sandfarm/api/ports"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/tools"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
	"github.com/sandfarm/sandfarm/internal/relay"
	"github.com/sandfarm/sandfarm/internal/telemetry"
	"github.com/sandfarm/sandfarm/ui"
)

// Timeouts of connections. Bodies and answers of any length have none as a whole: Config.StallTimeout bounds each step.
const (
	headerTimeout = 5 * time.Second   // a request line and headers are small
	idleTimeout   = 120 * time.Second // longer than a caller's pause between long polls
)

// StopTimeout is how long Stop waits for requests in flight; waits and streams end at once.
const StopTimeout = 10 * time.Second

// Deps are the parts that the server works with.
type Deps struct {
	Submitter service.Submitter
	Store     service.Store
	Queues    service.Queues
	Blobs     service.Blobs
	Memory    *budget.Budget // for bodies and answers; nil: without limit
	// Agents are those of sandboxes, over the live path; nil: processes are refused.
	Agents   func(*farm.Sandbox) relay.Agent
	Resolver service.Resolver     // of callback addresses; default net.DefaultResolver
	Logger   *slog.Logger         // default: nothing is logged
	Tracer   trace.TracerProvider // of requests; nil: none are traced
	Registry *prometheus.Registry // shown by /metrics; default: a new one
	Version  string               // of the farm; default "dev"
	Now      func() time.Time     // default time.Now
	Data     string               // data directory that commands on the farm's host must name, which the dashboard shows to its operator; "": none
}

// Server is the REST server.
type Server struct {
	cfg             Config
	log             *slog.Logger
	version         string
	data            string
	service         *service.Service
	tools           *tools.Server
	browserCallable map[string]bool // paths of the router that pages of trusted origins may call
	closing         chan struct{}   // closed when the server stops
	keys            *access.Keys
	audit           *auditor
	gate            *access.Gate
	jupyter         *jupyter.Server
	ports           *ports.Server
	signer          *access.Signer
	e2b             *e2b.Gateway
	sessions        *access.Sessions
	ui              *ui.Files
	previews        http.Handler // of the hosts of ports
	boxes           http.Handler // of those of E2B's services in sandboxes
	metrics         *metrics
	tracer          trace.TracerProvider
	memory          *budget.Budget
	spec            []byte // /openapi.json
	engine          *gin.Engine
	origins         *http.CrossOriginProtection
	attached        sync.WaitGroup // WebSockets

	http *httpserver.Server
	stop sync.Once
}

// New makes a server. It fails on invalid settings and reports all of them.
func New(cfg Config, deps Deps) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("check settings: %w", err)
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Version == "" {
		deps.Version = "dev"
	}
	var err error
	if deps.Registry == nil {
		if deps.Registry, err = telemetry.NewRegistry("api", deps.Version); err != nil {
			return nil, err
		}
	}
	s := &Server{
		cfg: cfg, log: deps.Logger, version: deps.Version, data: deps.Data, tracer: deps.Tracer, memory: deps.Memory, keys: access.NewKeys(deps.Store, access.KeysConfig{Settings: settingsKeys(cfg.Keys), Required: cfg.RequireKeys, Now: deps.Now, Logger: deps.Logger}), origins: http.NewCrossOriginProtection(), closing: make(chan struct{}), browserCallable: map[string]bool{},
	}
	s.audit = &auditor{store: deps.Store, log: s.log, now: deps.Now}
	if deps.Now == nil {
		s.audit.now = time.Now
	}
	if s.metrics, err = newMetrics(deps.Registry, deps.Queues, deps.Store); err != nil {
		return nil, err
	}
	s.signer = access.NewSigner(deps.Store, s.audit.now)
	s.sessions = access.NewSessions(s.signer, deps.Store, s.audit.now)
	if s.ui, err = ui.New(); err != nil {
		return nil, err
	}
	s.gate = access.NewGate(access.GateConfig{Store: deps.Store, Logger: deps.Logger, Refused: s.metrics.countRefusal})
	s.service = service.New(service.Deps{
		Submitter: deps.Submitter, Store: deps.Store, Queues: deps.Queues, Blobs: deps.Blobs, Memory: deps.Memory, Resolver: deps.Resolver,
		Logger: deps.Logger, Now: deps.Now,
		Accepted: s.accepted, Canceled: s.canceled, Agents: deps.Agents,
		Refused: s.metrics.countRefusal, More: s.gate.More,
		Pooled: s.metrics.countClaim,
	}, service.Options{Limits: cfg.Limits, Allow: cfg.Allow, Secrets: cfg.Secrets, AllowPrivateCallbacks: cfg.AllowPrivateCallbacks, SettingsKeys: records(cfg.Keys)})
	if err := deps.Registry.Register(newScaleCollector(s.service.Needs)); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	s.e2b = s.newE2B()
	s.ports = ports.NewServer(ports.Deps{
		Service: s.service, Signer: s.signer, Keys: s.keys, Gate: s.gate, Memory: s.memory, E2B: s.e2b, Log: s.log, Now: s.audit.now, ActFor: s.actFor,
		MaxBody: s.cfg.Limits.MaxBodyBytes, Heartbeat: s.cfg.Heartbeat, Stall: s.cfg.StallTimeout, Closing: s.closing, Hosts: s.cfg.TrustedHosts,
		PreviewDomain: s.cfg.PreviewDomain,
	})
	s.jupyter = jupyter.New(jupyter.Config{
		Service: s.service, Version: s.version, Heartbeat: s.cfg.Heartbeat, Stall: s.cfg.StallTimeout, Guard: s.trusted(), Log: s.log,
		Closing: s.closing, Opened: s.opened, More: s.gate.More, Check: s.keys.Check, Now: s.audit.now,
	})
	if s.tools, err = tools.New(tools.Deps{
		More: s.gate.More, Used: s.used,
		Service: s.service, Ports: s.ports, SendFile: s.sendFile, Log: s.log, Version: s.version, Limits: s.cfg.Limits, Heartbeat: s.cfg.Heartbeat,
		Stall: s.cfg.StallTimeout, Closing: s.closing, Origins: s.cfg.TrustedOrigins, Hosts: s.cfg.TrustedHosts, NoAllowlist: len(s.cfg.Allow) == 0,
	}); err != nil {
		return nil, err
	}
	if s.spec, err = s.document(); err != nil {
		return nil, err
	}
	for _, r := range s.routes() {
		if r.BrowserCallable {
			s.browserCallable[r.RouterPath()] = true
		}
	}
	s.engine = s.router()
	s.previews, s.boxes = s.hostRouter(s.ports.HostRoutes()), s.boxRouter()
	s.http = httpserver.New(httpserver.Config{
		Name: "api", Listen: cfg.Listen, StopTimeout: StopTimeout, StallTimeout: cfg.StallTimeout, Log: s.log,
		HTTP: &http.Server{Handler: s.Handler(), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout},
	})
	return s, nil
}

// newE2B makes the door for the SDKs of E2B.
func (s *Server) newE2B() *e2b.Gateway {
	return e2b.New(e2b.Deps{
		Service: s.service, Signer: s.signer, Logger: s.log, Now: s.audit.now, MaxBody: s.cfg.Limits.MaxBodyBytes, Stall: s.cfg.StallTimeout, Domain: func(r *http.Request) string { return s.ports.DomainFor(r) },
		Opened: s.service.OpenRefs, Keys: s.keys.IDs,
		Hold: s.keys.Hold, ActFor: s.actFor, Gate: s.gate, Memory: s.memory,
	})
}

// Handler is the server's handler, for other HTTP servers and for tests.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.byHost) }

// Operator is the server's handler for whoever has been found to be the operator already: it asks for no key. It must not be served
// on a network.
func (s *Server) Operator() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.engine.ServeHTTP(w, r.WithContext(access.WithCaller(r.Context(), access.Operator())))
	})
}

// OpenAPI is the document that GET /openapi.json answers with.
func (s *Server) OpenAPI() []byte { return s.spec }

// Start begins to listen and serve, once. It returns when requests are taken.
func (s *Server) Start(ctx context.Context) error {
	if err := s.http.Start(ctx); err != nil {
		return err
	}
	if _, err := s.keys.IDs(ctx, ""); err == nil && s.keys.Open() { // IDs reads the keys
		s.log.WarnContext(ctx, "no API key is set: everyone on this machine may use the farm until a key is created", slog.String("addr", s.Addr()))
	}
	return nil
}

// Addr is the address that the server listens on; empty before Start.
func (s *Server) Addr() string { return s.http.Addr() }

// Stop ends waits and event streams, lets other requests finish for a while, and returns when all is over.
func (s *Server) Stop() {
	s.stop.Do(func() { close(s.closing) })
	s.service.Drain()
	s.jupyter.Drain()
	s.http.Stop()
	s.attached.Wait()
	s.jupyter.Close()
	s.ports.Close()
	s.keys.Close()
	s.audit.close()
	s.gate.Close()
}

// router makes the gin engine from the route table.
func (s *Server) router() *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	// Paths are taken as they are sent: a file's name may hold anything, and handlers judge it.
	e.RedirectTrailingSlash, e.RedirectFixedPath, e.RemoveExtraSlash = false, false, false
	e.UseRawPath, e.UnescapePathValues = false, false
	e.HandleMethodNotAllowed = true
	e.ContextWithFallback = false
	_ = e.SetTrustedProxies(nil) // nil cannot be wrong
	e.Use(rest.Identify(s.cfg.StallTimeout), rest.Log(s.log), s.metrics.observe)
	if s.tracer != nil {
		e.Use(rest.Trace(s.tracer, "/metrics", "/healthz", "/readyz")) // what asks these asks all day long
	}
	e.Use(rest.Recover(s.log), s.guardPages)
	for _, r := range s.routes() {
		e.Handle(r.Method, r.RouterPath(), s.handle(r))
	}
	s.preflights(e)
	e.NoRoute(s.noRoute)
	e.NoMethod(s.noMethod)
	return e
}

// handle is a route's handler: the key and its scope first, then the work; an error becomes a problem in one place.
func (s *Server) handle(r rest.Route) gin.HandlerFunc {
	fail := r.Refuse
	if fail == nil {
		fail = s.fail
	}
	known := r.Filters()
	return func(c *gin.Context) {
		if r.BrowserCallable {
			if err := rest.AllowPage(c, s.trusted()); err != nil {
				s.fail(c, err)
				return
			}
		}
		if r.Present != nil {
			r.Present(c.Request)
		}
		release := func() {}
		if r.Token {
			t := follow(c)
			defer func() { s.ended(c, r, t) }()
		}
		if !r.Open {
			var err error
			release, err = s.admit(c, r)
			t := follow(c)
			defer func() { s.ended(c, r, t) }()
			if err != nil {
				fail(c, err)
				return
			}
		}
		defer release()
		ctx, memory := s.memory.With(c.Request.Context(), rest.Tenant(c), rest.MemoryTimeout)
		defer memory.Release()
		c.Request = c.Request.WithContext(ctx)
		err := rest.CheckFilters(c.Request, known)
		if err == nil {
			err = r.Handler(c)
		}
		if err != nil {
			fail(c, err)
		}
	}
}

// preflights registers the OPTIONS requests that browsers send before they let a page call.
func (s *Server) preflights(e *gin.Engine) {
	methods := map[string][]string{}
	for _, r := range s.routes() {
		if r.BrowserCallable {
			methods[r.RouterPath()] = append(methods[r.RouterPath()], r.Method)
		}
	}
	for path, allowed := range methods {
		e.OPTIONS(path, rest.Preflight(s.trusted(), allowed))
	}
}

// failAt is how errors are answered at a path that is no route.
func (s *Server) failAt(c *gin.Context) func(*gin.Context, error) {
	if strings.HasPrefix(c.Request.URL.Path, e2b.Base+"/") {
		return s.e2b.Refuse
	}
	return s.fail
}

func (s *Server) noRoute(c *gin.Context) {
	fail := s.failAt(c)
	if err := rest.Authenticate(c, s.keys); err != nil {
		fail(c, err)
		return
	}
	fail(c, farm.NotFoundf("There is no such path. GET /openapi.json lists all of them."))
}

func (s *Server) noMethod(c *gin.Context) {
	s.failAt(c)(c, rest.Refusef(http.StatusMethodNotAllowed, farm.CodeInvalid, "%s is not a method of this path; it takes %s.", c.Request.Method, c.Writer.Header().Get("Allow")))
}

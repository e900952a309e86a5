package api

import (
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/e2b"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// e2bBase is where the SDKs of E2B are served (package e2b). docs/coming-from/e2b.md describes it; the OpenAPI document has only /v1.
const e2bBase = "/e2b"

// newE2B makes the door for the SDKs of E2B.
func (s *Server) newE2B() *e2b.Door {
	domain := func(r *http.Request) string {
		_, domain := s.portDomain(addressOf(r))
		return domain
	}
	return e2b.New(e2b.Deps{
		Service: s.service, Signer: s.signer, Logger: s.log, Now: s.audit.now, MaxBody: s.cfg.Limits.MaxBodyBytes, Stall: s.cfg.StallTimeout, Domain: domain,
		Opened: s.service.OpenRefs, Find: s.service.OpenRef, Keys: s.keys.IDs,
		Interpreter: e2b.NewInterpreter(s.service, s.cfg.Limits.MaxBodyBytes, s.audit.now).Serve,
	})
}

func (s *Server) e2bRoutes() []rest.Route {
	const box = e2bBase + "/sandboxes/{id}"
	all := []rest.Route{
		{Method: "POST", Path: e2bBase + "/v2/sandboxes", Handler: s.e2b.Create(false)},
		{Method: "POST", Path: e2bBase + "/sandboxes", Handler: s.e2b.Create(true)},
		{Method: "GET", Path: e2bBase + "/v2/sandboxes", Handler: s.e2b.List},
		{Method: "GET", Path: e2bBase + "/sandboxes", Handler: s.e2b.List},
		{Method: "POST", Path: e2bBase + "/v2/sandboxes/{id}/connect", Handler: s.e2b.Connect},
		{Method: "POST", Path: box + "/connect", Handler: s.e2b.Connect},
		{Method: "GET", Path: box, Handler: s.e2b.Info},
		{Method: "DELETE", Path: box, Handler: s.e2b.Kill},
		{Method: "POST", Path: box + "/timeout", Handler: s.e2b.Timeout},
		{Method: "POST", Path: box + "/pause", Handler: s.e2b.Pause},
		{Method: "POST", Path: box + "/snapshots", Handler: e2b.NotOffered("Snapshots")}, // the SDKs take 404 for a sandbox that is gone
		{Method: "POST", Path: box + "/fork", Handler: e2b.NotOffered("Forks")},
		{Method: "GET", Path: box + "/metrics", Handler: s.e2b.Metrics},
		{Method: "GET", Path: e2bBase + "/v2/sandboxes/{id}/logs", Handler: s.e2b.Logs(false)},
		{Method: "GET", Path: box + "/logs", Handler: s.e2b.Logs(true)},
	}
	all = append(all, s.e2bBoxRoutes(e2bBase)...)
	// The SDKs drop the path of E2B_SANDBOX_URL from the URLs of files that they sign. Such a URL names no sandbox; callers of a farm with hosts for
	// ports have better ones, or are on this machine.
	for _, r := range s.e2bBoxRoutes("") {
		if r.Path == "/files" {
			serve := r.Handler
			r.Handler = func(c *gin.Context) error {
				if _, domain := s.portDomain(addressOf(c.Request)); domain == "" {
					return farm.NotFoundf("There is no such path: URLs of files that E2B's SDKs sign need api.preview_domain on this farm.")
				}
				return serve(c)
			}
			all = append(all, r)
		}
	}
	for i := range all {
		all[i].Hidden, all[i].Refuse = true, s.failE2B
	}
	return all
}

// e2bService is the service of E2B to which a route belongs.
type e2bService int

const (
	e2bEnvd        e2bService = iota // it takes access tokens only, and is not at port 49999
	e2bInterpreter                   // it takes traffic tokens, too
	e2bBoth                          // it is at every port, and takes access tokens only
)

// e2bBoxRoutes are those to services in sandboxes, below a base: the sandbox is in a header.
func (s *Server) e2bBoxRoutes(base string) []rest.Route {
	var all []rest.Route
	for _, d := range []struct {
		method, path string
		stream       bool // as in route
		of           e2bService
		serve        e2b.Handler
	}{
		{"GET", base + "/health", true, e2bBoth, s.e2b.Health},
		{"GET", base + "/files", true, e2bEnvd, s.e2b.Download},
		{"POST", base + "/files", false, e2bEnvd, s.e2b.Upload},
		{"POST", base + "/execute", false, e2bInterpreter, s.e2b.Interpret},
		{"POST", base + "/contexts", false, e2bInterpreter, s.e2b.Interpret},
		{"GET", base + "/contexts", false, e2bInterpreter, s.e2b.Interpret},
		{"DELETE", base + "/contexts/{context}", false, e2bInterpreter, s.e2b.Interpret},
		{"POST", base + "/contexts/{context}/restart", false, e2bInterpreter, s.e2b.Interpret},
	} {
		r := rest.Route{Method: d.method, Path: d.path, Open: true, Token: true, Scope: farm.ScopeRun, Stream: d.stream}
		r.Handler = s.inBox(d.of, d.serve)
		all = append(all, r)
	}
	rpc := s.e2b.RPC(base)
	for procedure, changes := range e2b.Procedures() {
		r := rest.Route{Method: "POST", Path: base + procedure, Open: true, Token: true, Scope: farm.ScopeRun, Stream: !changes}
		r.Handler = s.inBox(e2bEnvd, rpc)
		all = append(all, r)
	}
	return all
}

// boxRouter makes the engine of the hosts that a sandbox has for E2B's services. None of the farm's other routes is there.
func (s *Server) boxRouter() http.Handler {
	e := s.hostRouter()
	for _, r := range s.e2bBoxRoutes("") {
		r.Refuse = s.failE2B
		e.Handle(r.Method, r.RouterPath(), s.handle(r))
	}
	e.NoRoute(func(c *gin.Context) { s.failE2B(c, farm.NotFoundf("There is no such path.")) })
	return e
}

// inBox makes the handler of a request that carries the token of a sandbox instead of a key. The request counts against the quotas of the
// sandbox's tenant.
func (s *Server) inBox(of e2bService, serve e2b.Handler) func(*gin.Context) error {
	return func(c *gin.Context) error {
		box, err := s.e2b.Open(c.Request, of == e2bInterpreter)
		if err != nil {
			return err
		}
		caller := access.Caller{Tenant: box.Tenant, KeyID: box.Key}
		s.actFor(c, caller, box.ID)
		if of == e2bEnvd && e2b.Port(c.Request) == e2b.InterpreterPort {
			return farm.NotFoundf("There is no such path at port %s: it has the routes of the code interpreter.", e2b.InterpreterPort)
		}
		ctx, drop := s.keys.Hold(c.Request.Context(), caller)
		defer drop()
		leave, err := s.gate.Enter(ctx, box.Tenant, rest.RequestID(c), c.Writer.Header())
		if err != nil {
			return err
		}
		defer leave()
		if err := s.e2b.Running(ctx, box); err != nil {
			return err
		}
		ctx, memory := s.memory.With(ctx, box.Tenant, memoryPatience)
		defer memory.Release()
		c.Request = c.Request.WithContext(ctx)
		c.AddParam("id", box.ID)
		return serve(c, box)
	}
}

// failE2B answers with an error in the form of E2B.
func (s *Server) failE2B(c *gin.Context, err error) {
	if gone, ok := errors.AsType[*e2b.Gone](err); ok {
		gone.Write(c)
		return
	}
	rest.FailAs(c, s.log, err, func(p wire.Problem) { e2b.WriteFailure(c, p) })
}

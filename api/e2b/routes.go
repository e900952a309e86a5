package e2b

import (
	"errors"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/access"
	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Base is where the SDKs of E2B are served. docs/coming-from/e2b.md describes it; the OpenAPI document has only /v1.
const Base = "/e2b"

// Routes are all routes below Base, and those at the root that the SDKs make without it.
func (d *Gateway) Routes() []rest.Route {
	const box = Base + "/sandboxes/{id}"
	all := []rest.Route{
		{Method: "POST", Path: Base + "/v2/sandboxes", Handler: d.Create(false)},
		{Method: "POST", Path: Base + "/sandboxes", Handler: d.Create(true)},
		{Method: "GET", Path: Base + "/v2/sandboxes", Handler: d.List},
		{Method: "GET", Path: Base + "/sandboxes", Handler: d.List},
		{Method: "POST", Path: Base + "/v2/sandboxes/{id}/connect", Handler: d.Connect},
		{Method: "POST", Path: box + "/connect", Handler: d.Connect},
		{Method: "GET", Path: box, Handler: d.Info},
		{Method: "DELETE", Path: box, Handler: d.Kill},
		{Method: "POST", Path: box + "/timeout", Handler: d.Timeout},
		{Method: "POST", Path: box + "/pause", Handler: d.Pause},
		{Method: "POST", Path: box + "/snapshots", Handler: NotOffered("Snapshots")}, // the SDKs take 404 for a sandbox that is gone
		{Method: "POST", Path: box + "/fork", Handler: NotOffered("Forks")},
		{Method: "GET", Path: box + "/metrics", Handler: d.Metrics},
		{Method: "GET", Path: Base + "/v2/sandboxes/{id}/logs", Handler: d.Logs(false)},
		{Method: "GET", Path: box + "/logs", Handler: d.Logs(true)},
	}
	all = append(all, d.BoxRoutes(Base)...)
	// The SDKs drop the path of E2B_SANDBOX_URL from the URLs of files that they sign. Such a URL names no sandbox; callers of a farm with hosts for
	// ports have better ones, or are on this machine.
	for _, r := range d.BoxRoutes("") {
		if r.Path == "/files" {
			serve := r.Handler
			r.Handler = func(c *gin.Context) error {
				if d.Domain(c.Request) == "" {
					return farm.NotFoundf("There is no such path: URLs of files that E2B's SDKs sign need api.preview_domain on this farm.")
				}
				return serve(c)
			}
			all = append(all, r)
		}
	}
	for i := range all {
		all[i].Hidden, all[i].Refuse = true, d.Refuse
	}
	return all
}

// boxService is the service of E2B to which a route belongs.
type boxService int

const (
	ofEnvd        boxService = iota // it takes access tokens only, and is not at port 49999
	ofInterpreter                   // it takes traffic tokens, too
	ofBoth                          // it is at every port, and takes access tokens only
)

// BoxRoutes are those to services in sandboxes, below a base: the sandbox is in a header.
func (d *Gateway) BoxRoutes(base string) []rest.Route {
	var all []rest.Route
	for _, r := range []struct {
		method, path string
		stream       bool // as in rest.Route
		of           boxService
		serve        Handler
	}{
		{"GET", base + "/health", true, ofBoth, d.Health},
		{"GET", base + "/files", true, ofEnvd, d.Download},
		{"POST", base + "/files", false, ofEnvd, d.Upload},
		{"POST", base + "/execute", false, ofInterpreter, d.interpreter.serve},
		{"POST", base + "/contexts", false, ofInterpreter, d.interpreter.serve},
		{"GET", base + "/contexts", false, ofInterpreter, d.interpreter.serve},
		{"DELETE", base + "/contexts/{context}", false, ofInterpreter, d.interpreter.serve},
		{"POST", base + "/contexts/{context}/restart", false, ofInterpreter, d.interpreter.serve},
	} {
		all = append(all, rest.Route{Method: r.method, Path: r.path, Open: true, Token: true, Scope: farm.ScopeRun, Stream: r.stream, Handler: d.inBox(r.of, r.serve), Refuse: d.Refuse})
	}
	rpc := d.RPC(base)
	for procedure, changes := range Procedures() {
		all = append(all, rest.Route{Method: "POST", Path: base + procedure, Open: true, Token: true, Scope: farm.ScopeRun, Stream: !changes, Handler: d.inBox(ofEnvd, rpc), Refuse: d.Refuse})
	}
	return all
}

// inBox makes the handler of a request that carries the token of a sandbox instead of a key. The request counts against the quotas of the
// sandbox's tenant.
func (d *Gateway) inBox(of boxService, serve Handler) func(*gin.Context) error {
	return func(c *gin.Context) error {
		box, err := d.Open(c.Request, of == ofInterpreter)
		if err != nil {
			return err
		}
		caller := access.Caller{Tenant: box.Tenant, KeyID: box.Key}
		d.ActFor(c, caller, box.ID)
		if of == ofEnvd && Port(c.Request) == InterpreterPort {
			return farm.NotFoundf("There is no such path at port %s: it has the routes of the code interpreter.", InterpreterPort)
		}
		ctx, drop := d.Hold(c.Request.Context(), caller)
		defer drop()
		leave, err := d.Gate.Enter(ctx, box.Tenant, rest.RequestID(c), c.Writer.Header())
		if err != nil {
			return err
		}
		defer leave()
		if err := d.Running(ctx, box); err != nil {
			return err
		}
		ctx, memory := d.Memory.With(ctx, box.Tenant, rest.MemoryTimeout)
		defer memory.Release()
		c.Request = c.Request.WithContext(ctx)
		c.AddParam("id", box.ID)
		return serve(c, box)
	}
}

// Refuse answers with an error in the form of E2B.
func (d *Gateway) Refuse(c *gin.Context, err error) {
	if gone, ok := errors.AsType[*Gone](err); ok {
		gone.Write(c)
		return
	}
	rest.FailAs(c, d.Logger, err, func(p wire.Problem) { WriteFailure(c, p) })
}

// Health says that a sandbox runs, as envd and the code interpreter do.
func (d *Gateway) Health(c *gin.Context, box Box) error {
	if Port(c.Request) == InterpreterPort {
		return d.interpreter.serve(c, box)
	}
	return rest.NoContent(c)
}

package api

import (
	"crypto/sha256"
	"net/http"
	"net/url"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func (s *Server) workRoutes() []rest.Route {
	const base = "/v1/sandboxes/{id}"
	return []rest.Route{
		{Method: "POST", Path: base + "/execute", Tag: "Work", Summary: "Run code in a sandbox", Detail: "The kernel of the context keeps its variables between calls.", Body: wire.ExecuteRequest{}, Answers: jobAnswers(), Wait: true, Idempotent: true, Handler: s.execute},
		{Method: "POST", Path: base + "/commands", Tag: "Work", Summary: "Run shell commands in a sandbox", Body: wire.CommandRequest{}, Answers: jobAnswers(), Wait: true, Idempotent: true, Handler: s.command},
		{Method: "POST", Path: base + "/interrupt", Tag: "Work", Summary: "Interrupt the running code", Detail: "If one like it has not begun yet, that job is the answer.", Body: wire.ControlRequest{}, Optional: true, Answers: jobAnswers(), Wait: true, Idempotent: true, Handler: s.control(farm.KindInterrupt)},
		{Method: "POST", Path: base + "/restart", Tag: "Work", Summary: "Restart the kernels", Detail: "Variables are lost, files stay. If a restart like it has not begun yet, that job is the answer.", Body: wire.ControlRequest{}, Optional: true, Answers: jobAnswers(), Wait: true, Idempotent: true, Handler: s.control(farm.KindRestart)},
		{Method: "POST", Path: "/v1/run", Tag: "Work", Summary: "Run code in a fresh sandbox", Detail: "The sandbox is closed afterwards.", Body: wire.RunRequest{}, Answers: jobAnswers(), Wait: true, Idempotent: true, Handler: s.run},
	}
}

// accepted answers a request that started work: with the finished status where the caller waited and the job has
// ended, else 202 and where to look.
func accepted(c *gin.Context, call service.Call, out service.Outcome, finished int, body any) error {
	status := finished
	if !out.Done() || call.Wait == 0 {
		status = http.StatusAccepted
		c.Header("Location", out.Job.Links.Self)
	}
	return rest.Reply(c, status, body)
}

// work is a route that takes a body of one type and starts one job.
func work[R any](s *Server, c *gin.Context, bind func(*gin.Context, any) (rest.Decoded, error), start func(service.Call, R) (service.Outcome, error)) error {
	var r R
	body, err := bind(c, &r)
	if err != nil {
		return err
	}
	call, err := s.call(c, 0, body)
	if err != nil {
		return err
	}
	ctx := c.Request.Context()
	if err := budget.TakeCore(ctx, body.Size); err != nil { // for what start checks: it leaves the core before it waits
		return err
	}
	out, err := start(call, r)
	budget.LeaveCore(ctx)
	if err != nil {
		return err
	}
	return accepted(c, call, out, http.StatusOK, out.Job)
}

func (s *Server) execute(c *gin.Context) error {
	return work(s, c, s.bind, func(call service.Call, r wire.ExecuteRequest) (service.Outcome, error) {
		return s.service.Execute(c.Request.Context(), call, c.Param("id"), r)
	})
}

func (s *Server) command(c *gin.Context) error {
	return work(s, c, s.bind, func(call service.Call, r wire.CommandRequest) (service.Outcome, error) {
		return s.service.Command(c.Request.Context(), call, c.Param("id"), r)
	})
}

func (s *Server) run(c *gin.Context) error {
	return work(s, c, s.bind, func(call service.Call, r wire.RunRequest) (service.Outcome, error) {
		return s.service.Run(c.Request.Context(), call, r)
	})
}

// control makes the handler of interrupt and restart.
func (s *Server) control(kind farm.JobKind) func(*gin.Context) error {
	return func(c *gin.Context) error {
		return work(s, c, s.bindOptional, func(call service.Call, r wire.ControlRequest) (service.Outcome, error) {
			return s.service.Control(c.Request.Context(), call, kind, c.Param("id"), r)
		})
	}
}

// call reads everything but the body of a request that starts work: the tenant, the wait and the idempotency key.
func (s *Server) call(c *gin.Context, standard time.Duration, body rest.Decoded) (service.Call, error) {
	wait, err := s.wait(c, standard)
	if err != nil {
		return service.Call{}, err
	}
	call := service.Call{Tenant: rest.Tenant(c), Wait: wait, Problems: body.Problems}
	call.Route = c.Request.Method + " " + c.Request.URL.EscapedPath()
	if keys, ok := c.Request.Header["Idempotency-Key"]; ok {
		if call.Key = keys[0]; call.Key == "" || len(keys) > 1 {
			return call, rest.BadRequestf("the Idempotency-Key must be given once and not be empty")
		}
		call.Body = sha256.Sum256(body.Text)
	}
	if path, ok := c.GetQuery("path"); ok {
		call.Route += "?path=" + url.QueryEscape(path)
	}
	return call, nil
}

// wait reads how long the caller waits for the job; standard is the default.
func (s *Server) wait(c *gin.Context, standard time.Duration) (time.Duration, error) {
	return rest.Wait(c, standard, time.Duration(s.cfg.Limits.WaitMaxSeconds)*time.Second)
}

// bind decodes a JSON body, up to the farm's limit.
func (s *Server) bind(c *gin.Context, into any) (rest.Decoded, error) {
	return rest.Bind(c, s.cfg.Limits.MaxBodyBytes, into)
}

// bindOptional is bind for an optional body.
func (s *Server) bindOptional(c *gin.Context, into any) (rest.Decoded, error) {
	return rest.BindOptional(c, s.cfg.Limits.MaxBodyBytes, into)
}

func (s *Server) packageRoutes() []rest.Route {
	const base = "/v1/sandboxes/{id}"
	return []rest.Route{
		{Method: "POST", Path: base + "/packages", Tag: "Packages", Summary: "Install packages", Detail: "A job: poll it, or poll each package by its name. Failures are reported for each package; the others are installed, and running kernels can import them at once.", Body: wire.PackagesRequest{}, Answers: jobAnswers(), Wait: true, Idempotent: true, Handler: s.install},
		{Method: "GET", Path: base + "/packages", Tag: "Packages", Summary: "List packages", Detail: "Packages of the image, installed packages, running installs and failed installs.", Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the packages, by name", Body: wire.Items[wire.Package]{}}}, Handler: s.listPackages},
		{Method: "GET", Path: base + "/packages/{name}", Tag: "Packages", Summary: "Look a package up", Detail: "Names are compared by PEP 503.", Query: []rest.Parameter{
			rest.Query("manager", "package manager", object{"type": "string", "enum": []string{"pip", "npm"}, "default": "pip"}),
		}, Answers: []rest.Answer{{Status: http.StatusOK, Doc: "the status of the package", Body: wire.Package{}}}, Handler: s.readPackage},
	}
}

func (s *Server) install(c *gin.Context) error {
	return work(s, c, s.bind, func(call service.Call, r wire.PackagesRequest) (service.Outcome, error) {
		return s.service.Install(c.Request.Context(), call, c.Param("id"), r)
	})
}

func (s *Server) listPackages(c *gin.Context) error {
	list, err := s.service.PackageList(c.Request.Context(), rest.Tenant(c), c.Param("id"))
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

func (s *Server) readPackage(c *gin.Context) error {
	name, _, err := rest.PathAfter(c, "/packages/")
	if err != nil {
		return err
	}
	p, err := s.service.Package(c.Request.Context(), rest.Tenant(c), c.Param("id"), c.Query("manager"), name)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, p)
}

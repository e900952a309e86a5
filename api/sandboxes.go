package api

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func (s *Server) sandboxRoutes() []rest.Route {
	const base = "/v1/sandboxes/{id}"
	made := []rest.Answer{
		{Status: http.StatusCreated, Doc: "the ready sandbox and its finished job, when the caller waited", Body: wire.Created{}},
		{Status: http.StatusOK, Doc: "the sandbox and its job, which ended otherwise while the caller waited", Body: wire.Created{}},
		{Status: http.StatusAccepted, Doc: "the new sandbox and the job that creates it", Body: wire.Created{}},
	}
	one := []rest.Answer{{Status: http.StatusOK, Doc: "the sandbox", Body: wire.Sandbox{}}}
	list := []rest.Answer{{Status: http.StatusOK, Doc: "a page of sandboxes, newest first", Body: wire.List[wire.Sandbox]{}}}
	filters := append(append(paging(), created()...), rest.Query("name", "only of exactly this name", object{"type": "string"}), rest.Query("state", "only in these states, separated by commas", stateSchema(farm.SandboxStates())),
		rest.Query("label", "key=value; may be repeated", object{"type": "array", "items": object{"type": "string"}}))
	return []rest.Route{
		{Method: "POST", Path: "/v1/sandboxes", Tag: "Sandboxes", Summary: "Create a sandbox", Body: wire.CreateRequest{}, Answers: made, Wait: true, Idempotent: true, Handler: s.createSandbox},
		{Method: "GET", Path: "/v1/sandboxes", Tag: "Sandboxes", Summary: "List sandboxes", Query: filters, Answers: list, Handler: s.listSandboxes},
		{Method: "GET", Path: base, Tag: "Sandboxes", Summary: "Read a sandbox", Detail: "Reading does not count as use.", Answers: one, Handler: s.readSandbox},
		{Method: "PATCH", Path: base, Tag: "Sandboxes", Summary: "Keep a sandbox alive, rename or label it, or change its hosts or values of secrets", Body: wire.UpdateRequest{}, Answers: one, Handler: s.updateSandbox},
		{
			Method: "GET", Path: base + "/egress", Tag: "Sandboxes", Summary: "Show what a sandbox connected to", Detail: "The connections that a sandbox with the network allowlist asked for, the oldest first; those that are open come when they end. The newest ones are kept, and go with the sandbox.",
			Query: []rest.Parameter{
				rest.Query("limit", "entries of a page", object{"type": "integer", "minimum": 1, "maximum": service.EgressPageMax, "default": service.EgressPageDefault}),
				rest.Query("after", "id of an entry: only what follows it", object{"type": "string"}),
			}, Answers: []rest.Answer{{Status: http.StatusOK, Doc: "a page of entries; next_cursor is the after of the next one", Body: wire.List[wire.EgressEntry]{}}}, Handler: s.egress,
		},
		{Method: "DELETE", Path: base, Tag: "Sandboxes", Summary: "Close a sandbox", Detail: "Cancels its running and queued jobs, then closes it.", Answers: jobAnswers(), Wait: true, Handler: s.closeSandbox},
		{Method: "POST", Path: base + "/hibernate", Tag: "Sandboxes", Summary: "Hibernate a sandbox", Detail: "Its memory is stored on its node after the jobs before, and it uses no memory and no cores until it resumes: when it is asked to, or for the next execution, command, install or change of files. Needs the runtime runsc (gVisor) and an engine with checkpoints; elsewhere 409.", Body: wire.HibernateRequest{}, Optional: true, Answers: jobAnswers(), Wait: true, Idempotent: true, Handler: s.hibernateOrResume(farm.KindHibernate)},
		{Method: "POST", Path: base + "/resume", Tag: "Sandboxes", Summary: "Resume a hibernated sandbox", Detail: "Its programs continue where they were. One that is not hibernated stays as it is.", Body: wire.HibernateRequest{}, Optional: true, Answers: jobAnswers(), Wait: true, Idempotent: true, Handler: s.hibernateOrResume(farm.KindResume)},
	}
}

func (s *Server) createSandbox(c *gin.Context) error {
	var r wire.CreateRequest
	body, err := s.bind(c, &r)
	if err != nil {
		return err
	}
	call, err := s.call(c, 0, body)
	if err != nil {
		return err
	}
	ctx := c.Request.Context()
	if err := budget.TakeCore(ctx, body.Size); err != nil { // as in work
		return err
	}
	out, err := s.service.CreateSandbox(ctx, call, r)
	budget.LeaveCore(ctx)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if out.Job.State == string(farm.JobCompleted) {
		status = http.StatusCreated
	}
	return accepted(c, call, out, status, wire.Created{Sandbox: *out.Sandbox, Job: out.Job})
}

func (s *Server) listSandboxes(c *gin.Context) error {
	p, created, err := rest.PageOf(c)
	if err != nil {
		return err
	}
	q := service.SandboxQuery{Name: c.Query("name"), States: rest.List(c, "state"), Page: p, Created: created}
	if q.Labels, err = rest.Labels(c); err != nil {
		return err
	}
	list, err := s.service.Sandboxes(c.Request.Context(), rest.Tenant(c), q)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

func (s *Server) readSandbox(c *gin.Context) error {
	box, err := s.service.Sandbox(c.Request.Context(), rest.Tenant(c), c.Param("id"))
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, box)
}

func (s *Server) egress(c *gin.Context) error {
	limit, err := rest.Limit(c, service.EgressPageDefault, service.EgressPageMax)
	if err != nil {
		return err
	}
	list, err := s.service.Egress(c.Request.Context(), rest.Tenant(c), c.Param("id"), c.Query("after"), limit)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, list)
}

func (s *Server) updateSandbox(c *gin.Context) error {
	var r wire.UpdateRequest
	body, err := s.bind(c, &r)
	if err != nil {
		return err
	}
	box, err := s.service.UpdateSandbox(c.Request.Context(), service.Call{Tenant: rest.Tenant(c), Problems: body.Problems}, c.Param("id"), r)
	if err != nil {
		return err
	}
	return rest.Reply(c, http.StatusOK, box)
}

func (s *Server) closeSandbox(c *gin.Context) error {
	call, err := s.call(c, 0, rest.Decoded{})
	if err != nil {
		return err
	}
	out, err := s.service.CloseSandbox(c.Request.Context(), call, c.Param("id"))
	if err != nil {
		return err
	}
	return accepted(c, call, out, http.StatusOK, out.Job)
}

func (s *Server) hibernateOrResume(kind farm.JobKind) func(*gin.Context) error {
	return func(c *gin.Context) error {
		return work(s, c, s.bindOptional, func(call service.Call, r wire.HibernateRequest) (service.Outcome, error) {
			return s.service.HibernateOrResume(c.Request.Context(), call, kind, c.Param("id"), r)
		})
	}
}

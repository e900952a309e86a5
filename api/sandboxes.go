package api

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func (s *Server) sandboxRoutes() []route {
	const base = "/v1/sandboxes/{id}"
	made := []answer{
		{http.StatusCreated, "the ready sandbox and its finished job, when the caller waited", wire.Created{}, ""},
		{http.StatusOK, "the sandbox and its job, which ended otherwise while the caller waited", wire.Created{}, ""},
		{http.StatusAccepted, "the new sandbox and the job that creates it", wire.Created{}, ""},
	}
	one := []answer{{http.StatusOK, "the sandbox", wire.Sandbox{}, ""}}
	list := []answer{{http.StatusOK, "a page of sandboxes, newest first", wire.List[wire.Sandbox]{}, ""}}
	filters := append(append(paging(), created()...), query("name", "only of exactly this name", object{"type": "string"}), query("state", "only in these states, separated by commas", stateSchema(farm.SandboxStates())),
		query("label", "key=value; may be repeated", object{"type": "array", "items": object{"type": "string"}}))
	return []route{
		{method: "POST", path: "/v1/sandboxes", tag: "Sandboxes", summary: "Create a sandbox", body: wire.CreateRequest{}, answers: made, wait: true, idempotent: true, handler: s.createSandbox},
		{method: "GET", path: "/v1/sandboxes", tag: "Sandboxes", summary: "List sandboxes", query: filters, answers: list, handler: s.listSandboxes},
		{method: "GET", path: base, tag: "Sandboxes", summary: "Read a sandbox", detail: "Reading does not count as use.", answers: one, handler: s.readSandbox},
		{method: "PATCH", path: base, tag: "Sandboxes", summary: "Keep a sandbox alive, rename or label it, or change its hosts or values of secrets", body: wire.UpdateRequest{}, answers: one, handler: s.updateSandbox},
		{
			method: "GET", path: base + "/egress", tag: "Sandboxes", summary: "Show what a sandbox connected to", detail: "The connections that a sandbox with the network allowlist asked for, the oldest first; those that are open come when they end. The newest ones are kept, and go with the sandbox.",
			query: []parameter{
				query("limit", "entries of a page", object{"type": "integer", "minimum": 1, "maximum": service.EgressPageMax, "default": service.EgressPageDefault}),
				query("after", "id of an entry: only what follows it", object{"type": "string"}),
			}, answers: []answer{{http.StatusOK, "a page of entries; next_cursor is the after of the next one", wire.List[wire.EgressEntry]{}, ""}}, handler: s.egress,
		},
		{method: "DELETE", path: base, tag: "Sandboxes", summary: "Close a sandbox", detail: "Cancels its running and queued jobs, then closes it.", answers: jobAnswers(), wait: true, handler: s.closeSandbox},
		{method: "POST", path: base + "/hibernate", tag: "Sandboxes", summary: "Hibernate a sandbox", detail: "Its memory is stored on its node after the jobs before, and it uses no memory and no cores until it resumes: when it is asked to, or for the next execution, command, install or change of files. Needs the runtime runsc (gVisor) and an engine with checkpoints; elsewhere 409.", body: wire.FreezeRequest{}, optional: true, answers: jobAnswers(), wait: true, idempotent: true, handler: s.freeze(farm.KindHibernate)},
		{method: "POST", path: base + "/resume", tag: "Sandboxes", summary: "Resume a hibernated sandbox", detail: "Its programs continue where they were. One that is not hibernated stays as it is.", body: wire.FreezeRequest{}, optional: true, answers: jobAnswers(), wait: true, idempotent: true, handler: s.freeze(farm.KindResume)},
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
	out, err := s.service.CreateSandbox(c.Request.Context(), call, r)
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

func (s *Server) freeze(kind farm.JobKind) func(*gin.Context) error {
	return func(c *gin.Context) error {
		return work(s, c, s.bindOptional, func(call service.Call, r wire.FreezeRequest) (service.Outcome, error) {
			return s.service.Freeze(c.Request.Context(), call, kind, c.Param("id"), r)
		})
	}
}

package api

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

func (s *Server) workRoutes() []route {
	const base = "/v1/sandboxes/{id}"
	return []route{
		{method: "POST", path: base + "/execute", tag: "Work", summary: "Run code in a sandbox", detail: "The kernel of the context keeps its variables between calls.", body: wire.ExecuteRequest{}, answers: jobAnswers(), wait: true, idempotent: true, handler: s.execute},
		{method: "POST", path: base + "/commands", tag: "Work", summary: "Run shell commands in a sandbox", body: wire.CommandRequest{}, answers: jobAnswers(), wait: true, idempotent: true, handler: s.command},
		{method: "POST", path: base + "/interrupt", tag: "Work", summary: "Interrupt the running code", detail: "If one like it has not begun yet, that job is the answer.", body: wire.ControlRequest{}, optional: true, answers: jobAnswers(), wait: true, idempotent: true, handler: s.control(farm.KindInterrupt)},
		{method: "POST", path: base + "/restart", tag: "Work", summary: "Restart the kernels", detail: "Variables are lost, files stay. If a restart like it has not begun yet, that job is the answer.", body: wire.ControlRequest{}, optional: true, answers: jobAnswers(), wait: true, idempotent: true, handler: s.control(farm.KindRestart)},
		{method: "POST", path: "/v1/run", tag: "Work", summary: "Run code in a fresh sandbox", detail: "The sandbox is closed afterwards.", body: wire.RunRequest{}, answers: jobAnswers(), wait: true, idempotent: true, handler: s.run},
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
	out, err := start(call, r)
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

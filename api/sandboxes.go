package api

import (
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// accepted answers a request that started work: with the finished status where the caller waited and the job has
// ended, else 202 and where to look.
func accepted(c *gin.Context, call service.Call, out service.Outcome, finished int, body any) error {
	status := finished
	if !out.Done() || call.Wait == 0 {
		status = http.StatusAccepted
		c.Header("Location", out.Job.Links.Self)
	}
	return reply(c, status, body)
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
	p, err := page(c)
	if err != nil {
		return err
	}
	q := service.SandboxQuery{Page: p}
	if q.Labels, err = labels(c); err != nil {
		return err
	}
	for _, states := range c.QueryArray("state") {
		q.States = append(q.States, strings.Split(states, ",")...)
	}
	list, err := s.service.Sandboxes(c.Request.Context(), tenant(c), q)
	if err != nil {
		return err
	}
	return reply(c, http.StatusOK, list)
}

func (s *Server) readSandbox(c *gin.Context) error {
	box, err := s.service.Sandbox(c.Request.Context(), tenant(c), c.Param("id"))
	if err != nil {
		return err
	}
	return reply(c, http.StatusOK, box)
}

func (s *Server) updateSandbox(c *gin.Context) error {
	var r wire.UpdateRequest
	if _, err := s.bind(c, &r); err != nil {
		return err
	}
	box, err := s.service.UpdateSandbox(c.Request.Context(), tenant(c), c.Param("id"), r)
	if err != nil {
		return err
	}
	return reply(c, http.StatusOK, box)
}

func (s *Server) closeSandbox(c *gin.Context) error {
	call, err := s.call(c, 0, nil)
	if err != nil {
		return err
	}
	out, err := s.service.CloseSandbox(c.Request.Context(), call, c.Param("id"))
	if err != nil {
		return err
	}
	return accepted(c, call, out, http.StatusOK, out.Job)
}

// work is a route that takes a body of one type and starts one job.
func work[R any](s *Server, c *gin.Context, bind func(*gin.Context, any) ([]byte, error), start func(service.Call, R) (service.Outcome, error)) error {
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

func (s *Server) install(c *gin.Context) error {
	return work(s, c, s.bind, func(call service.Call, r wire.PackagesRequest) (service.Outcome, error) {
		return s.service.Install(c.Request.Context(), call, c.Param("id"), r)
	})
}

func (s *Server) listPackages(c *gin.Context) error {
	list, err := s.service.PackageList(c.Request.Context(), tenant(c), c.Param("id"))
	if err != nil {
		return err
	}
	return reply(c, http.StatusOK, list)
}

func (s *Server) readPackage(c *gin.Context) error {
	name, _, err := behind(c, "/packages/")
	if err != nil {
		return err
	}
	p, err := s.service.Package(c.Request.Context(), tenant(c), c.Param("id"), c.Query("manager"), name)
	if err != nil {
		return err
	}
	return reply(c, http.StatusOK, p)
}

// control makes the handler of interrupt and restart.
func (s *Server) control(kind farm.JobKind) func(*gin.Context) error {
	return func(c *gin.Context) error {
		return work(s, c, s.bindOptional, func(call service.Call, r wire.ControlRequest) (service.Outcome, error) {
			return s.service.Control(c.Request.Context(), call, kind, c.Param("id"), r)
		})
	}
}

func (s *Server) frozen(c *gin.Context) error {
	if _, err := s.bindOptional(c, &wire.ControlRequest{}); err != nil {
		return err
	}
	return s.service.Frozen(c.Request.Context(), tenant(c), c.Param("id"))
}

// fileWait is how long the routes of files wait when nothing is said.
func (s *Server) fileWait() time.Duration { return s.service.FileWait() }

package api

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
)

func (s *Server) listJobs(c *gin.Context) error {
	p, err := page(c)
	if err != nil {
		return err
	}
	list, err := s.service.Jobs(c.Request.Context(), tenant(c), service.JobQuery{
		SandboxID: c.Query("sandbox_id"), JobID: c.Query("job_id"), State: c.Query("state"), Kind: c.Query("kind"), Page: p,
	})
	if err != nil {
		return err
	}
	return reply(c, http.StatusOK, list)
}

func (s *Server) readJob(c *gin.Context) error {
	wait, err := s.wait(c, 0)
	if err != nil {
		return err
	}
	out, err := s.service.Job(c.Request.Context(), tenant(c), c.Param("id"), wait)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if wait > 0 && !out.Done() {
		status = http.StatusAccepted
	}
	return reply(c, status, out.Job)
}

func (s *Server) cancelJob(c *gin.Context) error {
	wait, err := s.wait(c, 0)
	if err != nil {
		return err
	}
	out, err := s.service.Cancel(c.Request.Context(), tenant(c), c.Param("id"), wait)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if !out.Done() {
		status = http.StatusAccepted
	}
	return reply(c, status, out.Job)
}

func (s *Server) batch(c *gin.Context) error {
	var r wire.BatchRequest
	body, err := s.bind(c, &r)
	if err != nil {
		return err
	}
	call, err := s.call(c, 0, body)
	if err != nil {
		return err
	}
	outcomes, err := s.service.Batch(c.Request.Context(), call, r.Jobs)
	if err != nil {
		return err
	}
	answer := wire.BatchResult{Jobs: make([]wire.BatchOutcome, len(outcomes))}
	for i := range outcomes {
		out := &outcomes[i]
		if out.Err != nil {
			problem := problemOf(out.Err, requestID(c))
			answer.Jobs[i].Error = &problem
			continue
		}
		answer.Jobs[i] = wire.BatchOutcome{Job: &out.Job, Sandbox: out.Sandbox}
	}
	return reply(c, http.StatusMultiStatus, answer)
}

func (s *Server) listArtifacts(c *gin.Context) error {
	p, err := page(c)
	if err != nil {
		return err
	}
	list, err := s.service.Artifacts(c.Request.Context(), tenant(c), service.ArtifactQuery{
		SandboxID: c.Query("sandbox_id"), JobID: c.Query("job_id"), Page: p,
	})
	if err != nil {
		return err
	}
	return reply(c, http.StatusOK, list)
}

func (s *Server) readArtifact(c *gin.Context) error {
	a, err := s.service.Artifact(c.Request.Context(), tenant(c), c.Param("id"))
	if err != nil {
		return err
	}
	c.Header("Location", a.URL)
	return reply(c, http.StatusFound, a)
}
